"""Inlines the user's functions with `@tf.function` into the steps that call them.

A `tf.function` caches its trace, and every function that calls it gets the same one. But a trace depends on the step: a trial
makes no updates, and the examples of a replica, its share and its random numbers are tensors of the graph of one step. So a
function that a step calls is traced again, as a part of that step. One that XLA compiles is not inlined: each step has a copy.
Where XLA has no access to the variables, it compiles none but Keras' own convolutions, which need it on a CPU.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.strategies.keras_hooks.replicas import replica_context
from tfdist.strategies.keras_hooks.replicas.warned import warn_once
from tfdist.strategies.private_api import in_stateless_scope, patches
from tfdist.strategies.private_api.user_functions import copied, is_compiled, leave_out_xla, python_function

_no_xla = ""
_KEEP_XLA = ("tfdist.", patches.CONV.owner.__name__)  # Modules.


def compile_none(reason: str) -> None:
    """Leaves `jit_compile=True` of functions out from now on, with a warning that gives the reason."""
    global _no_xla
    _no_xla = reason


def install() -> None:
    """Inlines functions with `@tf.function` from now on. Calling it again does nothing."""
    patches.CALL_FUNCTION.patch(_call)


def _call(original: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls a function; while a step is traced, its Python function, or a copy of one that XLA compiles.

    In a stateless scope, too: while Keras builds a model, and while logs are computed. A trace would hold values of the scope,
    and what it assigns would stay in the scope.
    """
    of_user = function.python_function
    keeps_xla = is_compiled(function) and str(of_user.__module__).startswith(_KEEP_XLA)
    if _no_xla and is_compiled(function) and not keeps_xla:
        warn_once("jit_compile=True of the function %s has no effect: %s", getattr(of_user, "__name__", of_user), _no_xla)
        leave_out_xla(function)
    replica = replica_context.current()
    if not tf.inside_function() or (replica is None and (keeps_xla or not in_stateless_scope())):
        return original(function, *args, **kwargs)
    if replica is None or not is_compiled(function):
        return python_function(function)(*args, **kwargs)
    copy, _ = replica.compiled.setdefault(id(function), (copied(function), function))  # A function that stays keeps its id.
    outer, replica.compiling = replica.compiling, getattr(function.python_function, "__name__", "a function")
    try:
        return original(copy, *args, **kwargs)
    finally:
        replica.compiling = outer
