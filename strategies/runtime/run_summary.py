"""What the launcher's summary shows of the training: steps, examples, metrics. The chief writes it to a file.

The launcher asks for it with TFDIST_REPORT: the path of that file, or nothing on the tasks that train together with the chief.
Without TFDIST_REPORT nothing here counts.
"""

import contextlib
import inspect
import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from tfdist.json_values import replace_file
from tfdist.process_cluster import is_measured
from tfdist.strategies.keras_hooks.callbacks import with_callback
from tfdist.strategies.private_api import patches
from tfdist.strategies.runtime import measured_fit, preemption
from tfdist.strategies.runtime.fit_progress import FitProgress, close_all
from tfdist.strategies.runtime.program_end import at_program_end

ENDED_SUFFIX = ".ended"
"""The file that says that the program has finished is beside the report, with this at the end of its name."""

_summary: dict[str, Any] = {"steps": 0, "examples": 0.0, "fit_seconds": 0.0, "metrics": {}, "history": {}}
_path = ""
_counts_steps = False  # Whether the launcher wants to know the steps while they are made (launch/jobs/fault_injection.py).
_steps = 0
_is_measured = False  # For `tfdist plan`.


class _Count(keras.callbacks.Callback):
    """Counts steps and examples of a `fit`."""

    tfdist_reads_batches = False  # See keras_hooks/trainer.py.

    def __init__(self) -> None:
        super().__init__()
        self._epoch_steps = 0
        self._counted = False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch_steps, self._counted = 0, False

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._epoch_steps = batch + 1
        if _counts_steps:
            _note_step()

    def on_test_begin(self, logs: Any = None) -> None:
        self._count_examples()  # Validation is about to reset the counter.

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._count_examples()
        steps = self.params.get("steps")  # The last execution may have fewer steps than `steps_per_execution`.
        _summary["steps"] += min(self._epoch_steps, steps) if steps else self._epoch_steps

    def _count_examples(self) -> None:
        tracker = getattr(self.model, "_loss_tracker", None)
        if not self._counted and tracker is not None:
            self._counted = True
            _summary["examples"] += float(tracker.count.numpy())  # Keras weights the mean loss by examples.


def install() -> None:
    """Makes `fit` and `evaluate` of every Keras model write the summary, if the launcher has asked for it.

    Every task of the launcher counts, and the task with a path writes: all tasks that train together have to read a metric, or
    none. The signals that save a backup work with and without the launcher. Their callback runs after the one that counts.
    """
    preemption.install()
    global _path, _counts_steps, _is_measured
    if "TFDIST_REPORT" in os.environ:
        _path = os.environ.pop("TFDIST_REPORT")
        _counts_steps = bool(os.environ.pop("TFDIST_COUNT_STEPS", "") and _path)
        _is_measured = is_measured()
        at_program_end(lambda failed: None if failed else close_all())
        patches.FIT.patch(_fit)
        patches.EVALUATE.patch(_evaluate)


def note_end() -> None:
    """Makes this process say that its program has finished, before exit functions that were registered earlier.

    They may take seconds, in which the launcher may lose tasks that nobody needs any more.
    """
    if path := _path:
        at_program_end(lambda failed: None if failed else _say_ended(path))


def _say_ended(path: str) -> None:
    with contextlib.suppress(OSError):
        replace_file(f"{path}{ENDED_SUFFIX}", True)


# Replacements. The first parameter is the function that they replace.


def _fit(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    bound = inspect.signature(original).bind(model, *args, **kwargs)
    if _is_measured:
        measured_fit.change(bound.arguments)
    given = bound.arguments.get("callbacks")
    callbacks = with_callback(_Count(), model, given)
    if _is_measured:
        callbacks = with_callback(measured_fit.Endless(), model, callbacks)
    progress = FitProgress(_path, _summary) if _path else None
    if progress is not None:
        callbacks = with_callback(progress, model, callbacks)
        if _is_measured:
            callbacks = with_callback(measured_fit.MeasuredFit(_path, bound.arguments), model, callbacks)
    bound.arguments["callbacks"] = callbacks
    begin = time.monotonic()
    try:
        history = original(*bound.args, **bound.kwargs)
    except Exception:  # The program may catch it. What ends the program leaves the progress as it was.
        if progress is not None:
            progress.close()
        raise
    if _is_measured:
        measured_fit.end()
    seconds = time.monotonic() - begin
    with _or_warn():
        _summary["fit_seconds"] += seconds
        last = {name: _plain(values[-1]) for name, values in history.history.items() if values}
        _summary["history"], _summary["metrics"] = last, dict(last)
        _write()
    return history


def _evaluate(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    result = original(model, *args, **kwargs)
    if not kwargs.get("_use_cached_eval_dataset"):  # Otherwise this is the validation of a `fit`.
        with _or_warn():
            _summary["metrics"].update({name: _plain(value) for name, value in model.get_metrics_result().items()})
            _write()
    return result


@contextlib.contextmanager
def _or_warn() -> Iterator[None]:
    """Turns an error into a warning: a missing summary must not end a training that has succeeded."""
    try:
        yield
    except Exception:
        logging.getLogger("tfdist").warning("the summary of this training is incomplete", exc_info=True)


def _plain(value: Any) -> Any:
    """Returns a value as JSON: a number, or nested lists or dicts of numbers for a metric with several values."""
    if isinstance(value, dict):  # A user's own train_step may return a metric's dict.
        return {name: _plain(each) for name, each in value.items()}
    return np.asarray(value).tolist()


def _write() -> None:
    if _path:
        replace_file(_path, _summary)


def _note_step() -> None:
    global _steps
    _steps += 1
    with contextlib.suppress(OSError), open(f"{_path}.steps", "w", encoding="utf-8") as file:
        file.write(str(_steps))  # A full disk must not end the training: the launcher counts on with a later step.
