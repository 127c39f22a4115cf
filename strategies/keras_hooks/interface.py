"""`KerasHooks`: what Keras' training loop asks of a strategy. Every strategy implements all of it, in one object.

Keras 3 builds its train, test and predict functions for strategies that run in one process. `trainer.install()` makes Keras'
trainer call the `tfdist_hooks` of the strategy under whose scope a model was made. Strategies that are not tfdist's have
none; for their models trainer.py calls Keras' own functions.
"""

import abc
import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tfdist.strategies.inputs.batch_shards import Layout
from tfdist.strategies.inputs.source import BatchSource
from tfdist.strategies.keras_hooks.task_requests import TaskRequests

if TYPE_CHECKING:  # `calls` imports this file.
    from tfdist.strategies.keras_hooks.calls import Call

Logs = Any
"""A dict of floats, or whatever a user's own `train_step` returns."""


class Readers(enum.IntEnum):
    """Who reads the logs of each step of `fit`: those who need them soonest."""

    NOBODY = 0
    PROGRESS_BAR = 1
    """It may skip steps."""
    CALLBACKS = 2
    """They also act on the model at each step."""


class KerasHooks(abc.ABC):
    """The interface between Keras' loop and a strategy, which holds one as `tfdist_hooks`.

    Attributes:
        task_requests: what makes all tasks save, or stop, after the same step; None if the chief can do so alone.
        shows_progress: whether this task shows Keras' progress bar.
        layout: the replicas, where those in the tasks that run the program have all parameters each; None for worker groups.
    """

    task_requests: TaskRequests | None = None
    shows_progress: bool = True
    layout: Layout | None = None

    @abc.abstractmethod
    def step_function(self, model: Any, step: Callable[..., Any]) -> Callable[[Any], Logs]:
        """Returns the function that Keras calls with an iterator.

        Args:
            model: the Keras model.
            step: its `train_step` or `test_step`.

        Returns:
            A function that runs `steps_per_execution` steps and returns their logs. It raises StopIteration at the end of the
            data.

        Raises:
            ValueError: if the strategy cannot train the model, for example because its optimizer was made outside the scope.
        """

    @abc.abstractmethod
    def predict_function(self, model: Any) -> Callable[[list[Any]], Any]:
        """Returns the function that Keras calls with a list of batches. It returns their outputs, concatenated."""

    def begin_epoch(self, model: Any, readers: Readers) -> None:
        """Notes that an epoch of `fit` begins.

        Args:
            model: the Keras model.
            readers: who reads the logs of each step.
        """
        del model, readers

    @abc.abstractmethod
    def end_epoch(self, model: Any, logs: Logs) -> Logs:
        """Waits for the executions in flight at the end of an epoch or evaluation.

        Args:
            model: the Keras model.
            logs: the logs of the last execution; empty if there was none.

        Returns:
            The logs of the whole epoch or evaluation, or something empty to let Keras read the metrics.
        """

    def reset_metrics(self, model: Any) -> None:
        """Prepares for metrics of `model` that start from zero: waits for executions in flight and discards their results."""
        del model

    def leave_call(self, error: BaseException) -> None:
        """Called when an exception has left a call of Keras' trainer. A strategy that has begun further steps finishes them."""
        del error

    def check_own_loop(self) -> None:
        """Called when a loop of the user's own updates the strategy's variables outside of `strategy.run`.

        Raises:
            ValueError: if such a loop cannot work. A strategy whose chief can make the update logs a warning instead.
        """
        raise ValueError(
            "a training loop of your own computes or applies gradients outside of strategy.run, where there are no replicas; "
            "use fit, or call the step with strategy.run on batches of strategy.experimental_distribute_dataset, as "
            "TensorFlow does"
        )

    def check_data(self, data: Any) -> None:
        """Raises ValueError for data that `fit`, `evaluate` or `predict` cannot take under this strategy."""
        del data

    def prepared(self, data: Any) -> Any:
        """Returns the data of a call, which `check_data` has taken, as Keras is to see them."""
        return data

    @abc.abstractmethod
    def batch_source(self, dataset: Any) -> BatchSource | Any:
        """Returns what Keras iterates for `dataset`, in place of `experimental_distribute_dataset`.

        A `BatchSource`, or a distributed dataset of TensorFlow's, for which Keras counts the steps itself.
        """

    def begin_data(self, call: "Call", batches: int | None, source: Any) -> None:
        """Called when a call of Keras' trainer has its data, before it reads a batch.

        Args:
            call: the call.
            batches: how many it reads in an epoch; None if that is not known.
            source: what `batch_source` returned.
        """
        del call, batches, source

    @abc.abstractmethod
    def example_batch(self, source: Any) -> Any:
        """Returns nested tensors or specs with the shapes of a batch, given what `batch_source` returned."""

    @abc.abstractmethod
    def callbacks(self, callbacks: list[Any]) -> list[Any]:
        """Returns those of the user's callbacks that run in this task."""

    def batches_done(self, model: Any, batches: int) -> int:
        """Returns how many batches of the current epoch the variables of the model have in them, for a backup.

        Args:
            model: the Keras model.
            batches: how many Keras knows of. A strategy that has begun further steps finishes them first.
        """
        del model
        return batches

    @abc.abstractmethod
    def metric_values(self, model: Any) -> list[Any]:
        """Returns the metrics of an epoch that is not over, as numpy arrays, for a backup. No step is in flight."""

    @abc.abstractmethod
    def set_metric_values(self, model: Any, values: list[Any]) -> bool:
        """Continues an epoch with what `metric_values` returned, in another process. Keras has just reset the metrics.

        Returns:
            Whether the metrics have these values now. They may not if a metric makes its variables with its first batch; if
            they will not have them then, a warning says so.
        """


def hooks_of(strategy: Any) -> KerasHooks | None:
    """Returns the hooks of a strategy; None for those that leave everything to Keras."""
    hooks: KerasHooks | None = getattr(strategy, "tfdist_hooks", None)
    return hooks


def is_data_parallel(strategy: Any) -> bool:
    """Returns whether the replicas of a strategy of tfdist are in the tasks that run the program, each with all parameters."""
    return layout_of(strategy) is not None


def layout_of(strategy: Any) -> Layout | None:
    """Returns the layout of the hooks of a strategy; None if it has none, or no hooks."""
    layout: Layout | None = getattr(hooks_of(strategy), "layout", None)
    return layout
