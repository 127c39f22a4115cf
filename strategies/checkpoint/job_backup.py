"""tfdist's own backup: `fit` of an unchanged program continues where it was when the job is started again.

The launcher names the folder with TFDIST_BACKUP_DIR (`--backup_dir`, `--max_restarts`). A program with a `BackupAndRestore` of
its own keeps that one. This one also continues in the middle of an epoch, and knows what Keras' callbacks remember, the
`History` included. Each model has one file, which holds its latest call of `fit`. A program that is started again passes over
the calls that were finished: the model gets the weights that it had at their end. A call that raised an exception, which the
program has caught, runs again. When the program has finished, the files are removed.
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

from tfdist.strategies.checkpoint import callback_states, data_position, folder_lock, model_states
from tfdist.strategies.checkpoint.atomic_path import is_chief
from tfdist.strategies.checkpoint.backup_file import KEEP, Arrays, BackupFile, Progress, progress_in
from tfdist.strategies.checkpoint.data_position import DataPosition, Resumption
from tfdist.strategies.checkpoint.environment import FOLDER, FREQUENCY
from tfdist.strategies.keras_hooks.callbacks import with_callback
from tfdist.strategies.keras_hooks.interface import hooks_of
from tfdist.strategies.private_api import patches
from tfdist.strategies.runtime import preemption
from tfdist.strategies.runtime.program_end import at_program_end

_log = logging.getLogger("tfdist")
_backups: "_Backups | None" = None


def install(strategy: tf.distribute.Strategy) -> None:
    """Makes `fit` of every model of `strategy` keep a backup, if the environment names a folder.

    Raises:
        ValueError: if the frequency is neither `epoch` nor a number of batches above 0.
        ClusterError: if another program that runs now keeps its backup there.
    """
    folder, frequency = os.environ.pop(FOLDER, None), os.environ.pop(FREQUENCY, None) or "epoch"
    if not folder:
        return
    if frequency != "epoch" and not (frequency.isdecimal() and int(frequency) > 0):
        raise ValueError(f"{FREQUENCY} is {frequency!r}; it has to be epoch or a number of batches above 0")
    global _backups
    folder = os.path.abspath(folder)
    if is_chief():
        folder_lock.lock(folder)
    _backups = _Backups(strategy, folder, None if frequency == "epoch" else int(frequency))
    patches.FIT.patch(_fit)
    patches.BEGIN_EPOCH.patch(_begin_epoch)
    patches.END_EPOCH.patch(_end_epoch)
    patches.METRICS_RESULT_OR_LOGS.patch(_metrics_result_or_logs)
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
            preemption.end_after_fit(backup.wait)
            return history
        finally:
            self._is_in_fit = False
            backup.forget_call()
            for logger in loggers:
                logger.append = False

    def has_restored_metrics(self, model: Any) -> bool:
        """Returns whether the metrics of a model hold those of the epoch under way, from a backup within it."""
        return model in self._of_model and self._of_model[model].has_restored_metrics

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
        self._end_state: Any = None  # The state of random numbers at the end of a call that is passed over.
        self.has_restored_metrics = False

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
        before = self._progress
        raised = [None] * (before.fit - len(before.finished_fits))
        self._progress = Progress(before.fit + 1, call, finished_fits=[*before.finished_fits, *raised])
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
        if self._is_done:
            return call["epochs"]
        return found.epoch if found.fit == self._progress.fit else None

    @property
    def _is_done(self) -> bool:
        """Whether an earlier process has finished this call of `fit`."""
        if self._found is None or self._found.fit == self._progress.fit:
            return self._found is not None and self._found.finished
        return self._found.finished_fits[self._progress.fit - 1] is not None

    def restore(self, model: Any, callbacks: list[Any]) -> None:
        """Takes what an earlier process has saved, when Keras has built the model and before the first epoch."""
        self._callbacks = callbacks
        if (found := self._found) is None:
            return
        if self._is_done:
            self._pass_over(model, found)
            return
        if found.fit > self._progress.fit:
            _log.warning("fit %d of %s raised an exception before the restart: it runs again", self._progress.fit, model.name)
            return
        batches = f" and {found.batch} batches" if found.batch else ""
        done = f"{found.epoch} epochs{batches}"
        _log.warning("fit %d of %s continues after %s, from %s", found.fit, model.name, done, self._file.path)
        _build(model)
        self._restored = found, self._file.load(model)
        model_states.set_seeds(model, self._restored[1].seeds)
        self._file.forget()
        self._found = None
        model._initial_epoch = found.epoch
        self._progress.finished_fits = found.finished_fits
        self._saved_batches = found.batch
        epochs = found.epoch - self._progress.call["initial_epoch"]
        _position().resumption = Resumption(epochs, found.batch, found.batches_per_epoch, found.random_state)

    def _pass_over(self, model: Any, found: Progress) -> None:
        """Leaves no epoch to a call that an earlier process has finished, and gives the model what it had at the end.

        Callbacks of the user save and evaluate at the end of training, and the program does so between its calls.
        """
        number = self._progress.fit
        _log.warning("fit %d of %s was finished before the restart", number, model.name)
        model._initial_epoch = self._progress.call["epochs"]
        _position().is_passed_over = True
        _build(model)
        arrays: Arrays | None = None
        if (path := self._file.find_end(number, found)) is not None:
            arrays = self._file.load(model, path)
            model_states.set_seeds(model, arrays.seeds)
            self._end_state = progress_in(path).random_state
        else:
            _log.warning(
                "the backup has no weights of %s at the end of fit %d, only of the last %d calls: what the program saves and "
                "evaluates before fit %d is of fit %d",
                *(model.name, number, KEEP, number + 1, found.fit),
            )
            self._file.load(model)
        states = found.finished_fits[number - 1][2]
        callback_states.restore(self._callbacks, states, {} if arrays is None else arrays.callbacks)

    def begin_epoch(self, model: Any, callbacks: list[Any]) -> None:
        """Sets what callbacks and metrics had, after Keras has reset them."""
        self._callbacks = callbacks
        self.has_restored_metrics = False
        position = _position()
        position.random_state = data_position.random_state()
        if self._restored is None:
            return
        (found, arrays), self._restored = self._restored, None
        callback_states.restore(callbacks, found.callbacks, arrays.callbacks)
        if found.batch:
            position.random_state = found.random_state
            model_states.set_metrics(model, arrays.metrics)
            # Under parameter_server and hogwild the sums are elsewhere until the first step of a process.
            self.has_restored_metrics = len(arrays.metrics) == len(model.metrics_variables)

    def end(self, model: Any, history: Any) -> None:
        """Saves the end of a call of `fit`, or takes the end that an earlier process has saved."""
        if self._is_done:
            self._take_end(history)
            return
        if self._found is not None:
            _log.warning(
                "fit %d of %s raised an exception before the restart, and now it has not: the calls of fit after it begin anew",
                self._progress.fit,
                model.name,
            )
            self._found = None
        values = callback_states.states([history])[0]["History-1"]
        states = callback_states.states(each for each in self._callbacks if each is not history)[0]
        self._progress.finished_fits = [*self._progress.finished_fits, [values["epoch"], values["history"], states]]
        self._progress.finished = True
        self._save(model, self._progress.call["epochs"], 0, None)

    def _take_end(self, history: Any) -> None:
        found, number = self._found, self._progress.fit
        assert found is not None
        self._progress.finished_fits = found.finished_fits[:number]
        history.epoch, history.history, _ = found.finished_fits[number - 1]
        if self._end_state is not None:
            data_position.set_random_state(self._end_state)
        if found.fit == number:
            self._found = None
            self._file.forget()

    def forget_call(self) -> None:
        """Forgets what belongs to a call of `fit` that is over. Callbacks refer to their model, which nobody may need now."""
        self._callbacks, self._restored, self._end_state = [], None, None
        self.has_restored_metrics = False

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

    def save_in_epoch(self, model: Any, epoch: int, batches: int) -> bool:
        """Saves within an epoch. The arguments are those of `end_batch`.

        Returns:
            False if the epoch is about to end, which saves.
        """
        hooks = hooks_of(model.distribute_strategy)
        done = batches if hooks is None else hooks.batches_done(model, batches)
        position = _position()
        whole = position.iterator.num_batches
        if whole is not None and done >= whole:
            return False
        self._save(model, epoch, done, position)
        return True

    def wait(self) -> None:
        """Waits until the latest backup is on the disk."""
        self._file.wait()

    def _save(self, model: Any, epoch: int, batch: int, position: DataPosition | None) -> None:
        if self._found is not None:  # This call runs again, and the backup holds a later one.
            return
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


def _build(model: Any) -> None:
    if isinstance(example := getattr(_position().iterator._distributed_dataset, "element_spec", None), tuple):
        model_states.build(model, example)


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

    def save_on_signal(self, batch: int) -> bool:
        """Saves, and waits until the backup is on the disk. See runtime/preemption.py."""
        is_saved = self.backup.save_in_epoch(self.model, self._epoch, batch + 1)
        self.backup.wait()
        return is_saved

    def wait_for_save(self) -> None:
        """Waits until the latest backup is on the disk."""
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


def _metrics_result_or_logs(original: Callable[..., Any], model: Any, logs: Any) -> Any:
    assert _backups is not None
    # A backup that was saved after the last batch leaves the epoch no step.
    if not logs and _backups.has_restored_metrics(model):
        logs = model.get_metrics_result()
    return original(model, logs)
