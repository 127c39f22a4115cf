"""Functions are added to the runtime and removed without Python's lock: on all tasks, one of which may be stopped."""

import ctypes
import gc

import pytest
import tensorflow as tf

from tfdist.strategies.private_api import c_interface, eager_context, patches, remote_functions
from tfdist.strategies.private_api.checks import need_c_function

FUNCFLAG_PYTHONAPI = 4
"""Of ctypes.h: the function is called with Python's lock."""


@pytest.fixture
def called(monkeypatch):
    """The names and C functions that are called without Python's lock, with their arguments."""
    for patch in patches.REMOTE_FUNCTIONS.values():
        monkeypatch.setattr(patch.owner, patch.name, patch.original)
        monkeypatch.setattr(patch, "_replacements", [])
    remote_functions.install()
    found = []
    for name in ("_add", "_add_def", "_remove"):
        function = getattr(remote_functions, name)
        assert not type(function)._flags_ & FUNCFLAG_PYTHONAPI

        def call(context, *arguments, name=name, function=function):
            found.append((name, arguments[0]))
            return function(context, *arguments)

        monkeypatch.setattr(remote_functions, name, call)
    return found


def test_functions_are_added_and_removed_while_other_threads_run(called):
    context = eager_context.context()

    @tf.function
    def function(x):
        return x + 1

    assert function(tf.constant(1)).numpy() == 2
    (name,) = (each for each in context.list_function_names() if "inference_function_" in each)
    assert "_add" in {each for each, _ in called}
    definition = context.get_function_def(name)
    definition.signature.name = "another_name"
    context.add_function_def(definition)
    assert called[-1] == ("_add_def", definition.SerializeToString()) and context.has_function("another_name")
    context.remove_function("another_name")
    del function
    gc.collect()
    assert ("_remove", name.encode()) in called and name not in context.list_function_names()
    with pytest.raises(tf.errors.InvalidArgumentError, match="non-existent function"):
        context.remove_function("another_name")


def test_at_the_end_of_the_process_functions_stay_on_their_servers(called, monkeypatch):
    monkeypatch.setattr(remote_functions, "_keeps_all", False)
    function = tf.function(lambda x: x + 1)
    assert function(tf.constant(1)).numpy() == 2
    remote_functions.keep_all()
    del function
    gc.collect()
    assert "_remove" not in {each for each, _ in called}


def test_the_pointer_of_a_function_is_found_and_none_in_other_objects(monkeypatch):
    name_of = need_c_function("tensorflow.python._pywrap_tfe", "TF_FunctionName", ctypes.c_char_p, ctypes.c_void_p)
    context = eager_context.context()
    add, names = type(context).add_c_function, []
    monkeypatch.setattr(
        type(context),
        "add_c_function",
        lambda self, function: (names.append(name_of(c_interface.pointer_in(function))), add(self, function)),
    )
    double = tf.function(lambda x: x * 2)
    assert double(tf.constant(1)).numpy() == 2
    assert names and all(context.has_function(name) for name in names)
    assert c_interface.pointer_in(object()) is None and c_interface.pointer_in(b"text" * 20) is None
