"""What the launcher's summary says about the training: steps, examples, metrics; written by the chief to a file.

Nothing of this happens unless the launcher asks for it with TFDIST_REPORT: the path of that file, or nothing on the tasks that
train together with the one that writes it.
"""

import contextlib
import functools
import inspect
import json
import logging
import os
import time
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from tfdist.strategies.private_api import TensorFlowTrainer

_report: dict[str, Any] = {"steps": 0, "examples": 0.0, "fit_seconds": 0.0, "metrics": {}, "history": {}}


class _Count(keras.callbacks.Callback):
    """Counts steps and examples of a `fit`."""

    def __init__(self) -> None:
        super().__init__()
        self._epoch_steps = 0
        self._counted = False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch_steps, self._counted = 0, False

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._epoch_steps = batch + 1

    def on_test_begin(self, logs: Any = None) -> None:
        self._count_examples()  # Validation is about to reset the counter.

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._count_examples()
        steps = self.params.get("steps")  # The last execution may hold fewer steps than `steps_per_execution`.
        _report["steps"] += min(self._epoch_steps, steps) if steps else self._epoch_steps

    def _count_examples(self) -> None:
        tracker = getattr(self.model, "_loss_tracker", None)
        if not self._counted and tracker is not None:
            self._counted = True
            _report["examples"] += float(tracker.count.numpy())  # Keras weights the mean loss by examples.


def install() -> None:
    """Makes `fit` and `evaluate` of every Keras model write the report, when the launcher has asked for it.

    Under the launcher every task counts, but only the one that has TFDIST_REPORT writes: where several tasks train together,
    a metric can be read by all of them or none.
    """
    if "TFDIST_REPORT" not in os.environ:
        return
    path = os.environ.pop("TFDIST_REPORT")
    fit, evaluate = TensorFlowTrainer.fit, TensorFlowTrainer.evaluate

    @functools.wraps(fit)
    def reported_fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        arguments = inspect.signature(fit).bind(self, *args, **kwargs)
        arguments.arguments["callbacks"] = _with_count(arguments.arguments.get("callbacks"))
        begin = time.monotonic()
        history = fit(*arguments.args, **arguments.kwargs)
        seconds = time.monotonic() - begin
        with _harmless():
            _report["fit_seconds"] += seconds
            last = {name: _plain(values[-1]) for name, values in history.history.items() if values}
            _report["history"], _report["metrics"] = last, dict(last)
            _write(path)
        return history

    @functools.wraps(evaluate)
    def reported_evaluate(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = evaluate(self, *args, **kwargs)
        if not kwargs.get("_use_cached_eval_dataset"):  # That is the validation of a `fit`.
            with _harmless():
                _report["metrics"].update({name: _plain(value) for name, value in self.get_metrics_result().items()})
                _write(path)
        return result

    TensorFlowTrainer.fit, TensorFlowTrainer.evaluate = reported_fit, reported_evaluate


@contextlib.contextmanager
def _harmless() -> Iterator[None]:
    """A report that cannot be made must not end a training that has succeeded."""
    try:
        yield
    except Exception:
        logging.getLogger("tfdist").warning("the summary of this training is incomplete", exc_info=True)


def _with_count(callbacks: Any) -> Any:
    if isinstance(callbacks, keras.callbacks.CallbackList):
        if not any(isinstance(callback, _Count) for callback in callbacks.callbacks):
            callbacks.append(_Count())
        return callbacks
    return [*(callbacks if isinstance(callbacks, list | tuple) else [callbacks] if callbacks else []), _Count()]


def _plain(value: Any) -> Any:
    """A number, or nested lists or dicts of numbers for a metric with several values, as JSON can hold them."""
    if isinstance(value, dict):  # An own train_step that returns a metric's dict.
        return {name: _plain(each) for name, each in value.items()}
    return np.asarray(value).tolist()


def _write(path: str) -> None:
    if not path:
        return
    partial = f"{path}.part"
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(_report, file)
    os.replace(partial, path)
