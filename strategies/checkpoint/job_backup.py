"""tfdist's own backup: `fit` of an unchanged program continues where it was when the job is started again.

The launcher names the folder with TFDIST_BACKUP_DIR (`--backup_dir`, `--max_restarts`). A program with a `BackupAndRestore` of
its own keeps that one. This one also continues in the middle of an epoch, and knows what Keras' callbacks remember, the
`History` included. Each model has one file, which holds its latest call of `fit`. A program that is started again passes over
the calls that were finished. When it has finished, the files are removed.
"""

import dataclasses
import inspect
import logging
import os
import weakref
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist.strategies.checkpoint import callback_states, data_position, model_states
from tfdist.strategies.checkpoint.atomic_path import is_chief
from tfdist.strategies.checkpoint.backup_file import Arrays, BackupFile, Progress
from tfdist.strategies.checkpoint.data_position import DataPosition, Resumption
from tfdist.strategies.checkpoint.environment import FOLDER, FREQUENCY
from tfdist.strategies.keras_hooks.callbacks import with_callback
from tfdist.strategies.keras_hooks.interface import hooks_of
from tfdist.strategies.private_api import patches
from tfdist.strategies.runtime.program_end import at_program_end

_log = logging.getLogger("tfdist")
_backups: "_Backups | None" = None


def install(strategy: tf.distribute.Strategy) -> None:
    """Makes `fit` of every model of `strategy` keep a backup, if the environment names a folder.

    Raises:
        ValueError: if the frequency is neither `epoch` nor a number of batches above 0.
    """
    folder, frequency = os.environ.pop(FOLDER, None), os.environ.pop(FREQUENCY, None) or "epoch"
    if not folder:
        return
    if frequency != "epoch" and not (frequency.isdecimal() and int(frequency) > 0):
        raise ValueError(f"{FREQUENCY} is {frequency!r}; it has to be epoch or a number of batches above 0")
    global _backups
    _backups = _Backups(strategy, os.path.abspath(folder), None if frequency == "epoch" else int(frequency))
    patches.FIT.patch(_fit)
    patches.BEGIN_EPOCH.patch(_begin_epoch)
    patches.END_EPOCH.patch(_end_epoch)
    at_program_end(_backups.end)


class _Backups:
    """The backups of all models of a program. The first model that trains has the first file, and so on."""

    def __init__(self, strategy: tf.distribute.Strategy, folder: str, batches: int | None) -> None:
        self._strategy = strategy
        self._folder = folder
        self._batches = batches
        self._of_model: weakref.WeakKeyDictionary[Any, _Backup] = weakref.WeakKeyDictionary()
        self._files: list[BackupFile] = []
        self._is_in_fit = False

    def fit(self, original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls `fit`. A `fit` within another, by a callback, has no backup."""
        bound = inspect.signature(original).bind(model, *args, **kwargs)
        callbacks = bound.arguments.get("callbacks")
        listed = _listed(callbacks)
        has_own = any(isinstance(each, keras.callbacks.BackupAndRestore) for each in listed)
        if self._is_in_fit or has_own or model.distribute_strategy is not self._strategy:
            return original(model, *args, **kwargs)
        if model not in self._of_model:
            self._files.append(BackupFile(self._strategy, os.path.join(self._folder, f"model-{len(self._files) + 1}")))
            self._of_model[model] = _Backup(self._files[-1], self._batches)
        backup = self._of_model[model]
        bound.apply_defaults()
        loggers = [each for each in listed if isinstance(each, keras.callbacks.CSVLogger) and not each.append]
        self._is_in_fit = True
        try:
            continued = backup.begin({name: int(bound.arguments[name]) for name in ("epochs", "initial_epoch")})
            if continued is not None and is_chief():
                for logger in loggers:
                    callback_states.continue_csv(logger, continued)
            callback = (_EachEpoch if self._batches is None else _EachBatch)(backup, listed)
            bound.arguments["callbacks"] = with_callback(callback, model, callbacks)
            history = original(*bound.args, **bound.kwargs)
            backup.end(model, history)
            return history
        finally:
            self._is_in_fit = False
            for logger in loggers:
                logger.append = False

    def end(self, failed: bool) -> None:
        """Removes the files of a program that has finished: another start is another training."""
        if failed or not is_chief():
            return
        for file in self._files:
            file.remove()
        try:
            os.rmdir(self._folder)
        except OSError:
            pass  # It holds other files, or was never made.


class _Backup:
    """The backup of one model."""

    def __init__(self, file: BackupFile, batches: int | None) -> None:
        self._file = file
        self._batches = batches
        self._found: Progress | None = None  # What an earlier process has saved, until this one is as far.
        self._is_read = False
        self._progress = Progress(0, {})
        self._callbacks: list[Any] = []
        self._saved_batches = 0  # Batches of the epoch that the latest backup holds.
        self._restored: tuple[Progress, Arrays] | None = None

    # The beginning and the end of a call of `fit`.

    def begin(self, call: dict[str, int]) -> int | None:
        """Prepares for the next call of `fit`, before Keras begins it.

        Args:
            call: its arguments that say how long it trains.

        Returns:
            The epoch at which it continues; None if it begins anew.
        """
        if not self._is_read:
            self._found, self._is_read = self._file.read(), True
        self._progress = Progress(self._progress.fit + 1, call, finished_fits=self._progress.finished_fits)
        self._saved_batches = 0
        found = self._found
        if found is None:
            return None
        if found.fit == self._progress.fit and found.call != call:
            _log.warning(
                "the backup %s is of a fit with %s, and this one has %s: it begins anew",
                self._file.path,
                *(", ".join(f"{name}={value}" for name, value in each.items()) for each in (found.call, call)),
            )
            self._found = None
            return None
        return call["epochs"] if self._is_done else found.epoch

    @property
    def _is_done(self) -> bool:
        """Whether an earlier process has finished this call of `fit`."""
        return self._found is not None and (self._found.fit > self._progress.fit or self._found.finished)

    def restore(self, model: Any, callbacks: list[Any]) -> None:
        """Takes what an earlier process has saved, when Keras has built the model and before the first epoch."""
        self._callbacks = callbacks
        if (found := self._found) is None:
            return
        if self._is_done:
            _log.warning("fit %d of %s was finished before the restart", self._progress.fit, model.name)
            model._initial_epoch = self._progress.call["epochs"]  # No epoch is left.
            return
        batches = f" and {found.batch} batches" if found.batch else ""
        done = f"{found.epoch} epochs{batches}"
        _log.warning("fit %d of %s continues after %s, from %s", found.fit, model.name, done, self._file.path)
        if isinstance(example := getattr(_position().iterator._distributed_dataset, "element_spec", None), tuple):
            model_states.build(model, example)
        self._restored = found, self._file.load(model)
        model_states.set_seeds(model, self._restored[1].seeds)
        self._file.forget()
        self._found = None
        model._initial_epoch = found.epoch
        self._progress.finished_fits = found.finished_fits
        self._saved_batches = found.batch
        epochs = found.epoch - self._progress.call["initial_epoch"]
        _position().resumption = Resumption(epochs, found.batch, found.batches_per_epoch, found.random_state)

    def begin_epoch(self, model: Any, callbacks: list[Any]) -> None:
        """Sets what callbacks and metrics had, after Keras has reset them."""
        self._callbacks = callbacks
        position = _position()
        position.random_state = data_position.random_state()
        if self._restored is None:
            return
        (found, arrays), self._restored = self._restored, None
        callback_states.restore(callbacks, found.callbacks, arrays.callbacks)
        if found.batch:
            position.random_state = found.random_state
            model_states.set_metrics(model, arrays.metrics)

    def end(self, model: Any, history: Any) -> None:
        """Saves the end of a call of `fit`, or takes the end that an earlier process has saved."""
        if self._is_done:
            self._take_end(model, history)
            return
        values = callback_states.states([history])[0]["History-1"]
        states = callback_states.states(each for each in self._callbacks if each is not history)[0]
        self._progress.finished_fits = [*self._progress.finished_fits, [values["epoch"], values["history"], states]]
        self._progress.finished = True
        self._save(model, self._progress.call["epochs"], 0, None)

    def _take_end(self, model: Any, history: Any) -> None:
        found, number = self._found, self._progress.fit
        assert found is not None
        arrays = self._file.load(model)
        self._progress.finished_fits = found.finished_fits[:number]
        history.epoch, history.history, states = found.finished_fits[number - 1]
        callback_states.restore(self._callbacks, states, arrays.callbacks if found.fit == number else {})
        if found.fit > number:
            return
        model_states.set_seeds(model, arrays.seeds)
        data_position.set_random_state(found.random_state)
        self._found = None
        self._file.forget()

    # Saving.

    def end_epoch(self, model: Any, epoch: int) -> None:
        """Saves after an epoch, unless `fit` is about to end."""
        if epoch + 1 < self._progress.call["epochs"] and not model.stop_training:
            self._save(model, epoch + 1, 0, _position())

    def end_batch(self, model: Any, epoch: int, batches: int) -> None:
        """Saves within an epoch, if it is time.

        Args:
            model: the model.
            epoch: the number of the epoch.
            batches: how many of its batches are done, as far as Keras knows.
        """
        if self._batches is not None and batches - self._saved_batches >= self._batches:
            self.save_in_epoch(model, epoch, batches)

    def save_in_epoch(self, model: Any, epoch: int, batches: int) -> None:
        """Saves within an epoch. The arguments are those of `end_batch`."""
        hooks = hooks_of(model.distribute_strategy)
        done = batches if hooks is None else hooks.batches_done(model, batches)
        position = _position()
        whole = position.iterator.num_batches
        if whole is None or done < whole:  # Else the epoch is about to end.
            self._save(model, epoch, done, position)

    def wait(self) -> None:
        """Waits until the latest backup is on the disk."""
        self._file.wait()

    def _save(self, model: Any, epoch: int, batch: int, position: DataPosition | None) -> None:
        progress = dataclasses.replace(self._progress, epoch=epoch, batch=batch)
        if position is not None:
            progress.batches_per_epoch = position.iterator._num_batches
        progress.random_state = position.random_state if position is not None and batch else data_position.random_state()
        progress.callbacks, kept = callback_states.states(self._callbacks)
        self._file.write(model, progress, Arrays(model_states.metrics(model) if batch else [], model_states.seeds(model), kept))
        self._saved_batches = batch


def _position() -> DataPosition:
    position = data_position.current()
    assert position is not None, "a callback of fit runs outside of fit"
    return position


def _listed(callbacks: Any) -> list[Any]:
    return list(callbacks.callbacks if isinstance(callbacks, keras.callbacks.CallbackList) else tf.nest.flatten(callbacks))


class _EachEpoch(keras.callbacks.Callback):
    """Calls a `_Backup` during one call of `fit`. It runs after the user's callbacks."""

    tfdist_reads_batches = False  # See keras_hooks/trainer.py.

    def __init__(self, backup: _Backup, callbacks: list[Any]) -> None:
        super().__init__()
        self.backup = backup
        self._callbacks = callbacks
        self._epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:
        self.backup.restore(self.model, self._callbacks)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def save_on_signal(self, batch: int) -> None:
        """Saves, and waits until the backup is on the disk. See runtime/preemption.py."""
        self.backup.save_in_epoch(self.model, self._epoch, batch + 1)
        self.backup.wait()


class _EachBatch(_EachEpoch):
    """Also saves within an epoch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.backup.end_batch(self.model, self._epoch, batch + 1)


# Replacements. The first parameter is the function that they replace.


def _fit(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    assert _backups is not None
    return _backups.fit(original, model, *args, **kwargs)


def _begin_epoch(original: Callable[..., Any], callbacks: Any, epoch: int, logs: Any = None) -> None:
    for callback in callbacks.callbacks:
        if isinstance(callback, _EachEpoch):
            callback.backup.begin_epoch(callbacks.model, callbacks.callbacks)
    original(callbacks, epoch, logs)


def _end_epoch(original: Callable[..., Any], callbacks: Any, epoch: int, logs: Any = None) -> None:
    original(callbacks, epoch, logs)
    for callback in callbacks.callbacks:
        if isinstance(callback, _EachEpoch):
            callback.backup.end_epoch(callbacks.model, epoch)
