"""The one place where Keras and the strategies meet.

Keras 3 builds its train, test and predict functions for strategies that run in one process, and some of them fail even there.
`install()` makes Keras' trainer ask the strategy for what it does better itself, for models made under such a strategy's scope
only; every other model is trained by Keras' own code. No file of Keras is changed.
"""

import functools
import inspect
import logging
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import keras
import tensorflow as tf

from tfdist.strategies.keras_hooks.interface import Logs, hooks_of
from tfdist.strategies.private_api import TensorFlowTrainer, TFEpochIterator

_log = logging.getLogger("tfdist")


def with_metrics(logs: Logs, metrics: dict[str, Any]) -> Logs:
    """`logs` of a step, flat, with the values of `metrics` for those names in them that are metrics of the model."""
    if not isinstance(logs, dict):
        return logs
    flat: dict[str, Any] = {}
    for name, value in logs.items():
        flat.update(value if isinstance(value, dict) else {name: value})
    return {name: metrics.get(name, value) for name, value in flat.items()}


def check_optimizer(model: Any, strategy: tf.distribute.Strategy) -> None:
    """Raises ValueError when the optimizer of `model` was made outside the scope of `strategy`."""
    if getattr(model.optimizer, "_distribution_strategy", strategy) is not strategy:
        raise ValueError(
            f"the optimizer of {model.name} was made outside the strategy's scope; make it, and call compile, "
            "inside `with strategy.scope():`"
        )


def install() -> None:
    """Makes Keras' TensorFlow trainer ask a model's strategy for its functions. Calling it again does nothing."""
    if getattr(TensorFlowTrainer, "_tfdist_installed", False):
        return
    TensorFlowTrainer._tfdist_installed = True
    make_function = TensorFlowTrainer._make_function
    make_predict_function = TensorFlowTrainer.make_predict_function
    result_or_logs = TensorFlowTrainer._get_metrics_result_or_logs
    reset_metrics = TensorFlowTrainer.reset_metrics

    @functools.wraps(make_function)
    def _make_function(self: Any, step_function: Callable[..., Any]) -> Any:
        if (hooks := hooks_of(self.distribute_strategy)) is not None:
            return hooks.step_function(self, step_function)
        if self._distribute_strategy is None:
            _log.warning("%s was made outside the strategy's scope and trains in this process alone", self.name)
        return make_function(self, step_function)

    @functools.wraps(make_predict_function)
    def _make_predict_function(self: Any, force: bool = False) -> None:
        hooks = hooks_of(self.distribute_strategy)
        if hooks is None:
            make_predict_function(self, force)
        elif self.predict_function is None or force:
            self.predict_function = hooks.predict_function(self)

    @functools.wraps(result_or_logs)
    def _get_metrics_result_or_logs(self: Any, logs: Logs) -> Logs:
        if (hooks := hooks_of(self.distribute_strategy)) is not None:
            logs = hooks.end_epoch(self, logs)
            if logs:
                return logs
        return result_or_logs(self, logs)

    @functools.wraps(reset_metrics)
    def _reset_metrics(self: Any) -> None:
        if (hooks := hooks_of(self.distribute_strategy)) is not None:
            hooks.reset_metrics()
        reset_metrics(self)

    TensorFlowTrainer._make_function = _make_function
    TensorFlowTrainer.reset_metrics = _reset_metrics
    TensorFlowTrainer.make_predict_function = _make_predict_function
    TensorFlowTrainer._get_metrics_result_or_logs = _get_metrics_result_or_logs
    _ask_for_data()
    _ask_for_callbacks()


def _ask_for_data() -> None:
    """Lets a strategy give what Keras iterates, and what it learns the shapes of a model from."""
    init, symbolic_build = TFEpochIterator.__init__, TensorFlowTrainer._maybe_symbolic_build

    @functools.wraps(init)
    def __init__(self: Any, distribute_strategy: Any = None, *args: Any, **kwargs: Any) -> None:
        hooks = hooks_of(distribute_strategy)
        giver = distribute_strategy
        if hooks is not None:
            hooks.check_data(kwargs.get("x"))
            # Keras asks its argument for nothing but this.
            giver = SimpleNamespace(experimental_distribute_dataset=hooks.batch_source)
        init(self, giver, *args, **kwargs)
        self._distribute_strategy = distribute_strategy
        if hasattr(self._distributed_dataset, "steps_per_epoch"):
            steps, execution = self.steps_per_epoch, self.steps_per_execution
            # Keras runs whole executions.
            self._distributed_dataset.steps_per_epoch = steps and math.ceil(steps / execution) * execution
            self._distributed_dataset.batches_per_epoch = self.num_batches

    @functools.wraps(symbolic_build)
    def _maybe_symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        hooks = hooks_of(self._distribute_strategy)
        if hooks is not None and iterator is not None:
            iterator, data_batch = None, hooks.example_batch(iterator._distributed_dataset)
        symbolic_build(self, iterator, data_batch)

    TFEpochIterator.__init__ = __init__
    TensorFlowTrainer._maybe_symbolic_build = _maybe_symbolic_build


def _ask_for_callbacks() -> None:
    """Lets a strategy leave out callbacks, and the progress bar, in a task where they have no place."""
    init = keras.callbacks.CallbackList.__init__

    @functools.wraps(init)
    def __init__(self: Any, callbacks: Any = None, *args: Any, **kwargs: Any) -> None:
        arguments = inspect.signature(init).bind(self, callbacks, *args, **kwargs)
        strategy = getattr(arguments.arguments.get("model"), "distribute_strategy", None)
        if (hooks := hooks_of(strategy)) is not None:
            arguments.arguments["callbacks"] = hooks.callbacks(tf.nest.flatten(callbacks) if callbacks else [])
            if not hooks.shows_progress:
                arguments.arguments["add_progbar"] = False
        init(*arguments.args, **arguments.kwargs)

    keras.callbacks.CallbackList.__init__ = __init__
