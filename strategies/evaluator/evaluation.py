"""The evaluations of one call of `fit`: loads each checkpoint, evaluates it, writes the metrics."""

import inspect
import logging
import os
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfdist.strategies.evaluator.folder import Checkpoint
from tfdist.strategies.evaluator.progress import Progress
from tfdist.strategies.keras_hooks.callbacks import listed
from tfdist.strategies.keras_hooks.held_optimizers import adopt_optimizer
from tfdist.strategies.private_api import train_validation_split

_log = logging.getLogger("tfdist")


def validation_of(arguments: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the arguments of `evaluate` for the validation that `fit` would do; None if it has no validation data.

    Args:
        arguments: all arguments of `fit`, by name.

    Raises:
        ValueError: if the validation data is a generator that ends.
    """
    data, split = arguments["validation_data"], arguments["validation_split"]
    if data is None and split:
        _, data = train_validation_split((arguments["x"], arguments["y"], arguments["sample_weight"]), validation_split=split)
    if data is None:
        return None
    if inspect.isgenerator(data) and arguments["validation_steps"] is None:
        raise ValueError(
            "the validation data is a generator, which can be read only once; pass an array, a tf.data.Dataset, a "
            "PyDataset, or validation_steps with a generator that has no end"
        )
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    return {
        "x": x,
        "y": y,
        "sample_weight": sample_weight,
        "batch_size": arguments["validation_batch_size"] or arguments["batch_size"],
        "steps": arguments["validation_steps"],
    }


class Evaluations:
    """What one call of `fit` evaluates."""

    def __init__(
        self,
        name: str,
        strategy: tf.distribute.Strategy,
        own_folder: Path,
        progress: Progress,
        model: Any,
        fit: int,
        validation: dict[str, Any] | None,
        arguments: dict[str, Any],
    ) -> None:
        """Begins without any evaluation.

        Args:
            name: the task.
            strategy: the strategy of the model.
            own_folder: the folder that the evaluator writes to.
            progress: what has been evaluated so far.
            model: the compiled model.
            fit: the number of the call, from 1.
            validation: the arguments of `evaluate`; None without validation data.
            arguments: the arguments of `fit`, by name.
        """
        self._name = name
        self._strategy = strategy
        self._progress = progress
        self._model = model
        self._validation = validation
        self._fit = fit
        self._verbose = arguments["verbose"] not in (0, False)
        callbacks = listed(arguments["callbacks"])
        # `evaluate` calls only their on_test_… methods.
        self._callbacks = [callback for callback in callbacks if not _is_chiefs(callback)]
        self._exports = [c for c in callbacks if isinstance(c, keras.callbacks.ModelCheckpoint) and _exports_best(c)]
        for position, callback in enumerate(self._exports):
            file = os.path.basename(callback.filepath)
            earlier = [os.path.basename(other.filepath) for other in self._exports[:position]]
            callback.filepath = str(own_folder / (f"{position}-{file}" if file in earlier else file))
            callback.save_freq = "epoch"
            callback.set_model(model)
        boards = [callback.log_dir for callback in callbacks if isinstance(callback, keras.callbacks.TensorBoard)]
        self._board = os.path.join(boards[0], own_folder.name) if boards else str(own_folder)
        self._writer: Any = None

    def build(self) -> bool:
        """Makes the variables of model and optimizer, which have to exist before a file is loaded; returns whether it could."""
        model = self._model
        if model.optimizer is not None and model.distribute_strategy is self._strategy:
            adopt_optimizer(model.optimizer, self._strategy)  # `compile` may have been outside of the scope.
        if not model.built:
            if self._validation is None:
                _log.warning("%s: the model has no shapes yet and keeps its first weights", self._name)
                return False
            model.evaluate(**{**self._validation, "steps": 1}, verbose=0)
        if model.optimizer is not None and not model.optimizer.built:
            with self._strategy.scope():
                model.optimizer.build(model.trainable_variables)
        return True

    def continue_bests(self, job: str | None) -> None:
        """Lets the ModelCheckpoints go on from the best values of `job`, which may be from before a restart."""
        for callback, best in zip(self._exports, self._progress.bests(self._fit, job), strict=False):
            callback.best = callback.best if best is None else best

    def evaluate(self, checkpoint: Checkpoint, run: str | None, job: str | None) -> None:
        """Evaluates one checkpoint and records the result when all of it is written. A deleted checkpoint is left out."""
        assert self._validation is not None
        self.build()
        model = self._model
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
        val_logs = {f"val_{name}": value for name, value in logs.items()}
        self.continue_bests(job)
        for callback in self._exports:
            callback.on_epoch_begin(epoch)
            callback.on_epoch_end(epoch, val_logs)
        if self._verbose:
            values = ", ".join(f"{name} {value:.4f}" for name, value in val_logs.items())
            print(f"epoch {checkpoint.epoch}: {values}", flush=True)
        bests = [None if callback.best is None else float(callback.best) for callback in self._exports]
        self._progress.add(checkpoint, run, job, iterations, logs, bests)

    def history(self, job: str | None) -> keras.callbacks.History:
        """Returns all evaluations of `job`, also those before this process was started, as the result of `fit`."""
        history = keras.callbacks.History()
        history.set_model(self._model)
        history.on_train_begin()
        for entry in self._progress.evaluated(self._fit, job):
            history.on_epoch_end(entry["epoch"] - 1, {f"val_{name}": value for name, value in entry["logs"].items()})
        return history

    def _write(self, epoch: int, iterations: int | None, logs: dict[str, float]) -> None:
        """Writes the tags and steps that Keras' TensorBoard callback writes for validation, so that the curves share plots."""
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
    """Writes what `tf.summary.scalar` writes. That function needs the package tensorboard; this one only TensorFlow."""
    scalars = tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars")
    tf.summary.write(tag, tf.constant(value), step, tf.compat.v1.SummaryMetadata(plugin_data=scalars))


def _is_chiefs(callback: Any) -> bool:
    """Returns whether a callback is left out of `evaluate`, because the chief has done what it would do.

    Of Keras' callbacks TensorBoard alone writes files there, the chief's. With `swap_on_epoch` SwapEMAWeights leaves the
    averaged weights in the model at the end of an epoch, and so in its checkpoint. It would swap them for the others.
    """
    swaps = isinstance(callback, keras.callbacks.SwapEMAWeights) and callback.swap_on_epoch
    return swaps or isinstance(callback, keras.callbacks.TensorBoard)


def _exports_best(callback: Any) -> bool:
    return bool(callback.save_best_only) and str(callback.monitor).startswith("val_")
