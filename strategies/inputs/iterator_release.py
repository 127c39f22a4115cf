"""Frees the iterators of datasets in threads of their own, because TensorFlow may take up to a minute to free one.

When an iterator is freed, tf.data wakes the thread that tunes its pipeline, and waits for its end. The cancellation counts
only after that (`CancellationManager::StartCancel` calls its callbacks first). A thread that looks earlier sees none, and goes
on waiting for its next turn, which comes after 10 ms at first, then after twice as long each time, up to 60 s
(`Model::OptimizeLoop` in tensorflow/core/framework/model.cc).

Keras drops an iterator at the end of each epoch and each evaluation. So the program pauses there now and then, for up to as
long as they took (benchmarks/epoch_ends.py).
"""

import functools
import itertools
import os
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.strategies.private_api import patches

POLL_SECONDS, POLLS = 0.05, 1200
"""A thread looks 20 times a second, at most a minute, whether anybody else still refers to the iterator."""

_numbers = itertools.count()
_watched: dict[int, tuple["weakref.ref[Any]", list[Any]]] = {}
"""By a number, an iterator and what is freed after it. `weakref.finalize` would do nothing once exit functions have run, and at
the end of a program most are dropped."""

# A weak reference calls back at any moment in any thread: where it holds a lock, and where Ctrl-C is handled, whose exception
# would be lost there. This queue takes no lock in Python, and its `put` runs no code of Python.
_dropped: "queue.SimpleQueue[int]" = queue.SimpleQueue()
_process: int | None = None
"""The process in which a thread takes from the queue. A fork has none."""


def install() -> None:
    """Frees iterators that are made from now on in threads. Calling it again does nothing."""
    patches.OWNED_ITERATOR.patch(_init)
    patches.MULTI_DEVICE_ITERATOR.patch(_init_multi_device)


# Replacements. The first parameter is the function that they replace.


def _init(original: Callable[..., Any], iterator: Any, dataset: Any = None, *args: Any, **kwargs: Any) -> None:
    original(iterator, dataset, *args, **kwargs)
    _watch(iterator, iterator._iterator_resource, dataset)


def _init_multi_device(original: Callable[..., Any], iterator: Any, dataset: Any = None, *args: Any, **kwargs: Any) -> None:
    original(iterator, dataset, *args, **kwargs)
    _watch(iterator, iterator._multi_device_iterator_resource, dataset)


def _watch(iterator: Any, resource: Any, dataset: Any) -> None:
    if not tf.executing_eagerly():
        return  # It is a part of a function.
    _start()
    # The dataset has the Python functions that the iterator calls until its end.
    number = next(_numbers)
    _watched[number] = (weakref.ref(iterator, functools.partial(_dropped.put, number)), [resource, dataset])


def _start() -> None:
    global _process
    if _process != os.getpid():
        _process = os.getpid()
        threading.Thread(target=_distribute, name="tfdist-iterators", daemon=True).start()


def _distribute() -> None:
    while True:  # No variable of this loop may keep what is dropped.
        held = (_watched.pop(_dropped.get())[1],)
        threading.Thread(target=_free, args=held, name="tfdist-iterators", daemon=True).start()
        del held


def _free(held: list[Any]) -> None:
    for _ in range(POLLS):
        if _references(held) <= _ALONE:
            break
        time.sleep(POLL_SECONDS)
    del held[0]  # The iterator, before its dataset.


def _references(held: list[Any]) -> int:
    return sys.getrefcount(held[0])


_ALONE = _references([object()])
"""References to an object that only a list holds."""
