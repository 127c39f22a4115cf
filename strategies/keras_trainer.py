"""The one place where Keras and the strategies meet.

Keras 3 builds its train, test and predict functions for a strategy that runs them where they are called. Under a strategy whose
workers are elsewhere the strategy has to give these functions itself. `install()` makes Keras' trainer ask it, for models
made under such a strategy's scope only; every other model is trained by Keras' own code. No file of Keras is changed.
"""

import functools
import logging
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from tfdist.strategies._private import TensorFlowTrainer

Logs = Any

_log = logging.getLogger("tfdist")


@runtime_checkable
class StepProvider(Protocol):
    """What a strategy offers in order to run Keras' steps on workers that are elsewhere."""

    def make_step_function(self, model: Any, step: Callable[..., Any]) -> Callable[[Any], Logs]:
        """Returns the function that Keras calls with an iterator: runs `steps_per_execution` steps, returns logs."""

    def make_predict_function(self, model: Any) -> Callable[[list[Any]], Any]:
        """Returns the function that Keras calls with a list of batches: returns their outputs, concatenated."""

    def finish_steps(self, model: Any, logs: Logs) -> Logs:
        """Waits for the steps under way at the end of an epoch or evaluation; returns the logs of the last one."""

    def settle(self) -> None:
        """Waits for the steps under way before metrics start anew; what they give is not wanted any more."""


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
        strategy = self.distribute_strategy
        if isinstance(strategy, StepProvider):
            return strategy.make_step_function(self, step_function)
        if self._distribute_strategy is None:
            _log.warning("%s was made outside the strategy's scope and trains in this process alone", self.name)
        return make_function(self, step_function)

    @functools.wraps(make_predict_function)
    def _make_predict_function(self: Any, force: bool = False) -> None:
        strategy = self.distribute_strategy
        if not isinstance(strategy, StepProvider):
            make_predict_function(self, force)
        elif self.predict_function is None or force:
            self.predict_function = strategy.make_predict_function(self)

    @functools.wraps(result_or_logs)
    def _get_metrics_result_or_logs(self: Any, logs: Logs) -> Logs:
        strategy = self.distribute_strategy
        if isinstance(strategy, StepProvider):
            logs = strategy.finish_steps(self, logs)
        return result_or_logs(self, logs)

    @functools.wraps(reset_metrics)
    def _reset_metrics(self: Any) -> None:
        strategy = self.distribute_strategy
        if isinstance(strategy, StepProvider):
            strategy.settle()
        reset_metrics(self)

    TensorFlowTrainer._make_function = _make_function
    TensorFlowTrainer.reset_metrics = _reset_metrics
    TensorFlowTrainer.make_predict_function = _make_predict_function
    TensorFlowTrainer._get_metrics_result_or_logs = _get_metrics_result_or_logs
