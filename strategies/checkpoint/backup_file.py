"""The file of tfdist's own backup of a model: its weights as Keras writes them, and how far its training is.

There are two generations of it. A damaged latest one gives way to the one before. While a later call of `fit` trains, the
weights at the end of the calls before it stay in files of their own: a program that is started again saves and evaluates them
between its calls. The chief writes and chooses; under multi_worker_mirrored the other tasks read a copy of the chief's.
"""

import contextlib
import dataclasses
import json
import logging
import os
import threading
from typing import Any

import h5py
import tensorflow as tf

from tfdist.errors import ClusterError
from tfdist.strategies.checkpoint import folder_lock, generations, memory_file, model_states, strategy_state
from tfdist.strategies.checkpoint.atomic_path import atomic_path, is_chief
from tfdist.strategies.checkpoint.backup import OWN_VARIABLES, Broadcast
from tfdist.strategies.checkpoint.fit_start import FitStart
from tfdist.strategies.checkpoint.memory_file import MemoryFile
from tfdist.strategies.checkpoint.own_folder import OwnFolder

_PROGRESS = "tfdist_progress"
_CALLBACKS = "tfdist_callbacks"
_METRICS = "tfdist_metrics"
_SEEDS = "tfdist_seeds"
"""The HDF5 dataset with a `Progress` as JSON, and the groups with `Arrays`, beside `OWN_VARIABLES`."""

KEEP = 5
"""How many finished calls of `fit` before the latest call keep their weights, as many as TensorFlow keeps checkpoints."""

_log = logging.getLogger("tfdist")


@dataclasses.dataclass
class Progress:
    """How far the training of a model is.

    Attributes:
        fit: the number of its calls of `fit` that have begun.
        call: the arguments of the latest that say how long it trains.
        epoch: the number of the next epoch.
        batch: the number of batches of that epoch that are done.
        finished: whether the call has returned.
        batches_per_epoch: see `Resumption`.
        batch_size: see `Batches.size`.
        batch_count: see `Batches.count`.
        random_state: what `random_numbers.state` returned at the beginning of that epoch.
        callbacks: see `callback_states.states`.
        finished_fits: of each call that has returned the epochs and values of its `History`, and the state of its callbacks;
            None for a call that raised.
        starts: how each call that has begun did so.
        optimizers: see `model_states.updated`.
        kinds: see `model_states.kinds`; None if unknown.
        shapes: see `model_states.shapes`; None if unknown.
    """

    fit: int
    call: dict[str, Any]
    epoch: int = 0
    batch: int = 0
    finished: bool = False
    batches_per_epoch: int | None = None
    batch_size: int | None = None
    batch_count: int | None = None
    random_state: Any = None
    callbacks: dict[str, Any] = dataclasses.field(default_factory=dict)
    finished_fits: list[Any] = dataclasses.field(default_factory=list)
    starts: list[FitStart] = dataclasses.field(default_factory=list)
    optimizers: list[Any] | None = None
    kinds: list[list[Any]] | None = None
    shapes: list[list[int]] | None = None

    def has_finished(self, fit: int) -> bool:
        """Returns whether the call with this number has returned."""
        return self.finished if fit == self.fit else fit < self.fit and self.finished_fits[fit - 1] is not None


@dataclasses.dataclass
class Arrays:
    """The arrays beside the weights.

    Attributes:
        metrics: the values of the metrics' variables; empty between two epochs.
        seeds: the states of the generators of random numbers, which Keras' files lack.
        own: see `model_states.own_variables`.
        callbacks: see `callback_states.states`.
    """

    metrics: list[Any] = dataclasses.field(default_factory=list)
    seeds: list[Any] = dataclasses.field(default_factory=list)
    own: list[Any] = dataclasses.field(default_factory=list)
    callbacks: dict[str, list[Any]] = dataclasses.field(default_factory=dict)


class BackupFile:
    """The backup of one model.

    Args:
        strategy: the strategy.
        base: the path without its ending.

    Attributes:
        path: the path of the latest generation.
        earlier: the path of the generation before it.
    """

    def __init__(self, strategy: tf.distribute.Strategy, base: str) -> None:
        self._strategy = strategy
        self._writer: threading.Thread | None = None
        self._has_warned = False
        self._failures = 0  # Writes in sequence that have failed.
        self._is_written = True  # Whether the disk has what `write` got last.
        self._copy: OwnFolder | None = None
        self._base = base
        self._ended: int | None = None  # The number of the call whose end the latest generation holds; None: of none.
        self.path = f"{base}.weights.h5"
        self.earlier = f"{base}.earlier.weights.h5"

    def write(self, model: Any, progress: Progress, arrays: Arrays) -> None:
        """Writes weights and progress. Every task of multi_worker_mirrored has to call it, but see `is_read_alone`.

        The training goes on as soon as they are in memory. A thread writes them to the disk; if that fails, the backup stays as
        it was, with a warning. The next call waits for that thread.
        """
        model_states.build_without_call(model)
        try:
            with strategy_state.set_aside() as state:
                memory = memory_file.save_weights(model)
        except (ValueError, TypeError, NotImplementedError) as error:  # Keras cannot save every model that it can train.
            if not self._has_warned:
                _log.warning("%s trains without a backup, because its weights cannot be saved: %s", model.name, error)
            self._has_warned = True
            self.wait()
            self._is_written = False
            return
        if not is_chief():
            return
        with h5py.File(memory, "a") as file:
            file[_PROGRESS] = json.dumps(vars(progress), default=vars)
            strategy_state.put_all(file, _METRICS, arrays.metrics)
            strategy_state.put_all(file, _SEEDS, arrays.seeds)
            strategy_state.put_all(file, OWN_VARIABLES, arrays.own)
            for name, values in arrays.callbacks.items():
                strategy_state.put_all(file, f"{_CALLBACKS}/{name}", values)
        self.wait()
        self._is_written = False
        self._writer = threading.Thread(target=self._write, args=(memory, state, progress), name="tfdist-backup")
        self._writer.start()

    def _write(self, memory: MemoryFile, state: dict[str, Any], progress: Progress) -> None:
        if state:  # Under hogwild it is larger than the weights. No step changes these arrays.
            with h5py.File(memory, "a") as file:
                strategy_state.add(file, state)
        try:
            os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
            folder_lock.renew(os.path.dirname(self.path))
            self._keep_end(progress.fit)
            with atomic_path(self.path) as partial:
                memory_file.copy_to(memory, partial)
                generations.seal(partial)
                generations.keep(self.path, self.earlier)
            self._ended = progress.fit if progress.finished else None
            self._is_written, self._failures = True, 0
        except OSError as error:
            self._failures += 1
            if self._failures & (self._failures - 1) == 0:  # First, second, 4th: perhaps it is tried after each step.
                times = "" if self._failures == 1 else f" ({self._failures} times in sequence)"
                _log.warning("the backup %s cannot be written, and stays as it was%s: %s", self.path, times, error)

    def _keep_end(self, number: int) -> None:
        """Keeps the latest generation, before that of call `number` replaces it, if it is the end of an earlier call."""
        if self._ended is None or self._ended >= number:
            return
        with contextlib.suppress(OSError):  # `find_end` does without it.
            generations.keep(self.path, self._end(self._ended))
            os.remove(self._end(self._ended - KEEP))

    def _end(self, number: int) -> str:
        return f"{self._base}.fit-{number}.weights.h5"

    def wait(self) -> bool:
        """Waits for the thread that writes; returns whether what `write` got last is on the disk."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        return self._is_written

    def progress(self) -> Progress | None:
        """Returns the progress in the whole generation of this task's folder that is the latest; None without one."""
        for path in (self.path, self.earlier):
            with contextlib.suppress(OSError, KeyError, ValueError):
                if _damage(path) is None:
                    return progress_in(path)
        return None

    def read(self) -> Progress | None:
        """Returns the progress in the backup, which is the chief's on every task; None without one."""
        if is_chief():
            self._choose()
        if isinstance(self._strategy, tf.distribute.MultiWorkerMirroredStrategy):
            if not is_chief():
                self._copy = OwnFolder()
            Broadcast(self._strategy).send_files([self.path], [self._readable])
        if not os.path.exists(self._readable):
            return None
        progress = progress_in(self._readable)
        self._ended = progress.fit if progress.finished else None
        return progress

    def find_end(self, number: int, saved: Progress) -> str | None:
        """Returns the path of a file with the weights at the end of call `number`; None if it is not kept.

        Every task of multi_worker_mirrored has to call it.

        Args:
            number: of a call that has returned.
            saved: the progress in the backup.
        """
        if saved.fit == number:
            return self._readable
        path = self._end(number)
        if is_chief() and not _is_end(path, number, saved):
            path = f"{path}.none"
        target = path if self._copy is None else os.path.join(self._copy.name, os.path.basename(path))
        if isinstance(self._strategy, tf.distribute.MultiWorkerMirroredStrategy):
            Broadcast(self._strategy).send_files([path], [target])
        return target if os.path.exists(target) else None

    def load(self, model: Any, path: str | None = None, is_exact: bool = True) -> Arrays:
        """Gives a model its weights, and its optimizer and strategy what they need; returns the arrays beside them.

        Args:
            model: the model.
            path: what `find_end` returned; by default the latest backup.
            is_exact: whether the training continues from it, so that its optimizers have to be those of the model.

        Raises:
            ClusterError: if the backup is of another model, or of other optimizers, or if the model is not built.
        """
        path = path or self._readable
        progress = progress_in(path)
        try:
            with self._strategy.scope():
                model_states.build_optimizers(model, progress.optimizers)
                if model.built and is_exact and (other := model_states.difference(model, progress.shapes, progress.kinds)):
                    raise ValueError(other)
                model.load_weights(path)
        except ValueError as error:
            if not model.built:
                raise ClusterError(
                    f"the training cannot continue from the backup {self.path}: {model.name} makes its variables with its "
                    "first batch, and its data have no fixed shape; build it before fit, for example by calling it on a batch"
                ) from error
            raise ClusterError(
                f"the backup {self.path} is not of this model ({error}); name another folder with --backup_dir, or remove "
                "this one to train from the beginning"
            ) from error
        with h5py.File(path) as file:
            callbacks = {name: strategy_state.values_of(group) for name, group in file.get(_CALLBACKS, {}).items()}
            metrics, seeds, own = (strategy_state.values_of(file.get(name, {})) for name in (_METRICS, _SEEDS, OWN_VARIABLES))
            return Arrays(metrics, seeds, own, callbacks)

    def forget(self) -> None:
        """Removes the copy that this task has read."""
        if self._copy is not None:
            self._copy.cleanup()
            self._copy = None

    @property
    def _readable(self) -> str:
        return self.path if self._copy is None else os.path.join(self._copy.name, os.path.basename(self.path))

    def _choose(self) -> None:
        """Puts the earlier generation into the place of the latest if that is damaged or gone."""
        if not (os.path.exists(self.path) or os.path.exists(self.earlier)) or (reason := _damage(self.path)) is None:
            return
        if os.path.exists(self.earlier) and _damage(self.earlier) is None:
            generations.use_earlier(self.path, self.earlier, reason)
            return
        _log.warning("%s %s, and there is no whole backup before it: the training begins anew", self.path, reason)
        with contextlib.suppress(FileNotFoundError):
            os.remove(self.path)


def progress_in(path: str) -> Progress:
    """Returns the progress in a backup. Raises ClusterError if another version of tfdist has written it."""
    with h5py.File(path) as file:
        values = json.loads(file[_PROGRESS][()])
    try:
        return Progress(**{**values, "starts": [FitStart(**each) for each in values.get("starts", ())]})
    except TypeError as error:  # A value that this version does not know.
        raise ClusterError(
            f"the backup {path} was written by another version of tfdist, and this one cannot read it; continue with that one, "
            "or remove the backup to train from the beginning"
        ) from error


def _is_end(path: str, number: int, saved: Progress) -> bool:
    """Returns whether a file is the end of call `number` of the training that `saved` belongs to."""
    if not os.path.exists(path) or _damage(path) is not None:
        return False
    progress = progress_in(path)
    own, others = (json.dumps(each) for each in (progress.finished_fits, saved.finished_fits[:number]))
    return progress.finished and progress.fit == number and own == others


def _damage(path: str) -> str | None:
    """Returns what is wrong with a backup, as the end of a sentence; None for a whole one."""
    if reason := generations.damage(path):
        return reason
    with h5py.File(path) as file:
        return None if _PROGRESS in file else "is no backup of tfdist"
