"""The evaluator: the same program, in which `fit` does not train but evaluates every checkpoint that the chief writes.

It has no part in the training cluster. It reads files (evaluator/folder.py), at a low priority, and writes metrics where
TensorBoard sees them beside the training curves. Keras 2 had `SidecarEvaluator` for this; Keras 3 has nothing.
"""

import atexit
import functools
import inspect
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfdist.choice import choose
from tfdist.cluster import Cluster, Task
from tfdist.strategies.evaluator.folder import EvaluationFolder
from tfdist.strategies.evaluator.progress import Progress, Training
from tfdist.strategies.keras_hooks import trainer
from tfdist.strategies.private_api import TensorFlowTrainer, train_validation_split
from tfdist.strategies.runtime.server import EXIT_CHIEF_FAILED

POLL_SECONDS = 1.0

NICENESS = 10
"""Added to the priority of this process, so that on a shared machine the training comes first."""

_log = logging.getLogger("tfdist")


class Evaluator(tf.distribute.OneDeviceStrategy):
    """One device, and `fit` evaluates. Made by `create`."""

    def __init__(self, cluster: Cluster, task: Task, start_timeout: float) -> None:
        super().__init__("/gpu:0" if tf.config.list_physical_devices("GPU") else "/cpu:0")
        folder = EvaluationFolder.of(cluster)
        self.tfdist_name = task.name
        self._tfdist_own = folder.own(task.index)
        self._tfdist_state = Progress(self._tfdist_own / "state.json")
        self._tfdist_training = Training(folder, self._tfdist_state, start_timeout)
        self._tfdist_folder = folder
        self._tfdist_fits = 0
        # Under TensorFlow's default strategy the chief cannot tell a model made inside the scope from another; nor can this.
        self._tfdist_takes_all = not cluster.partial and choose(cluster).strategy == "default"
        atexit.register(self._tfdist_end)

    def tfdist_has(self, model: Any) -> bool:
        """Whether the chief trains `model` under the cluster's strategy, and this process therefore only evaluates it."""
        return model.distribute_strategy is self or (self._tfdist_takes_all and model._distribute_strategy is None)

    def experimental_distribute_dataset(self, dataset: tf.data.Dataset, options: Any = None) -> tf.data.Dataset:
        """The dataset itself. With TensorFlow's distributed one the end was seen to crash."""
        return dataset

    def tfdist_may_write(self, path: Any) -> bool:
        """Whether `path` is in the evaluator's own folder; what the program saves elsewhere is the chief's."""
        return not isinstance(path, str | os.PathLike) or self._tfdist_own in Path(path).absolute().parents

    def tfdist_fit(self, model: Any, arguments: dict[str, Any]) -> keras.callbacks.History:
        """Evaluates each checkpoint of this call of `fit` until the chief's call has returned.

        Args:
            model: the model, compiled.
            arguments: what the program gave to `fit`, by name.

        Returns:
            `History` with `val_` metrics, an entry per checkpoint, those evaluated before a restart included. The model has the
            weights with which the chief's `fit` returned.

        Raises:
            SystemExit: with 75, when the chief's program has failed, or has been gone for 2 minutes.
            ValueError: for a generator as validation data, which can be read only once.
        """
        self._tfdist_fits += 1
        fit = self._tfdist_fits
        validation = _validation(arguments)
        evaluations = _Evaluations(self, model, fit, validation, arguments)
        if validation is None:
            _log.warning("%s: fit has no validation data, so nothing is evaluated; it waits for the weights", self.tfdist_name)
        told: set[int] = set()
        while True:
            # What the chief says is read before the checkpoints are: it says that it has ended after the last of them.
            status = self._tfdist_training.look(fit)
            waiting = self._tfdist_state.not_evaluated(self._tfdist_folder.checkpoints(fit)) if validation else []
            self._tfdist_tell_missed(fit, told)
            if waiting:
                evaluations.evaluate(waiting[0])
            elif status.has_ended:
                break
            elif status.why_not_wait:
                _log.error("%s ends: %s", self.tfdist_name, status.why_not_wait)
                raise SystemExit(EXIT_CHIEF_FAILED)
            else:
                time.sleep(POLL_SECONDS)
        evaluations.close()
        final = self._tfdist_folder.final(fit)
        if final is not None and evaluations.build():
            model.load_weights(final)
        return evaluations.history()

    def _tfdist_tell_missed(self, fit: int, told: set[int]) -> None:
        missed = [epoch for epoch in self._tfdist_training.missed(fit) if epoch not in told]
        if missed:
            told.update(missed)
            epochs = ", ".join(map(str, missed))
            _log.warning("%s: deleted before it could be evaluated: the checkpoint after epoch %s", self.tfdist_name, epochs)

    def _tfdist_end(self) -> None:
        if not getattr(sys, "last_type", None):  # The interpreter's record of an exception that ended the program.
            self._tfdist_training.done()


def create(cluster: Cluster, task: Task, start_timeout: float) -> Evaluator:
    """Returns the strategy of the evaluator `task` and makes Keras' `fit` evaluate under it.

    Raises:
        ClusterError: where no folder is named in which it could meet the chief.
    """
    EvaluationFolder.of(cluster)
    _give_way()  # Before TensorFlow starts its threads, which inherit it.
    strategy = Evaluator(cluster, task, start_timeout)
    trainer.install()
    _install(strategy)
    return strategy


def _give_way() -> None:
    os.nice(NICENESS)
    if os.getsid(0) != os.getpid():
        return
    # Where Linux groups processes by session (sched(7), "The autogroup feature"), as desktops and many servers do, niceness
    # counts inside a session only; the launcher gives each task a session of its own.
    try:
        Path("/proc/self/autogroup").write_text(str(NICENESS), encoding="ascii")
    except OSError:
        pass  # This kernel does not group.


def _install(strategy: Evaluator) -> None:
    """Hooks `fit`, and what would write files that are the chief's. In this process only, for this strategy's models only."""
    fit, train_on_batch = TensorFlowTrainer.fit, TensorFlowTrainer.train_on_batch

    @functools.wraps(fit)
    def evaluating_fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not strategy.tfdist_has(self):
            return fit(self, *args, **kwargs)
        bound = inspect.signature(fit).bind(self, *args, **kwargs)
        bound.apply_defaults()
        return strategy.tfdist_fit(self, bound.arguments)

    @functools.wraps(train_on_batch)
    def refused_train_on_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not strategy.tfdist_has(self):
            return train_on_batch(self, *args, **kwargs)
        raise RuntimeError(
            f"{strategy.tfdist_name} evaluates what `fit` trains, and this program trains with train_on_batch; "
            "train with fit, or leave the evaluator out of the cluster"
        )

    TensorFlowTrainer.fit, TensorFlowTrainer.train_on_batch = evaluating_fit, refused_train_on_batch
    for name in ("save", "save_weights", "export"):
        setattr(keras.Model, name, _only_own(getattr(keras.Model, name), strategy))


def _only_own(save: Any, strategy: Evaluator) -> Any:
    @functools.wraps(save)
    def save_own(self: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        if strategy.tfdist_has(self) and not strategy.tfdist_may_write(filepath):
            _log.warning("%s does not write %s: the chief does", strategy.tfdist_name, filepath)
            return None
        return save(self, filepath, *args, **kwargs)

    return save_own


def _validation(arguments: dict[str, Any]) -> dict[str, Any] | None:
    """The arguments of `evaluate` for the validation that `fit` would do; None where it has no validation data."""
    data, split = arguments["validation_data"], arguments["validation_split"]
    if data is None and split:
        _, data = train_validation_split((arguments["x"], arguments["y"], arguments["sample_weight"]), validation_split=split)
    if data is None:
        return None
    if inspect.isgenerator(data) and arguments["validation_steps"] is None:
        raise ValueError("the validation data is a generator, which can be read once only; give an array, a tf.data.Dataset, a "
                         "PyDataset, or validation_steps with a generator that has no end")  # fmt: skip
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    return {
        "x": x,
        "y": y,
        "sample_weight": sample_weight,
        "batch_size": arguments["validation_batch_size"] or arguments["batch_size"],
        "steps": arguments["validation_steps"],
    }


class _Evaluations:
    """One call of `fit` on the evaluator."""

    def __init__(self, strategy: Evaluator, model: Any, fit: int, validation: Any, arguments: dict[str, Any]) -> None:
        self._strategy = strategy
        self._model = model
        self._validation = validation
        self._fit = fit
        self._has_bests = False
        self._verbose = arguments["verbose"] not in (0, False)
        self._state: Progress = strategy._tfdist_state
        callbacks = arguments["callbacks"]
        callbacks = callbacks.callbacks if isinstance(callbacks, keras.callbacks.CallbackList) else callbacks or []
        callbacks = list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks]
        own = strategy._tfdist_own
        # `evaluate` calls their on_test_… only, in which none of Keras' writes files but TensorBoard, as if for the chief.
        self._callbacks = [callback for callback in callbacks if not isinstance(callback, keras.callbacks.TensorBoard)]
        self._exports = [c for c in callbacks if isinstance(c, keras.callbacks.ModelCheckpoint) and _exports_best(c)]
        for position, callback in enumerate(self._exports):
            name = os.path.basename(callback.filepath)
            earlier = [os.path.basename(other.filepath) for other in self._exports[:position]]
            callback.filepath = str(own / (f"{position}-{name}" if name in earlier else name))
            callback.save_freq = "epoch"
            callback.set_model(model)
        boards = [callback.log_dir for callback in callbacks if isinstance(callback, keras.callbacks.TensorBoard)]
        self._board = os.path.join(boards[0], own.name) if boards else str(own)
        self._writer: Any = None

    def build(self) -> bool:
        """Makes the variables of model and optimizer, which a file can only be loaded into when they exist."""
        model = self._model
        if not model.built:
            if self._validation is None:
                _log.warning("%s: the model has no shapes yet and keeps its first weights", self._strategy.tfdist_name)
                return False
            model.evaluate(**{**self._validation, "steps": 1}, verbose=0)
        if model.optimizer is not None and not model.optimizer.built:
            with self._strategy.scope():
                model.optimizer.build(model.trainable_variables)
        return True

    def evaluate(self, checkpoint: Any) -> None:
        """Evaluates one checkpoint, unless it is deleted meanwhile, and remembers the result when all of it is written."""
        self.build()
        model, strategy = self._model, self._strategy
        try:
            model.load_weights(checkpoint.path)
        except OSError:
            if checkpoint.path.exists():
                raise
            return
        logs = model.evaluate(**self._validation, callbacks=list(self._callbacks), verbose=0, return_dict=True)
        logs = {name: float(value) for name, value in logs.items() if tf.rank(value) == 0}
        iterations = None if model.optimizer is None else int(model.optimizer.iterations.numpy())
        epoch = checkpoint.epoch - 1  # As Keras counts.
        self._write(epoch, iterations, logs)
        named = {f"val_{name}": value for name, value in logs.items()}
        run = strategy._tfdist_training.run
        if not self._has_bests:
            self._has_bests = True
            for position, callback in enumerate(self._exports):
                best = self._state.best(self._fit, position, run)
                callback.best = callback.best if best is None else best
        for callback in self._exports:
            callback.on_epoch_begin(epoch)
            callback.on_epoch_end(epoch, named)
        if self._verbose:
            told = ", ".join(f"{name} {value:.4f}" for name, value in named.items())
            print(f"epoch {checkpoint.epoch}: {told}", flush=True)
        bests = [None if callback.best is None else float(callback.best) for callback in self._exports]
        self._state.add(checkpoint, run, iterations, logs, bests)

    def history(self) -> keras.callbacks.History:
        """What `fit` returns: everything that was evaluated in this job, also before this process was started."""
        history = keras.callbacks.History()
        history.set_model(self._model)
        history.on_train_begin()
        for entry in self._state.evaluated(self._fit, self._strategy._tfdist_training.run):
            history.on_epoch_end(entry["epoch"] - 1, {f"val_{name}": value for name, value in entry["logs"].items()})
        return history

    def _write(self, epoch: int, iterations: int | None, logs: dict[str, float]) -> None:
        """As Keras' TensorBoard callback does for validation, tag for tag and step for step, so that the curves share plots."""
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(self._board)
        with self._writer.as_default():
            for name, value in logs.items():
                _write_scalar(f"epoch_{name}", value, epoch)
                if iterations is not None:
                    _write_scalar(f"evaluation_{name}_vs_iterations", value, iterations)
        self._writer.flush()

    def close(self) -> None:
        """Closes the event file."""
        if self._writer is not None:
            self._writer.close()


def _write_scalar(tag: str, value: float, step: int) -> None:
    """What `tf.summary.scalar` writes, which needs the package tensorboard; TensorFlow itself does not."""
    scalars = tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars")
    tf.summary.write(tag, tf.constant(value), step, tf.compat.v1.SummaryMetadata(plugin_data=scalars))


def _exports_best(callback: Any) -> bool:
    return bool(callback.save_best_only) and str(callback.monitor).startswith("val_")
