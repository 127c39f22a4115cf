"""On the chief: writes a checkpoint for the evaluator after every epoch of `fit`, and records when the training ends."""

import inspect
import logging
import threading
import uuid
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist.strategies.checkpoint import strategy_state
from tfdist.strategies.evaluator.folder import FAILED, FINISHED, RUNNING, EvaluationFolder
from tfdist.strategies.keras_hooks.callbacks import with_callback
from tfdist.strategies.private_api import patches
from tfdist.strategies.runtime.program_end import at_program_end

TOUCH_SECONDS = 5.0
"""How often the chief shows that its program still runs."""

_log = logging.getLogger("tfdist")
_strategies: list[tf.distribute.Strategy] = []
_writer: "_Writer | None" = None


def install(strategy: tf.distribute.Strategy, folder: EvaluationFolder, expected: bool) -> None:
    """Makes `fit` of every model of `strategy` write checkpoints into `folder`.

    Args:
        strategy: the strategy of the chief. Those of all calls share the folder of the first.
        folder: the files that the chief and the evaluator share.
        expected: whether the cluster has an evaluator. If not, nothing is written until an evaluator has announced itself in
            `folder`: systems that keep evaluators out of `cluster` in TF_CONFIG (AI Platform, gcloud) do not announce them to
            the chief.
    """
    global _writer
    _strategies.append(strategy)
    _writer = _writer or _Writer(folder, expected)
    patches.FIT.patch(_fit)


def _fit(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    if not any(model.distribute_strategy is one for one in _strategies):
        return original(model, *args, **kwargs)
    assert _writer is not None
    bound = inspect.signature(original).bind(model, *args, **kwargs)
    callback = _WriteCheckpoints(_writer)
    bound.arguments["callbacks"] = with_callback(callback, model, bound.arguments.get("callbacks"))
    return original(*bound.args, **bound.kwargs)


class _Writer:
    """What the chief writes. No error of it ends the training."""

    def __init__(self, folder: EvaluationFolder, expected: bool) -> None:
        self._folder = folder
        self._run = uuid.uuid4().hex
        self._fits = 0
        self._active = False
        if expected:
            self._or_warn(self._begin)

    def begin_fit(self) -> int:
        """Counts a call of `fit`, as the evaluator counts its calls; returns its number, from 1."""
        self._fits += 1
        self._or_warn(lambda: self._write_fit(self._fits, first=None, last=None, ended=False))
        return self._fits

    def save(self, fit: int, epoch: int | None, first: int | None, model: Any) -> None:
        """Writes the weights after `epoch` epochs; with None those at the end of `fit`."""

        def save() -> None:
            if self._is_wanted():
                with strategy_state.left_out():
                    self._folder.save(fit, epoch, model.save_weights)
                if epoch is not None:
                    self._write_fit(fit, first=first, last=epoch, ended=False)

        self._or_warn(save)

    def end_fit(self, fit: int, first: int | None, last: int | None) -> None:
        """Records that a call of `fit` has returned."""
        self._or_warn(lambda: self._write_fit(fit, first=first, last=last, ended=True))

    def _write_fit(self, fit: int, **state: Any) -> None:
        if self._is_wanted():
            self._folder.write_fit(fit, {"run": self._run, **state})

    def _is_wanted(self) -> bool:
        if not self._active and self._folder.is_announced():
            self._begin()
        return self._active

    def _begin(self) -> None:
        self._folder.write_training(self._run, RUNNING)
        self._active = True
        ending = threading.Event()

        def touch() -> None:
            while not ending.wait(TOUCH_SECONDS):
                try:
                    self._folder.touch_training()
                except OSError:
                    pass  # The next touch may succeed.

        thread = threading.Thread(target=touch, name="tfdist-evaluator", daemon=True)

        def end(failed: bool) -> None:
            ending.set()
            thread.join()
            self._or_warn(lambda: self._folder.write_training(self._run, FAILED if failed else FINISHED))

        thread.start()
        at_program_end(end)

    def _or_warn(self, write: Callable[[], None]) -> None:
        try:
            write()
        except Exception as error:
            _log.warning("the evaluator misses a checkpoint: %s: %s", type(error).__name__, error)


class _WriteCheckpoints(keras.callbacks.Callback):
    """One call of `fit`. It runs after the user's callbacks, so that it saves the weights as they leave them."""

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
