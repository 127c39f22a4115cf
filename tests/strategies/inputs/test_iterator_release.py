"""A program does not wait until TensorFlow has freed the iterator of a dataset."""

import gc
import threading
import time
import weakref

import pytest
import tensorflow as tf

from tfdist.strategies.inputs import iterator_release

pytestmark = pytest.mark.slow

SECONDS = 30


def distributed(dataset):
    return tf.distribute.MirroredStrategy(["CPU:0"]).experimental_distribute_dataset(dataset)


@pytest.mark.parametrize("distribute", [lambda dataset: dataset, distributed], ids=["dataset", "distributed"])
def test_an_iterator_that_cannot_be_freed_yet_holds_nobody_up_and_is_freed_later(distribute):
    iterator_release.install()
    reading, may_go_on = threading.Event(), threading.Event()

    def numbers():
        yield 0
        reading.set()  # A thread reads ahead. The iterator is freed when it has done so.
        may_go_on.wait(2 * SECONDS)
        yield 1

    dataset = tf.data.Dataset.from_generator(numbers, output_signature=tf.TensorSpec([])).batch(1).prefetch(2)
    gone = weakref.ref(dataset)
    held = [iter(distribute(dataset))]
    del dataset
    next(held[0])
    assert reading.wait(SECONDS)

    drops = threading.Thread(target=held.clear)
    drops.start()
    drops.join(SECONDS / 2)
    try:
        assert not drops.is_alive()
    finally:
        may_go_on.set()
    drops.join(SECONDS)
    latest = time.monotonic() + SECONDS
    while gone() is not None and time.monotonic() < latest:
        gc.collect()
        time.sleep(0.05)
    assert gone() is None


PROGRAM = """
import atexit, os, threading
import tensorflow as tf
from tfdist.strategies.inputs import iterator_release

iterator_release.install()
reading, may_go_on = threading.Event(), threading.Event()

def numbers():
    yield 0
    reading.set()
    may_go_on.wait(60)
    yield 1

left = [iter(tf.data.Dataset.from_generator(numbers, output_signature=tf.TensorSpec([])).batch(1).prefetch(2))]
next(left[0])
assert reading.wait(30)
atexit._run_exitfuncs()
drops = threading.Thread(target=left.clear, daemon=True)
drops.start()
drops.join(20)
os._exit(1 if drops.is_alive() else 0)
"""


def test_the_end_of_a_program_waits_for_no_iterator_that_the_program_has_left(run_python, tmp_path):
    """The launcher drops what a program has left after its exit functions have run."""
    (tmp_path / "program.py").write_text(PROGRAM)
    assert run_python(tmp_path, "program.py", timeout=120) == 0
