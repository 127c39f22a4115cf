"""What a worker group computes with one call under `parameter_server`: one or more synchronous steps on the ps' variables."""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist.strategies.coordinator.group_function import GroupProgram
from tfdist.strategies.coordinator.group_step import GroupStep, ReplicaBegin, StepScope
from tfdist.strategies.coordinator.variable_base import unwrapped
from tfdist.strategies.parameter_server import fused_reads
from tfdist.strategies.parameter_server.variables import ServerVariable


class StepProgram(GroupProgram):
    """Makes one step, or one for each batch of a stack."""

    def __init__(self, step: GroupStep) -> None:
        self._step = step

    def run(self, variant: Any, devices: tuple[str, ...], data: Any, stacked: bool, *arguments: Any) -> Any:
        """See `GroupProgram`. Returns the result of the last step."""
        del variant, arguments
        outputs, shares = self._loop(devices, data) if stacked else self._step.run(devices, data)
        return self._step.result(devices, outputs, shares)

    def _loop(self, devices: tuple[str, ...], data: Any) -> tuple[list[Any], list[Any]]:
        count = tf.shape(tf.nest.flatten(data)[0])[0]
        width = len(devices)

        def body(number: tf.Tensor, before: Any, shares: Any) -> Any:
            del before, shares
            outputs, shares = self._step.run(devices, tf.nest.map_structure(lambda value: value[number], data))
            return number + 1, outputs, shares

        begin = (tf.constant(0), [tf.zeros([0], tf.float64)] * width, [tf.constant(0.0)] * width)
        shapes = (tf.TensorShape([]), [tf.TensorShape([None])] * width, [tf.TensorShape([])] * width)
        _, outputs, shares = tf.while_loop(lambda number, *_: number < count, body, begin, shapes, parallel_iterations=1)
        return outputs, shares


def fused_reads_of(model: Any) -> StepScope:
    """Returns a scope in which each replica reads the small variables of `model` with one message per ps."""

    @contextlib.contextmanager
    def scope() -> Iterator[ReplicaBegin]:
        with fused_reads.reading(_read_by_each_step(model)) as reads:
            yield reads.begin_replica

    return scope


def _read_by_each_step(model: Any) -> list[Any]:
    """Returns the ps' variables that every step reads: the model's, and the optimizer's scalars (learning rate, iterations)."""
    candidates = [*model.variables]
    optimizer = getattr(model, "optimizer", None)
    for owner in (optimizer, getattr(optimizer, "inner_optimizer", None)):
        candidates += [variable for variable in getattr(owner, "variables", []) if variable.shape.rank == 0]
    found = {id(v): v for v in (unwrapped(getattr(c, "_value", None)) for c in candidates)}
    return [variable for variable in found.values() if isinstance(variable, ServerVariable)]
