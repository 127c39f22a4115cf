"""Under multi_worker_mirrored a save returns on other tasks after the chief's: a program that loads the file next finds it.

The chief waits for nobody, so it may save alone. The saves of a task are counted: the chief says how many it has finished, and
the n-th of another task waits for that. Paths are not compared, because every task may have its own.
"""

import contextlib
import logging
from collections.abc import Iterator

import tensorflow as tf

from tfdist.strategies.checkpoint.atomic_path import is_chief
from tfdist.strategies.private_api import publish, published

WAIT_SECONDS = 300.0
"""How long a task waits for the chief's save. After one wait in vain it does not wait any more."""

_applies = False
_count = 0
_depth = 0


def install(strategy: tf.distribute.Strategy) -> None:
    """Applies the rule from now on if the strategy has several tasks that run the program."""
    global _applies
    spec = strategy.cluster_resolver.cluster_spec() if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) else None
    _applies = spec is not None and sum(spec.num_tasks(job) for job in spec.jobs if job in ("chief", "worker")) > 1


@contextlib.contextmanager
def after_chief() -> Iterator[None]:
    """Surrounds a save. Of saves inside one another, such as the checkpoint of a SavedModel, the outermost counts."""
    global _applies, _count, _depth
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
    if not _applies or _depth:
        return
    _count += 1
    if is_chief():
        publish(f"saves/{_count}", "")
        return
    try:
        published(f"saves/{_count}", WAIT_SECONDS)
    except tf.errors.DeadlineExceededError:
        _applies = False
        logging.getLogger("tfdist").warning(
            "the chief has not saved within %.0f s what this task has saved. Only the chief's files are kept: call save on"
            " every task, or on the chief alone. This task does not wait for the chief's saves any more",
            WAIT_SECONDS,
        )
    except tf.errors.OpError as error:  # The first task serves what tasks publish, until its program ends.
        _applies = False
        logging.getLogger("tfdist").info(
            "the chief ended while this task waited for its save number %d: %s", _count, error.message
        )
