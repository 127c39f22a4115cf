"""Under multi_worker_mirrored a save returns on other tasks after the chief's: a program that loads the file next finds it.

The chief waits for nobody, so it may save alone, as in a program that gives ModelCheckpoint to rank 0 only. So saves are paired
by name: the chief lists what it saves, and the n-th save of a name on another task waits for the chief's n-th of that name.

A name is the last part of a path, with every number as `#`, because tasks may save to folders and files of their own rank. All
temporary folders have one name.
"""

import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist.strategies.checkpoint.atomic_path import is_chief
from tfdist.strategies.keras_hooks.strategy_parts import calls_of
from tfdist.strategies.private_api.eager_context import publish, published
from tfdist.strategies.runtime.deadline import Deadline

WAIT_SECONDS = 300.0
"""How long a task waits for the chief's save. After one wait in vain it does not wait any more."""

OTHER_NAME_SECONDS = 60.0
"""How long it waits for the chief to begin a save of a name that the chief has never saved. Then this name does not wait."""

POLL_SECONDS = 1.0
"""How often a task that waits looks at the chief, which may be stopped or cut off in its save."""

_TEMPORARY = re.compile(r"tmp[a-z0-9_]{8}")
"""The names that the module tempfile makes."""

LAST = "/"
"""In place of a name: the chief saves nothing more."""

_applies = False
_depth = 0
_counts: dict[str, int] = {}
"""The saves of this task, by name."""
_chiefs: list[tuple[str, str]] = []
"""The names and paths of the chief's saves, as far as this task knows them; on the chief all of them."""
_unpaired: set[str] = set()
_watch_chief: Callable[[], Callable[[], Exception | None]] | None = None
"""Begins to look at the chief; what it returns returns an error if the chief is lost."""

_log = logging.getLogger("tfdist")


def install(strategy: tf.distribute.Strategy) -> None:
    """Applies the rule from now on if the strategy has several tasks that run the program."""
    global _applies, _watch_chief
    calls = calls_of(strategy)
    _watch_chief = None if calls is None else calls.watch_chief
    spec = strategy.cluster_resolver.cluster_spec() if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) else None
    _applies = spec is not None and sum(spec.num_tasks(job) for job in spec.jobs if job in ("chief", "worker")) > 1


@contextlib.contextmanager
def after_chief(path: Any) -> Iterator[None]:
    """Surrounds a save. Of saves inside one another, such as the checkpoint of a SavedModel, the outermost counts.

    A save that raises counts too, but then this task does not wait.
    """
    global _depth
    outermost = _applies and not _depth
    name = _name(path) if outermost else ""
    number = _begin(path) if outermost and is_chief() else 0
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        if outermost:
            _counts[name] = _counts.get(name, 0) + 1
        if number:
            publish(f"saves/{number}/done", "")
    if outermost and not is_chief() and name not in _unpaired:
        _wait(name)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Surrounds saves that this task makes without the others. They do not count."""
    global _depth
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1


def is_inside() -> bool:
    """Returns whether a save is being made, which counts and keeps what is written in it."""
    return bool(_depth)


def end() -> None:
    """Tells the others, on the chief, that it saves nothing more: its program has ended, and it waits for theirs."""
    global _applies
    if _applies:
        _applies = False
        with contextlib.suppress(tf.errors.OpError):  # The others are gone.
            publish(f"saves/{len(_chiefs) + 1}", LAST)


def _name(path: Any) -> str:
    if not isinstance(path, str | os.PathLike):
        return ""
    name = os.path.basename(os.path.normpath(os.fsdecode(path)))
    return "tmp#" if _TEMPORARY.fullmatch(name) else re.sub(r"\d+", "#", name)


def _path(path: Any) -> str:
    return os.path.normpath(os.fsdecode(path)) if isinstance(path, str | os.PathLike) else ""


def _begin(path: Any) -> int:
    """Lists a save of the chief; returns its number, from 1."""
    _chiefs.append((_name(path), _path(path)))
    publish(f"saves/{len(_chiefs)}", "\n".join(_chiefs[-1]))
    return len(_chiefs)


def is_elsewhere(path: Any) -> bool:
    """Returns whether another task than the chief saves to another path than the chief, such as a temporary folder of its own.

    Then the chief's file is not what the program will look for there, and writing does not touch it. To be called inside
    `after_chief`, where the file is complete. It waits until the chief begins its save.
    """
    name = _name(path)
    if not _applies or _depth != 1 or is_chief() or name in _unpaired:
        return False
    number = None
    with _stops_waiting_on_error():
        number = _listed(name, _counts.get(name, 0) + 1)
    return number is not None and _chiefs[number - 1][1] != _path(path)


def _wait(name: str) -> None:
    """Waits until the chief has made as many saves of a name as this task."""
    with _stops_waiting_on_error():
        number = _listed(name, _counts[name])
        if number is not None:
            _published(f"saves/{number}/done", WAIT_SECONDS)


def _published(key: str, seconds: float) -> str:
    """Returns what the chief publishes. Raises as `published` does, and `_ChiefLostError` if the chief is lost."""
    if _watch_chief is None:
        return published(key, seconds)
    look, deadline = _watch_chief(), Deadline.after(seconds)
    while True:
        try:
            return published(key, deadline.within(POLL_SECONDS).remaining())
        except tf.errors.DeadlineExceededError:
            if deadline.expired():
                raise
        if (error := look()) is not None:
            raise _ChiefLostError(error)


class _ChiefLostError(Exception):
    """The chief is lost. The argument is the error that names it."""


def _listed(name: str, count: int) -> int | None:
    """Waits until the chief has begun so many saves of a name; returns the number of the last one, None if it does not."""
    global _applies
    while (names := [each for each, _ in _chiefs]).count(name) < count:
        is_known = name in names or sum(_counts.values()) > len(_chiefs)
        try:
            listed = _published(f"saves/{len(_chiefs) + 1}", WAIT_SECONDS if is_known else OTHER_NAME_SECONDS)
        except tf.errors.DeadlineExceededError:
            if is_known:
                raise
            _unpaired.add(name)
            _log.info("the chief saves nothing named %s, so this task does not wait for it", name)
            return None
        if listed == LAST:
            _applies = False
            _log.info("the chief ended while this task waited for its save of %s", name)
            return None
        chiefs_name, _, chiefs_path = listed.partition("\n")
        _chiefs.append((chiefs_name, chiefs_path))
    return [index for index, each in enumerate(names, 1) if each == name][count - 1]


@contextlib.contextmanager
def _stops_waiting_on_error() -> Iterator[None]:
    """Surrounds a wait for the chief. If that fails, this task does not wait any more, and goes on unless the chief is lost."""
    global _applies
    try:
        yield
    except _ChiefLostError as lost:
        _applies = False
        raise lost.args[0] from None
    except tf.errors.DeadlineExceededError:
        _applies = False
        _log.warning(
            "the chief has not saved within %.0f s what this task has saved. Only the chief's files are kept: call save on"
            " every task, or on the chief alone. This task does not wait for the chief's saves any more",
            WAIT_SECONDS,
        )
    except tf.errors.OpError as error:  # The first task serves what tasks publish, until its program ends.
        _applies = False
        _log.info("the chief ended while this task waited for its save: %s", error.message)
