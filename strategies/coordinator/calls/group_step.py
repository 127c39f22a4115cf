"""One step of a Keras model on the replicas of a worker group, each with its shard of the batch."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import tensorflow as tf

from tfdist.strategies.inputs.batch_shards import Layout, per_replica
from tfdist.strategies.inputs.batches import joined_rows, none_without_examples, rows_of
from tfdist.strategies.keras_hooks.checks import log_trial, metric_trial
from tfdist.strategies.keras_hooks.replicas import replica_context
from tfdist.strategies.keras_hooks.replicas.batch_normalization import warn_of_normalization
from tfdist.strategies.keras_hooks.replicas.predicted_numbers import of_whole_batch
from tfdist.strategies.keras_hooks.replicas.same_rows import once
from tfdist.strategies.keras_hooks.trained_layers import TrainedLayers
from tfdist.strategies.private_api.user_functions import without_optionals

_InParts = tf.experimental.ExtensionType  # `model_parallel.split_tensor.SplitTensor` is one.

ReplicaBegin = Callable[[str], None]
StepScope = Callable[[], contextlib.AbstractContextManager[ReplicaBegin]]
"""Surrounds the tracing of a step. It gives a function that each replica calls first, in its thread, with its device."""


@contextlib.contextmanager
def no_scope() -> Iterator[ReplicaBegin]:
    """A `StepScope` that does nothing."""
    yield lambda device: None


class StepOutputs(Protocol):
    """What a group's function returns of the outputs of its steps. All methods are called while the function is traced."""

    def of_replica(self, outputs: Any, rows: Any) -> Any:
        """Returns what one replica keeps of the outputs of a step; a float64 vector if the function makes several steps.

        Args:
            outputs: the outputs of the step.
            rows: how many of its examples count, int32 scalar; None for all.
        """

    def after_steps(self) -> Any:
        """Returns what one replica adds after the last step, nested tensors."""

    def of_group(self, outputs: list[Any], after: list[Any], shares: list[Any]) -> Any:
        """Returns the result of the function.

        Args:
            outputs: what `of_replica` returned for the last step, by replica.
            after: what `after_steps` returned, by replica.
            shares: each replica's share of the examples of the last step, float32 scalars.
        """


class PredictionOutputs:
    """`StepOutputs` of `predict_step`: the outputs of all replicas, concatenated."""

    def of_replica(self, outputs: Any, rows: Any) -> Any:
        """See `StepOutputs`."""
        outputs = tf.nest.map_structure(lambda v: tf.convert_to_tensor(v) if isinstance(v, _InParts) else v, outputs)
        replica = replica_context.current()
        if replica is not None:
            outputs = of_whole_batch(once(outputs, replica.rows), replica.model, replica.share)
        return outputs if rows is None else none_without_examples(outputs, rows)

    def after_steps(self) -> Any:
        """See `StepOutputs`."""
        return ()

    def of_group(self, outputs: list[Any], after: list[Any], shares: list[Any]) -> Any:
        """See `StepOutputs`."""
        if len(outputs) == 1:
            return outputs[0]
        return tf.nest.map_structure(lambda *each: joined_rows(each) if each[0].shape.rank else each[0], *outputs)


class GroupStep:
    """A step of a model, to be traced into a function of a worker group.

    Args:
        strategy: the strategy.
        model: the Keras model.
        step: its `train_step`, `test_step` or `predict_step`.
        outputs: what the function returns.
        scope: what surrounds each step.
    """

    def __init__(
        self, strategy: Any, model: Any, step: Callable[..., Any], outputs: StepOutputs, scope: StepScope = no_scope
    ) -> None:
        self._strategy = strategy
        self._model = model
        self._step, self._trains = without_optionals(model, step), step == model.train_step
        self._returns_logs = step != model.predict_step
        self._trained_layers = TrainedLayers(model)
        self._outputs = outputs
        self._scope = scope

    def run(self, devices: Sequence[str], batch: Any) -> tuple[list[Any], list[Any]]:
        """Makes a step. Returns what each replica keeps of its outputs, and the replicas' shares of the examples."""
        shares: list[Any] = [tf.constant(1.0)]
        counts: list[Any] | None = None
        if len(devices) > 1:
            layout = Layout(len(devices), range(len(devices)))
            whole, element = batch, layout.split(batch)
            batch = per_replica(element["shards"])
            shares = layout.shares(element["examples"])
            if not any(isinstance(value, tf.Tensor) and value.shape.rank for value in tf.nest.flatten(whole)):
                counts = layout.counts(element["examples"])  # Of sparse batches only the function knows the size.
        trained = self._trained_layers.as_at_first() if self._trains else contextlib.nullcontext()
        with trained, self._scope() as begin_replica:

            def on_replica(shard: Any) -> Any:
                index = int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group))
                share = shares[index] if len(devices) > 1 else None
                begin_replica(devices[index])
                graph = tf.compat.v1.get_default_graph()
                rows, model = rows_of(shard), self._model
                replica = replica_context.Replica(self._strategy, index, share, rows, batch=shard, graph=graph, model=model)
                replica.predicts = not self._returns_logs
                with replica_context.entered(replica):
                    outputs = self._step(shard) if counts is None else self._step_that_may_not_count(shard, share)
                    if self._returns_logs:
                        outputs = log_trial.in_full(outputs, self._model, self._trains, share)
                    if self._trains and index == 0:
                        warn_of_normalization(self._model, replica, len(devices))
                    return self._outputs.of_replica(outputs, None if counts is None else counts[index])

            return self._by_replica(devices, self._strategy.run(on_replica, args=(batch,))), shares

    def _step_that_may_not_count(self, shard: Any, share: Any) -> Any:
        """Makes a step of a replica that repeats another one's example if it has none: its metrics then stay as they were."""
        metrics = [v for v in metric_trial.variables_of(self._model) if v.synchronization == "on_read"]
        before = [(v, tf.identity(v.value)) for v in metrics]
        outputs = self._step(shard)
        for variable, value in before:
            variable.value.assign(tf.where(share > 0, variable.value, value))
        return outputs

    def result(self, outputs: list[Any], shares: list[Any]) -> Any:
        """Returns the result of the function after its last step, of which `run` returned `outputs` and `shares`."""
        extended = self._strategy.extended
        # All replicas of the group: each has its own metrics, even if the last batch was too small for all of them.
        with extended.tracing(extended.group_devices):
            after = self._by_replica(extended.group_devices, self._strategy.run(self._outputs.after_steps))
        return self._outputs.of_group(outputs, after, shares)

    def _by_replica(self, devices: Sequence[str], outputs: Any) -> list[Any]:
        """Takes apart what `strategy.run` returned: one structure whose leaves hold a value per replica."""
        extended = self._strategy.extended
        return [tf.nest.map_structure(lambda v, r=r: extended.local_replicas(v)[r], outputs) for r in range(len(devices))]
