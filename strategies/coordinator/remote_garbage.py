"""Frees on other tasks what the program has dropped: in threads of its own, because a task may be stopped or gone."""

import logging
import queue
import threading
from collections.abc import Callable

import tensorflow as tf

from tfdist.strategies.private_api.eager_context import use_own_executor

MOST_WAITING = 10_000
"""Actions that wait for one task. A task that does not answer for so long keeps its memory."""

_log = logging.getLogger("tfdist")


class RemoteGarbage:
    """Runs actions that free something on a task. One that fails is forgotten: a task that is gone has freed everything."""

    def __init__(self) -> None:
        # Finalizers run at any moment in any thread, also in one that holds a lock. This queue takes none in Python.
        self._actions: queue.SimpleQueue[tuple[str, Callable[[], object]]] = queue.SimpleQueue()
        threading.Thread(target=self._distribute, name="tfdist-garbage", daemon=True).start()

    def free(self, device: str, action: Callable[[], object]) -> None:
        """Runs `action` soon, after earlier ones for the same task. Returns at once.

        Args:
            device: a device of the task.
            action: called with this device as the default. It must not keep what it frees alive.
        """
        self._actions.put((device, action))

    def _distribute(self) -> None:
        waiting: dict[str, queue.SimpleQueue[Callable[[], object]]] = {}
        while True:
            device, action = self._actions.get()
            if device not in waiting:
                waiting[device] = queue.SimpleQueue()
                # It stays: for each new thread that calls a task, that task keeps a thread.
                threading.Thread(target=_run, args=(device, waiting[device]), name="tfdist-garbage", daemon=True).start()
            if waiting[device].qsize() < MOST_WAITING:
                waiting[device].put(action)
            del action


def _run(device: str, actions: "queue.SimpleQueue[Callable[[], object]]") -> None:
    executor = use_own_executor()
    while True:
        action = actions.get()
        try:
            with tf.device(device):
                action()
        except Exception:
            executor.clear_error()
            _log.debug("nothing freed on %s", device, exc_info=True)
        del action
