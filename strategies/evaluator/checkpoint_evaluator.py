"""`fit` on the evaluator: waits for checkpoints of the chief's `fit` and evaluates each of them."""

import inspect
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfdist.cluster import Task
from tfdist.strategies.evaluator.evaluation import Evaluations, validation_of
from tfdist.strategies.evaluator.folder import EvaluationFolder
from tfdist.strategies.evaluator.progress import Progress, Training
from tfdist.strategies.private_api import file_patches, patches
from tfdist.strategies.runtime.program_end import at_program_end
from tfdist.strategies.runtime.server import code_without_chief

POLL_SECONDS = 1.0

_log = logging.getLogger("tfdist")
_evaluators: list["CheckpointEvaluator"] = []


class CheckpointEvaluator:
    """The evaluator task of this process.

    Attributes:
        name: the task.
    """

    def __init__(
        self, strategy: tf.distribute.Strategy, task: Task, folder: EvaluationFolder, start_timeout: float, takes_all: bool
    ) -> None:
        """Makes an evaluator.

        Args:
            strategy: the strategy of this process.
            task: the evaluator task.
            folder: the files that the chief and the evaluator share.
            start_timeout: seconds to wait for the chief.
            takes_all: whether the chief trains models made outside any scope too.
        """
        self.name = task.name
        self._strategy = strategy
        self._own_folder = folder.own(task.index)
        self._progress = Progress(self._own_folder / "state.json")
        self._training = Training(folder, self._progress, start_timeout)
        self._takes_all = takes_all
        self._fits = 0
        at_program_end(self._end)

    def evaluates(self, model: Any) -> bool:
        """Returns whether the chief trains `model` under the cluster's strategy, so that this process only evaluates it."""
        return model.distribute_strategy is self._strategy or (self._takes_all and model._distribute_strategy is None)

    def may_write(self, path: Any) -> bool:
        """Returns whether `path` is in the evaluator's own folder. What the program saves elsewhere is the chief's."""
        return not isinstance(path, str | os.PathLike) or self._own_folder in Path(path).absolute().parents

    def fit(self, model: Any, arguments: dict[str, Any]) -> keras.callbacks.History:
        """Evaluates each checkpoint of this call of `fit` until the chief's call has returned.

        Args:
            model: the compiled model.
            arguments: the arguments of the program's `fit`, by name.

        Returns:
            `History` with `val_` metrics, one entry per checkpoint, with those evaluated before a restart, and the chief's
            metrics of the training. The model then has the weights with which the chief's `fit` returned.

        Raises:
            SystemExit: with 75, if the chief's program has failed, or has been gone for 2 minutes.
            OSError: if the chief could not write the weights with which its call returned.
            ValueError: for a generator as validation data, which can be read only once.
        """
        self._fits += 1
        fit = self._fits
        validation = validation_of(arguments)
        evaluations = Evaluations(
            self.name, self._strategy, self._own_folder, self._progress, model, fit, validation, arguments
        )
        if validation is None:
            _log.warning("%s: fit has no validation data, so nothing is evaluated; it waits for the weights", self.name)
        self._evaluate_until_end(fit, evaluations if validation else None)
        evaluations.close()
        job = self._training.job(fit)
        evaluations.continue_bests(job)  # A call whose checkpoints were all evaluated before a restart has loaded none.
        final = self._training.final(fit)
        is_built = evaluations.build()  # The program may go on with a model that was never evaluated.
        if final is None:
            _log.warning("%s: there are no weights of the end of fit number %d; the model keeps its own", self.name, fit)
        elif is_built:
            model.load_weights(final)
        history = evaluations.history(job)
        history.history.update(self._training.history(fit))
        return history

    def _evaluate_until_end(self, fit: int, evaluations: Evaluations | None) -> None:
        """Evaluates the checkpoints of a call of `fit` until the chief's has returned; without `evaluations` it only waits.

        Raises:
            SystemExit: as `fit`.
        """
        reported: set[int] = set()
        while True:
            # Read before the checkpoints: the chief reports the end of its call after the last of them.
            status = self._training.look(fit)
            waiting = self._progress.not_evaluated(self._training.checkpoints(fit)) if evaluations is not None else []
            self._report_missed(fit, reported)
            if evaluations is not None and waiting:
                evaluations.evaluate(waiting[0], self._training.run, self._training.job(fit))
            elif status.has_ended:
                break
            elif status.why_not_wait:
                _log.error("%s ends: %s", self.name, status.why_not_wait)
                self._training.done()  # If it is started again, it waits for the chief's next run.
                sys.exit(code_without_chief())
            else:
                time.sleep(POLL_SECONDS)

    def _report_missed(self, fit: int, reported: set[int]) -> None:
        missed = {epoch: reason for epoch, reason in self._training.missed(fit).items() if epoch not in reported}
        reported.update(missed)
        for reason in dict.fromkeys(missed.values()):
            epochs = ", ".join(str(epoch) for epoch in missed if missed[epoch] == reason)
            _log.warning("%s: %s: the checkpoint after epoch %s", self.name, reason, epochs)

    def _end(self, failed: bool) -> None:
        if not failed:
            self._training.done()


def install(evaluator: CheckpointEvaluator) -> None:
    """Makes `fit` evaluate, for the models of `evaluator`."""
    _evaluators.insert(0, evaluator)
    patches.FIT.patch(_fit)
    patches.TRAIN_ON_BATCH.patch(_train_on_batch)


def leave_files_to_chief() -> None:
    """Stops what would write files that are the chief's. To be called after `atomic_saving.install`.

    Otherwise a save would empty the folder beside the file in which the chief may be writing it.
    """
    for save in (*patches.SAVE_METHODS.values(), file_patches.SAVE_MODEL, file_patches.SAVE_WEIGHTS, file_patches.SAVE_H5):
        save.patch(_save)
    file_patches.SAVE_SAVED_MODEL.patch(_save_saved_model)
    file_patches.CHECKPOINT_SAVE.patch(_save_checkpoint)
    file_patches.CHECKPOINT_STATE.patch(_write_checkpoint_state)
    file_patches.CHECKPOINT_DELETE.patch(_delete_checkpoint)


def _say_not_written(path: Any) -> None:
    _log.warning("%s does not write %s: the chief does", _evaluators[0].name, path)


def _evaluator_of(model: Any) -> CheckpointEvaluator | None:
    return next((evaluator for evaluator in _evaluators if evaluator.evaluates(model)), None)


# Replacements. The first parameter is the function that they replace.


def _fit(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    evaluator = _evaluator_of(model)
    if evaluator is None:
        return original(model, *args, **kwargs)
    bound = inspect.signature(original).bind(model, *args, **kwargs)
    bound.apply_defaults()
    return evaluator.fit(model, bound.arguments)


def _train_on_batch(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    evaluator = _evaluator_of(model)
    if evaluator is None:
        return original(model, *args, **kwargs)
    raise RuntimeError(
        f"{evaluator.name} evaluates what `fit` trains, and this program trains with train_on_batch; "
        "train with fit, or leave the evaluator out of the cluster"
    )


def _save(original: Callable[..., Any], model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
    evaluator = _evaluator_of(model)
    if evaluator is not None and not evaluator.may_write(filepath):
        _say_not_written(filepath)
        return None
    return original(model, filepath, *args, **kwargs)


def _save_saved_model(original: Callable[..., Any], obj: Any, export_dir: Any, *args: Any, **kwargs: Any) -> Any:
    if _evaluators[0].may_write(export_dir):
        return original(obj, export_dir, *args, **kwargs)
    return _say_not_written(export_dir)


def _save_checkpoint(
    original: Callable[..., Any], saver: Any, file_prefix: Any, checkpoint_number: Any = None, *args: Any, **kwargs: Any
) -> Any:
    if _evaluators[0].may_write(file_prefix):
        return original(saver, file_prefix, checkpoint_number, *args, **kwargs)
    _say_not_written(file_prefix)
    return str(file_prefix) if checkpoint_number is None else f"{file_prefix}-{int(checkpoint_number)}"


def _write_checkpoint_state(original: Callable[..., Any], save_dir: Any, *args: Any, **kwargs: Any) -> None:
    if _evaluators[0].may_write(os.path.join(save_dir, "checkpoint")):
        original(save_dir, *args, **kwargs)


def _delete_checkpoint(original: Callable[..., Any], filespec: Any) -> None:
    if _evaluators[0].may_write(filespec):
        original(filespec)
