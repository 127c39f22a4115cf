"""On the chief: writes a checkpoint for the evaluator after every epoch of `fit`, and records when the training ends."""

import inspect
import logging
import threading
import uuid
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.strategies.checkpoint import data_position, save_order, strategy_state
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

    Raises:
        ClusterError: if the chief of another job that runs now writes there.
    """
    global _writer
    if expected:
        folder.lock()
    _strategies.append(strategy)
    _writer = _writer or _Writer(folder, expected)
    patches.FIT.patch(_fit)


def _fit(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    # The evaluator makes no call of `fit` within another, by a callback.
    if data_position.current() is not None or not any(model.distribute_strategy is one for one in _strategies):
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
        self._job = self._run
        self._fits = 0
        self._active = False
        self._unwritten: dict[int, dict[str, Any]] = {}  # What `write_fit` could not write, by call.
        if expected:
            self._or_warn(self._begin)

    def begin_fit(self) -> tuple[int, dict[str, Any]]:
        """Counts a call of `fit`, as the evaluator counts its calls.

        Returns:
            Its number, from 1, and where it stands: see `EvaluationFolder.write_fit`. An earlier run may have begun it.
        """
        self._fits += 1
        self._or_warn(self._is_wanted)  # From now on the job is known.
        earlier = self._folder.fit(self._fits) or {}
        if earlier.get("job") != self._job:
            earlier = {"later_than": max((each.written_ns for each in self._folder.checkpoints(self._fits)), default=0)}
        state = {"first": None, "last": None, "ended": False, "not_written": earlier.get("not_written", [])}
        state |= {"later_than": earlier.get("later_than", 0)}
        state |= {"reason": earlier.get("reason"), "since": earlier.get("since") or earlier.get("first")}
        self.write_fit(self._fits, state)
        return self._fits, state

    def save(self, fit: int, epoch: int | None, model: Any) -> str | None:
        """Writes the weights after `epoch` epochs; with None those at the end of `fit`.

        Returns:
            Why they could not be written, as a sentence, else None.
        """

        def save() -> None:
            if self._is_wanted():
                with strategy_state.left_out(), save_order.alone():
                    self._folder.save(fit, epoch, model.save_weights)

        return self._or_warn(save)

    def has_final(self, fit: int) -> bool:
        """Returns whether the file with the weights at the end of a call exists."""
        return self._folder.final(fit).exists()

    def write_fit(self, fit: int, state: dict[str, Any]) -> None:
        """Writes where call `fit` stands. See `EvaluationFolder.write_fit`."""

        def write() -> None:
            if self._is_wanted():
                self._folder.write_fit(fit, {"run": self._run, "job": self._job, **state})

        if self._or_warn(write):
            self._unwritten[fit] = state
        else:
            self._unwritten.pop(fit, None)

    def _is_wanted(self) -> bool:
        if not self._active and self._folder.is_announced():
            self._folder.lock(seconds=0.0)
            self._begin()
        return self._active

    def _begin(self) -> None:
        earlier, _ = self._folder.training() or ({}, 0)
        if earlier.get("status") in (RUNNING, FAILED):  # Its run was lost, and this one takes its place.
            self._job = earlier.get("job") or self._job
        self._write_training(RUNNING)
        self._active = True
        self._or_warn(lambda: self._folder.prepare_end(self._training(FINISHED) | {"is_complete": False}))
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
            for fit, state in list(self._unwritten.items()):
                self.write_fit(fit, state)
            if self._or_warn(lambda: self._write_training(FAILED if failed else FINISHED)) and not failed:
                self._or_warn(self._folder.write_prepared_end)
            self._or_warn(self._folder.forget_prepared_end)

        thread.start()
        at_program_end(end)

    def _training(self, status: str) -> dict[str, Any]:
        return {"run": self._run, "job": self._job, "status": status}

    def _write_training(self, status: str) -> None:
        self._folder.write_training(self._training(status))

    def _or_warn(self, write: Callable[[], object]) -> str | None:
        try:
            write()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            _log.warning("the evaluator misses what the chief cannot write to %s: %s", self._folder.base, reason)
            return reason
        return None


class _WriteCheckpoints(keras.callbacks.Callback):
    """One call of `fit`. It runs after the user's callbacks, so that it saves the weights as they leave them."""

    def __init__(self, writer: _Writer) -> None:
        super().__init__()
        self._writer = writer
        self._fit = 0
        self._state: dict[str, Any] = {}

    def on_train_begin(self, logs: Any = None) -> None:
        self._fit, self._state = self._writer.begin_fit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._state["last"] = epoch + 1
        self._state["first"] = self._state["first"] or epoch + 1
        if reason := self._writer.save(self._fit, epoch + 1, self.model):
            self._state["not_written"].append(epoch + 1)
            self._state["reason"] = reason
        self._writer.write_fit(self._fit, self._state)

    def on_train_end(self, logs: Any = None) -> None:
        # EarlyStopping and averaged weights may have changed them after the last epoch. A call that an earlier process has
        # finished has written its file, and the model may have later weights now.
        position = data_position.current()
        if position is None or not position.is_passed_over or not self._writer.has_final(self._fit):
            self._state["final_not_written"] = self._writer.save(self._fit, None, self.model)
        history = getattr(self.model, "history", None)  # None if the program gives `fit` a `CallbackList` without one.
        trained = {name: each for name, each in (history.history if history else {}).items() if not name.startswith("val_")}
        self._state["history"] = {name: [np.asarray(value).tolist() for value in values] for name, values in trained.items()}
        self._state["ended"] = True
        self._writer.write_fit(self._fit, self._state)
