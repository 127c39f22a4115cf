"""tfdist's own backup: `fit` of an unchanged program continues where it was when the job is started again.

The launcher names the folder with TFDIST_BACKUP_DIR (`--backup_dir`, `--max_restarts`). A program with a `BackupAndRestore` of
its own keeps that one. This one also continues in the middle of an epoch, and knows what Keras' callbacks remember, the
`History` included. Each model has one file, which holds its latest call of `fit`; when the program has finished, the files are
removed.

A program that is started again passes over the calls that were finished: the model gets the weights that it had at their end. A
call that raised an exception, which the program has caught, runs again. A program may also skip calls itself (fit_start.py).
"""

import functools
import glob
import inspect
import logging
import os
import re
import weakref
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist.strategies.checkpoint import fit_start, folder_lock, save_order
from tfdist.strategies.checkpoint.atomic_path import is_chief
from tfdist.strategies.checkpoint.backup import Broadcast
from tfdist.strategies.checkpoint.backup_file import BackupFile, Progress
from tfdist.strategies.checkpoint.environment import FOLDER, FREQUENCY
from tfdist.strategies.checkpoint.fit_start import FitStart
from tfdist.strategies.checkpoint.model_backup import ModelBackup
from tfdist.strategies.keras_hooks.callbacks import listed, with_callback
from tfdist.strategies.keras_hooks.strategy_parts import calls_of
from tfdist.strategies.private_api import patches
from tfdist.strategies.runtime import preemption
from tfdist.strategies.runtime.lost_task_error import says_lost_task
from tfdist.strategies.runtime.program_end import at_program_end

_NAME = re.compile(r"tfdist-model-(\d+)\.(earlier\.|fit-\d+\.)?weights\.h5$")
"""A program may keep `model-1.weights.h5` of its own in the folder, as a ModelCheckpoint does."""

_log = logging.getLogger("tfdist")
_backups: "_Backups | None" = None


def install(strategy: tf.distribute.Strategy) -> None:
    """Makes `fit` of every model of `strategy` keep a backup, if the environment names a folder.

    A program in one process may ask for its strategy several times, and get another one each time. A notebook may name the
    folder again each time: what it has trained before is not what an earlier process has.

    Raises:
        ValueError: if the frequency is neither `epoch` nor a number of batches above 0.
        ClusterError: if another program that runs now keeps its backup there.
    """
    folder, frequency = os.environ.pop(FOLDER, None), os.environ.pop(FREQUENCY, None) or "epoch"
    global _backups
    folder = os.path.abspath(folder) if folder else None
    if _backups is not None and folder in (None, _backups.folder):
        _backups.strategies.append(strategy)
        return
    if folder is None:
        return
    if frequency != "epoch" and not (frequency.isdecimal() and int(frequency) > 0):
        raise ValueError(f"{FREQUENCY} is {frequency!r}; it has to be epoch or a number of batches above 0")
    if is_chief():
        folder_lock.lock(folder)
        if not os.access(folder, os.W_OK | os.X_OK):  # Now, not after the first epoch, which may take hours.
            _log.warning("the backup folder %s cannot be written: as long as it stays so, a restart trains anew", folder)
    _backups = _Backups(strategy, folder, None if frequency == "epoch" else int(frequency))
    patches.FIT.patch(_fit)
    patches.BEGIN_EPOCH.patch(_begin_epoch)
    patches.END_EPOCH.patch(_end_epoch)
    patches.END_TRAIN.patch(_end_train)
    patches.METRICS_RESULT_OR_LOGS.patch(_metrics_result_or_logs)
    at_program_end(_backups.end)


class _Backups:
    """The backups of all models of a program. The first model that trains has the first file, and so on.

    Attributes:
        strategies: those whose models have backups.
        folder: the path of the folder.
    """

    def __init__(self, strategy: tf.distribute.Strategy, folder: str, batches: int | None) -> None:
        self.strategies = [strategy]
        self.folder = folder
        self._batches = batches
        self._of_model: weakref.WeakKeyDictionary[Any, ModelBackup] = weakref.WeakKeyDictionary()
        self._files: list[BackupFile] = []
        self._models = 0  # The number of the last file.
        self._saved_earlier: dict[int, Progress] | None = None  # What an earlier process had saved, by the number of the file.
        self._is_in_fit = False
        self._unfinished: dict[str, str] = {}  # By the path of a backup: why the last call of fit was given up.

    def fit(self, original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls `fit`. A `fit` within another, by a callback, has no backup."""
        bound = inspect.signature(original).bind(model, *args, **kwargs)
        callbacks = bound.arguments.get("callbacks")
        given = listed(callbacks)
        has_own = any(isinstance(each, keras.callbacks.BackupAndRestore) for each in given)
        if self._is_in_fit or has_own or all(each is not model.distribute_strategy for each in self.strategies):
            return original(model, *args, **kwargs)
        bound.apply_defaults()
        start = fit_start.of(model, bound.arguments, is_whole=is_chief())
        if model not in self._of_model:
            self._of_model[model] = self._backup_of(model, start)
        backup = self._of_model[model]
        loggers = [each for each in given if isinstance(each, keras.callbacks.CSVLogger) and not each.append]
        self._is_in_fit = True
        try:
            continued = backup.begin(start)
            if continued and is_chief():
                backup.continue_csv(given)
                for logger in loggers:
                    logger.append = True  # By itself it would delete the rows before.
            elif is_chief():
                backup.begin_csv(given)
            callback = (_EachEpoch if self._batches is None else _EachBatch)(backup, given)
            bound.arguments["callbacks"] = with_callback(callback, model, callbacks)
            history = original(*bound.args, **bound.kwargs)
            backup.end(model, history)
            self._unfinished.pop(backup.file.path, None)
            preemption.end_after_fit(backup.file.wait)
            return history
        except BaseException as error:
            if says_lost_task(error):
                self._unfinished[backup.file.path] = f"fit has lost a task ({' '.join(str(error).split())[:200]})"
            elif isinstance(error, SystemExit):  # The program may catch it.
                by = "a signal" if error.code == preemption.EXIT_CODE else "sys.exit"
                self._unfinished[backup.file.path] = f"fit was ended by {by}"
            raise
        finally:
            self._is_in_fit = False
            backup.forget_call()
            for logger in loggers:
                logger.append = False

    def _backup_of(self, model: Any, start: FitStart) -> ModelBackup:
        """Returns the backup of a model whose first call of `fit` in this process begins."""
        chosen = list(self._choose(model, start, self._models + 1)) if is_chief() else [0, 0, 0]
        if isinstance(model.distribute_strategy, tf.distribute.MultiWorkerMirroredStrategy):
            chosen = Broadcast(model.distribute_strategy).send_numbers(chosen)
        self._models, skipped, is_continued = chosen
        self._files.append(BackupFile(model.distribute_strategy, self._base(self._models)))
        return ModelBackup(self._files[-1], self._batches, skipped, bool(is_continued))

    def _choose(self, model: Any, start: FitStart, number: int) -> tuple[int, int, bool]:
        """Returns the number of the backup for a model, how many calls it skips, and whether it continues the one after them.

        Args:
            model: the model.
            start: how its first call of `fit` begins.
            number: the number of the model if the program trains all models again.
        """
        if self._saved_earlier is None:
            numbers = {int(match[1]) for path in self._paths() if (match := _NAME.search(path))}
            each = {number: BackupFile(model.distribute_strategy, self._base(number)).progress() for number in sorted(numbers)}
            self._saved_earlier = {number: progress for number, progress in each.items() if progress is not None}
        later = {each: progress for each, progress in self._saved_earlier.items() if each >= number}
        counted = (number, 0)
        number, skipped = fit_start.find(start, number, {each: progress.starts for each, progress in later.items()})
        if number not in later or len(later[number].starts) <= skipped:
            return number, skipped, True
        if (number, skipped) != counted:
            _log.warning(
                "the program does not make all calls of fit again that were before the restart: the first one of %s is taken "
                "for fit %d in the backup %s",
                *(model.name, skipped + 1, self._base(number)),
            )
        difference = start.difference(later[number].starts[skipped])
        if not difference:
            return number, skipped, True
        is_continued = not later[number].has_finished(skipped + 1)
        continues = "continues, with the learning rate of the backup" if "learning_rate" in difference else "continues"
        _log.warning(
            "fit %d of %s differs from the one before the restart (%s), which %s: it %s",
            *(skipped + 1, model.name, difference),
            *(("was not finished", continues) if is_continued else ("was finished", "begins anew")),
        )
        return number, skipped, is_continued

    def _base(self, number: int) -> str:
        return os.path.join(self.folder, f"tfdist-model-{number}")

    def _paths(self) -> list[str]:
        found = glob.glob(os.path.join(glob.escape(self.folder), "tfdist-model-*.weights.h5"))
        return [path for path in found if _NAME.match(os.path.basename(path))]  # The others are the program's own.

    def has_restored_metrics(self, model: Any) -> bool:
        """Returns whether the metrics of a model hold those of the current epoch, from a backup within it."""
        return model in self._of_model and self._of_model[model].has_restored_metrics

    def end(self, failed: bool) -> None:
        """Removes the files of a program that has finished: another start is another training.

        They stay if a call of `fit` was given up because the job had lost a task, although the program has caught that, and if
        another task that trains has not finished: the launcher starts the job again. So do those of an interrupted `fit` if the
        program has not called `fit`, as one that only evaluates.
        """
        if failed or not is_chief():
            return
        for file in self._files:
            file.wait()
        kept = self._why_kept()
        try:
            for path in sorted(self._paths(), key=_removal_order) if not kept else ():
                os.remove(path)
        except OSError as error:  # Of a disk that was mounted for reading only, for example.
            kept = f"it could not be removed ({error.strerror})"
        if kept:
            _log.warning(
                "the backup in %s stays: %s. The next start of this program continues from it; remove it to train anew",
                *(self.folder, kept),
            )
            return
        try:
            os.rmdir(self.folder)
        except OSError:
            pass  # It holds other files, or was never made.

    def _why_kept(self) -> str:
        """Returns why a program that has finished leaves its files, as the end of a sentence; "" if it does not."""
        if not self._files:
            bases = {_NAME.sub(r"tfdist-model-\1", path) for path in self._paths()}
            found = [progress for base in bases if (progress := BackupFile(self.strategies[0], base).progress()) is not None]
            is_interrupted = any(not progress.finished for progress in found)
            return "it is of a fit that was interrupted, and this program has not called fit" if is_interrupted else ""
        if self._unfinished:
            return next(iter(self._unfinished.values()))
        calls = next(filter(None, map(calls_of, self.strategies)), None)
        if calls is None:
            return ""
        save_order.end()
        unfinished = calls.await_ends()
        return f"{', '.join(unfinished)} {'have' if len(unfinished) > 1 else 'has'} not finished" if unfinished else ""


def _removal_order(path: str) -> tuple[int, str]:
    """Returns the place of a file among those that are removed: those of the last model first, the latest backup of it first.

    What a program that is killed in between has left is then a backup of its first calls of `fit`.
    """
    match = _NAME.search(path)
    assert match is not None, f"{path} is no file of a backup"
    return -int(match[1]), match[2] or ""


class _EachEpoch(keras.callbacks.Callback):
    """Calls a `ModelBackup` during one call of `fit`. It runs after the user's callbacks."""

    tfdist_reads_batches = False  # See keras_hooks/trainer.py.

    def __init__(self, backup: ModelBackup, callbacks: list[Any]) -> None:
        super().__init__()
        self.backup = backup
        self._callbacks = callbacks
        self._epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:
        self.backup.restore(self.model, self._callbacks)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def save_on_signal(self, batch: int) -> bool:
        """Saves. See runtime/preemption.py."""
        return self.backup.save_in_epoch(self.model, self._epoch, batch + 1)

    def wait_for_save(self) -> bool:
        """See `BackupFile.wait`."""
        return self.backup.file.wait()


class _EachBatch(_EachEpoch):
    """Also saves within an epoch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.backup.end_batch(self.model, self._epoch, batch + 1)


# Replacements. The first parameter is the function that they replace.


def _fit(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    fit = original if _backups is None else functools.partial(_backups.fit, original)
    return fit(model, *args, **kwargs)


def _begin_epoch(original: Callable[..., Any], callbacks: Any, epoch: int, logs: Any = None) -> None:
    backups = [each.backup for each in callbacks.callbacks if isinstance(each, _EachEpoch)]
    for backup in backups:
        backup.begin_epoch(callbacks.model, callbacks.callbacks)
    original(callbacks, epoch, logs)
    for backup in backups:
        backup.continue_epoch()


def _end_epoch(original: Callable[..., Any], callbacks: Any, epoch: int, logs: Any = None) -> None:
    original(callbacks, epoch, logs)
    for callback in callbacks.callbacks:
        if isinstance(callback, _EachEpoch):
            callback.backup.end_epoch(callbacks.model, epoch)


def _end_train(original: Callable[..., Any], callbacks: Any, logs: Any = None) -> None:
    for callback in callbacks.callbacks:
        if isinstance(callback, _EachEpoch):
            logs = callback.backup.last_logs(callbacks.model) or logs
    original(callbacks, logs)


def _metrics_result_or_logs(original: Callable[..., Any], model: Any, logs: Any) -> Any:
    # A backup that was saved after the last batch leaves the epoch no step.
    if not logs and _backups is not None and _backups.has_restored_metrics(model):
        logs = model.get_metrics_result()
    return original(model, logs)
