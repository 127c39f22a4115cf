"""On the chief: after every epoch of `fit` writes a checkpoint for the evaluator, and tells it when training has ended."""

import atexit
import functools
import inspect
import logging
import os
import sys
import threading
import uuid
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist.strategies.checkpoint import strategy_state
from tfdist.strategies.evaluator.folder import FAILED, FINISHED, RUNNING, EvaluationFolder
from tfdist.strategies.private_api import TensorFlowTrainer

SIGN_OF_LIFE_SECONDS = 5.0

_log = logging.getLogger("tfdist")
_strategies: list[tf.distribute.Strategy] = []


def install(strategy: tf.distribute.Strategy, folder: EvaluationFolder, expected: bool) -> None:
    """Makes `fit` of every model of `strategy` write checkpoints into `folder`.

    Args:
        strategy: the chief's.
        folder: where the evaluator looks.
        expected: whether the cluster has an evaluator. If not, nothing is written until one has announced itself in `folder`:
            the systems that keep evaluators out of `cluster` in TF_CONFIG (AI Platform, gcloud) do not tell the chief of them.
    """
    _strategies.append(strategy)
    if len(_strategies) > 1:
        return  # The program has called tfdist.strategy() again.
    writer = _Writer(folder, expected)
    fit = TensorFlowTrainer.fit

    @functools.wraps(fit)
    def watched_fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not any(self.distribute_strategy is one for one in _strategies):
            return fit(self, *args, **kwargs)
        arguments = inspect.signature(fit).bind(self, *args, **kwargs)
        ours = _WriteCheckpoints(writer)
        ours.set_model(self)  # Keras does not, where the user gives a whole CallbackList.
        arguments.arguments["callbacks"] = _with(ours, arguments.arguments.get("callbacks"))
        return fit(*arguments.args, **arguments.kwargs)

    TensorFlowTrainer.fit = watched_fit


def _with(ours: keras.callbacks.Callback, callbacks: Any) -> Any:
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks.append(ours)
        return callbacks
    return [*(callbacks if isinstance(callbacks, list | tuple) else [callbacks] if callbacks else []), ours]


class _Writer:
    """What the chief writes. Nothing that goes wrong with it ends the training."""

    def __init__(self, folder: EvaluationFolder, expected: bool) -> None:
        self._folder = folder
        self._run = uuid.uuid4().hex
        self._fits = 0
        self._active = False
        if expected:
            self._harmlessly(self._begin)

    def begin_fit(self) -> int:
        """Counts a call of `fit`, as the evaluator counts its own; returns its number."""
        self._fits += 1
        self._harmlessly(lambda: self._tell(self._fits, first=None, last=None, ended=False))
        return self._fits

    def save(self, fit: int, epoch: int | None, first: int | None, model: Any) -> None:
        """Writes the weights after `epoch` epochs; None: those with which `fit` ends."""

        def save() -> None:
            if self._is_wanted():
                with strategy_state.left_out():
                    self._folder.save(fit, epoch, model.save_weights)
                if epoch is not None:
                    self._tell(fit, first=first, last=epoch, ended=False)

        self._harmlessly(save)

    def end_fit(self, fit: int, first: int | None, last: int | None) -> None:
        """Says that a call of `fit` has returned."""
        self._harmlessly(lambda: self._tell(fit, first=first, last=last, ended=True))

    def _tell(self, fit: int, **state: Any) -> None:
        if self._is_wanted():
            self._folder.write_fit(fit, {"run": self._run, **state})

    def _is_wanted(self) -> bool:
        if not self._active and self._folder.is_announced():
            self._begin()
        return self._active

    def _begin(self) -> None:
        self._folder.write_training(self._run, RUNNING)
        self._active = True
        ending, chief = threading.Event(), os.getpid()

        def live() -> None:
            while not ending.wait(SIGN_OF_LIFE_SECONDS):
                try:
                    self._folder.touch_training()
                except OSError:
                    pass  # The next sign of life may get through.

        thread = threading.Thread(target=live, name="tfdist-evaluator", daemon=True)

        def end() -> None:
            if os.getpid() != chief:
                return  # A forked child of the program ends, not the program.
            ending.set()
            thread.join()
            # The interpreter records an exception that ended the program before it calls exit functions.
            status = FAILED if getattr(sys, "last_type", None) else FINISHED
            self._harmlessly(lambda: self._folder.write_training(self._run, status))

        thread.start()
        atexit.register(end)

    def _harmlessly(self, write: Callable[[], None]) -> None:
        try:
            write()
        except Exception as error:
            _log.warning("the evaluator misses a checkpoint: %s: %s", type(error).__name__, error)


class _WriteCheckpoints(keras.callbacks.Callback):
    """One call of `fit`. It stands behind the user's callbacks, so that it saves what they leave."""

    def __init__(self, writer: _Writer) -> None:
        super().__init__()
        self._writer = writer
        self._fit = 0
        self._first: int | None = None
        self._last: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        self._fit = self._writer.begin_fit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._last = epoch + 1
        self._first = self._first or self._last
        self._writer.save(self._fit, self._last, self._first, self.model)

    def on_train_end(self, logs: Any = None) -> None:
        # EarlyStopping and averaged weights may have changed them after the last epoch.
        self._writer.save(self._fit, None, self._first, self.model)
        self._writer.end_fit(self._fit, self._first, self._last)
