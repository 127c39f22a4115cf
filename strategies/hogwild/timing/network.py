"""How fast the network between the hosts of workers and parameters is. The chief measures it before it trains.

What is measured is what TensorFlow's own connection between two tasks carries, with the processors that they have.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.cluster import Cluster, Task
from tfdist.default_compression import is_open, with_default
from tfdist.strategies.runtime import chief_device
from tfdist.strategies.runtime.deadline import Deadline
from tfdist.strategies.runtime.notice import tell
from tfdist.strategies.runtime.task_address import device_of

PAIRS = 4
"""At most so many pairs of tasks are measured. The slowest counts: in a round all groups wait for it."""

SMALL, LARGE = 2**10, 2**21
"""Bytes of the two transfers whose difference in time counts."""

TIMES, LONG_SECONDS = 3, 0.1
"""Each transfer is made three times, and the fastest counts, but only once if it takes longer than 0.1 s."""

LIMIT_SECONDS = 10.0
"""After so long the network counts as having carried nothing more than one transfer."""

MOST_BYTES = 2**30
"""The memory of a ps that compression may take if the user has not asked for it."""

_log = logging.getLogger("tfdist")


def choose_compression(strategy: Any, cluster: Cluster) -> None:
    """Chooses `strategy.synchronization.compression` if the user has not, and prints it if it is not float32."""
    options = strategy.synchronization
    if not is_open(options):
        return
    live = {task for group in strategy.membership.live_groups for task in strategy.worker_groups[group].tasks}
    workers = [task for task in cluster.job("worker") if task.index in live]
    measured = slowest(pairs(workers, cluster.parameter_tasks), _transfer, Deadline.after(LIMIT_SECONDS))
    if measured is None:
        return
    (sender, receiver), speed = measured
    options = strategy.synchronization = with_default(options, speed)
    strategy.compression_is_measured = True
    if options.compresses:
        tell(
            f"hogwild: the network carries {8e-6 * speed:.3g} Mbit/s from {sender.name} to {receiver.name}, so parameters "
            f"travel as {options.compression} (--compression)"
        )


def affords(size: int, servers: int) -> bool:
    """Returns whether compression that nobody has asked for is worth the memory of the ps. Prints it if not.

    Args:
        size: bytes that the ps keep for it: what each group has decoded.
        servers: number of tasks that hold parameters.
    """
    if size <= MOST_BYTES * servers:
        return True
    tell(
        f"hogwild: the parameters travel as float32, because compression would take {size / servers / 2**30:.3g} GiB more of "
        "each task that holds them (--compression)"
    )
    return False


def pairs(workers: Sequence[Task], servers: Sequence[Task]) -> list[tuple[Task, Task]]:
    """Returns tasks with parameters and workers on other hosts to measure between, each worker once."""
    found = []
    for place, worker in enumerate(workers):
        others = [server for server in servers if server.host != worker.host]
        if others:
            found.append((others[place % len(others)], worker))
    return found[:: -(-len(found) // PAIRS) or 1]


def slowest(
    measured: Sequence[tuple[Task, Task]], transfer: Callable[[Task, Task], Callable[[int], float]], deadline: Deadline
) -> tuple[tuple[Task, Task], float] | None:
    """Returns the pair with the slowest network and its bytes per second; None if no speed is known.

    Args:
        measured: tasks that send, and tasks that receive.
        transfer: takes such a pair. Returns a function that sends as many bytes and returns the seconds.
        deadline: when it has to end. A transfer that takes longer ends later, in a thread that nobody waits for.
    """
    speeds: dict[tuple[Task, Task], float] = {}
    running: list[tuple[Task, Task]] = []

    def measure() -> None:
        for pair in measured:
            running[:] = [pair]
            try:
                speeds[pair] = _speed(transfer(*pair))
            except tf.errors.OpError as error:  # A task that is gone is found by those who need it.
                _log.debug("the network from %s to %s was not measured: %s", pair[0].name, pair[1].name, error)
            running.clear()

    thread = threading.Thread(target=measure, name="tfdist-network", daemon=True)
    thread.start()
    thread.join(deadline.remaining())
    known = dict(speeds)
    if thread.is_alive():
        known |= dict.fromkeys(running, LARGE / LIMIT_SECONDS)
    return min(known.items(), key=lambda each: each[1]) if known else None


def _speed(transfer: Callable[[int], float]) -> float:
    """Returns bytes per second. The first transfer connects the two tasks, and is not counted."""
    transfer(SMALL)
    seconds = _fastest(transfer, LARGE) - _fastest(transfer, SMALL)
    return (LARGE - SMALL) / max(seconds, 1e-9)


def _fastest(transfer: Callable[[int], float], size: int) -> float:
    seconds = transfer(size)
    for _ in range(TIMES - 1):
        if seconds < LONG_SECONDS:
            seconds = min(seconds, transfer(size))
    return seconds


def _transfer(sender: Task, receiver: Task) -> Callable[[int], float]:
    source, target = device_of(sender), device_of(receiver)

    def run(values: Any) -> Any:
        with tf.device(source):
            sent = tf.fill([values], 1.0)
        with tf.device(target):
            return tf.reduce_sum(sent)

    with tf.device(target):
        function = tf.function(run, autograph=False).get_concrete_function(tf.TensorSpec([], tf.int32))

    def transfer(size: int) -> float:
        with tf.device(target):
            begin = time.perf_counter()
            chief_device.fetched(function(chief_device.constant(size // 4))).numpy()
            return time.perf_counter() - begin

    return transfer
