"""Ctrl-C while TensorFlow runs."""

import os
import signal
import time

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

def wait():
    os.kill(os.getpid(), signal.SIGINT)
    while True:
        time.sleep(0.01)

def call(function):
    function()
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


def test_a_function_of_the_program_that_tensorflow_calls_is_interrupted_at_once(of_tensorflow):
    def function():
        os.kill(os.getpid(), signal.SIGINT)
        ended.append(True)

    ended = []
    with pytest.raises(KeyboardInterrupt):
        of_tensorflow["call"](function)
    assert not ended


def test_tensorflow_that_waits_is_interrupted_although_it_does_not_return(of_tensorflow, monkeypatch):
    monkeypatch.setattr(interrupts, "LONGEST_SECONDS", 0.05)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            of_tensorflow["wait"]()


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
    try:
        interrupts.install()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # As ipykernel does before each cell.
        model.predict(np.ones((1, 1)), verbose=0)
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, previous)
