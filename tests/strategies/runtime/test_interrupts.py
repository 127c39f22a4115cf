"""Ctrl-C while TensorFlow runs."""

import functools
import linecache
import os
import signal
import threading
import time
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.runtime import interrupts

# As if they were in TensorFlow's files. Its C++ code asks for the length of a shape.
OF_TENSORFLOW = """
class Shape(tf.TensorShape):
    def __len__(self):
        os.kill(os.getpid(), signal.SIGINT)
        return super().__len__()

class Executor:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)

def delete():
    Executor()

class Function:
    def __init__(self, done):
        self.done = done

    def __del__(self):
        remove(self.done)

def wait():
    os.kill(os.getpid(), signal.SIGINT)
    while True:
        time.sleep(0.01)

def call(function):
    function()

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)

class Device:
    entered = 0

    def __enter__(self):
        interrupt()
        Device.entered += 1

    def __exit__(self, *_):
        Device.entered -= 1
"""

OF_TFDIST = """
import contextlib

@contextlib.contextmanager
def scope():
    with Device():
        yield

def use_scope():
    with scope():
        pass

def use_lock(lock):
    lock.acquire()
    try:
        interrupt()
    finally:
        lock.release()

def remove(done):
    os.kill(os.getpid(), signal.SIGINT)
    done.append(True)

def clean_up(done):
    try:
        pass
    finally:
        os.kill(os.getpid(), signal.SIGINT)
        done.append(True)
"""


@pytest.fixture
def of_tensorflow(monkeypatch):
    """Returns the names above."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupts.keep_out_of_tensorflow()
    names = {"os": os, "signal": signal, "tf": tf, "time": time}
    exec(compile(OF_TENSORFLOW, os.path.join(os.path.dirname(tf.__file__), "file.py"), "exec"), names)
    yield names
    signal.signal(signal.SIGINT, previous)


def test_an_operation_whose_attributes_are_being_read_ends_before_the_interrupt(of_tensorflow):
    iterator = iter(tf.data.Dataset.range(2))._iterator_resource
    read = []
    with pytest.raises(KeyboardInterrupt):
        read = tf.raw_ops.IteratorGetNext(
            iterator=iterator, output_types=[tf.int64], output_shapes=[of_tensorflow["Shape"]([])]
        )
        pytest.fail("the interrupt is late")
    assert [int(value) for value in read] == [0]
    read = tf.raw_ops.IteratorGetNext(iterator=iterator, output_types=[tf.int64], output_shapes=[tf.TensorShape([])])
    assert int(read[0]) == 1


def test_an_interrupt_in_a_finalizer_is_not_lost(of_tensorflow):
    with pytest.raises(KeyboardInterrupt):
        of_tensorflow["delete"]()
        pytest.fail("the interrupt is late")


def test_an_interrupt_in_the_callback_of_a_weak_reference_is_not_lost(of_tensorflow):
    class Thing:
        pass

    def drop():
        thing = Thing()
        weakref.finalize(thing, os.kill, os.getpid(), signal.SIGINT)
        del thing

    with pytest.raises(KeyboardInterrupt):
        drop()
        pytest.fail("the interrupt is late")


def test_a_function_of_the_program_that_tensorflow_calls_is_interrupted_at_once(of_tensorflow):
    def function():
        os.kill(os.getpid(), signal.SIGINT)
        ended.append(True)

    ended = []
    with pytest.raises(KeyboardInterrupt):
        of_tensorflow["call"](function)
    assert not ended


def test_a_function_that_autograph_has_converted_ends_before_the_interrupt(of_tensorflow):
    """TensorFlow is tracing it: AutoGraph's stack of contexts would keep what an exception in the generated code leaves there."""

    @tf.function
    def function(x):
        if tf.reduce_sum(x) > 0:
            x = x + 1
        os.kill(os.getpid(), signal.SIGINT)
        traced.append(True)
        return x

    traced = []
    with pytest.raises(KeyboardInterrupt):
        function(tf.ones(2))
        pytest.fail("the interrupt is late")
    assert traced
    assert function(tf.ones(2)).numpy().tolist() == [2, 2]


def test_a_line_of_keras_that_calls_c_code_ends_before_the_interrupt(of_tensorflow):
    """NumPy drops the exception when it asks a tensor for its buffer."""
    names = {"kill": functools.partial(os.kill, os.getpid(), signal.SIGINT), "done": []}
    path = os.path.join(os.path.dirname(keras.__file__), "file.py")
    exec(compile("def convert():\n    return kill(), done.append(True)", path, "exec"), names)
    with pytest.raises(KeyboardInterrupt):
        names["convert"]()
        pytest.fail("the interrupt is late")
    assert names["done"] == [True]


OF_KERAS = """
def load():
    try:
        interrupt()
        done.append("its try")
    except:
        done.append("without the file")
    done.append("more")
"""


@pytest.mark.parametrize("longest", [0.05, 1.0])
def test_an_interrupt_is_not_lost_where_keras_would_go_on_after_any_exception(of_tensorflow, monkeypatch, longest):
    """As `Model.save` and `load_model` where they open files."""
    monkeypatch.setattr(interrupts, "LONGEST_SECONDS", longest)
    path, done = os.path.join(os.path.dirname(keras.__file__), "opens.py"), []
    monkeypatch.setitem(linecache.cache, path, (len(OF_KERAS), None, OF_KERAS.splitlines(keepends=True), path))

    def interrupt():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)

    names = {"interrupt": interrupt, "done": done}
    exec(compile(OF_KERAS, path, "exec"), names)
    with pytest.raises(KeyboardInterrupt):
        names["load"]()
        pytest.fail("the interrupt is late")
    assert done == ["its try"]


def test_tensorflow_that_waits_is_interrupted_although_it_does_not_return(of_tensorflow, monkeypatch):
    monkeypatch.setattr(interrupts, "LONGEST_SECONDS", 0.05)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            of_tensorflow["wait"]()


@pytest.fixture
def of_tfdist(of_tensorflow, monkeypatch):
    """Returns functions as if they were in a file of tfdist, which call those as if they were in TensorFlow's."""
    path = os.path.join(interrupts._OWN, "file.py")
    monkeypatch.setitem(linecache.cache, path, (len(OF_TFDIST), None, OF_TFDIST.splitlines(keepends=True), path))
    exec(compile(OF_TFDIST, path, "exec"), of_tensorflow)
    return of_tensorflow


def test_a_scope_that_was_just_entered_is_left_before_the_interrupt(of_tfdist):
    with pytest.raises(KeyboardInterrupt):
        of_tfdist["use_scope"]()
    assert of_tfdist["Device"].entered == 0


def test_an_interrupt_waits_until_a_lock_is_released(of_tfdist):
    lock = threading.Lock()
    with pytest.raises(KeyboardInterrupt):
        of_tfdist["use_lock"](lock)
        pytest.fail("the interrupt is late")
    assert not lock.locked()


def test_a_finally_of_tfdist_is_not_interrupted(of_tfdist):
    done = []
    with pytest.raises(KeyboardInterrupt):
        of_tfdist["clean_up"](done)
        pytest.fail("the interrupt is late")
    assert done == [True]


def test_an_interrupt_of_tfdist_in_a_finalizer_of_tensorflow_is_not_lost(of_tfdist):
    """As where a function of TensorFlow is deleted, which tfdist removes from the tasks."""
    done = []
    with pytest.raises(KeyboardInterrupt):
        of_tfdist["Function"](done)
        pytest.fail("the interrupt is late")
    assert done == [True]


def test_a_model_is_built_before_the_interrupt():
    """Half of an optimizer cannot be used, and Keras would not build the rest."""

    class Interrupted(keras.layers.Dense):
        def build(self, input_shape):
            os.kill(os.getpid(), signal.SIGINT)
            super().build(input_shape)

    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = keras.Sequential([Interrupted(1)])
        model.compile("adam", "mse")
    try:
        interrupts.keep_out_of_tensorflow()
        interrupts.install()
        with pytest.raises(KeyboardInterrupt):
            model.fit(np.ones((2, 1)), np.ones((2, 1)), verbose=0)
        assert model.built and model.optimizer.built
    finally:
        signal.signal(signal.SIGINT, previous)


def test_what_another_thread_must_not_leave_half_made_does_not_take_the_interrupt_of_the_main_thread():
    """Python handles signals in that one: a `fit` in another thread goes on, as after any Ctrl-C."""
    entered, leave, raised = threading.Event(), threading.Event(), []

    def hold():
        try:
            with interrupts.held():
                entered.set()
                leave.wait(10)
        except KeyboardInterrupt:
            raised.append("in the other thread")

    before, thread = signal.getsignal(signal.SIGINT), threading.Thread(target=hold)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupts.keep_out_of_tensorflow()
    try:
        thread.start()
        assert entered.wait(10)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        leave.set()
        thread.join()
        signal.signal(signal.SIGINT, before)
    assert raised == []


def test_a_program_keeps_its_own_handler():
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        interrupts.keep_out_of_tensorflow()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, previous)


def test_a_cell_of_a_notebook_gets_the_handler_back_in_the_calls_of_keras():
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    try:
        interrupts.install()
        for call in (model.predict, model.predict_on_batch, model.test_on_batch, model.train_on_batch):
            signal.signal(signal.SIGINT, signal.default_int_handler)  # As ipykernel does before each cell.
            call(*[np.ones((1, 1))] * (2 if call in (model.test_on_batch, model.train_on_batch) else 1))
            assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, previous)
