"""What a ps computes for a shard, as functions that are traced once for all shards, fragments and models of a strategy.

A function gets the variables of the shard and its lock as arguments. So a shard adds one call to the function of a group, and
not the hundreds of operations of a round, which took most of the time to trace a small model. TensorFlow puts the operations of
the called function in place of the call, on the device of the call.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.strategies.hogwild.synchronization.compression import Compressor, Message
from tfdist.strategies.hogwild.synchronization.control import Control
from tfdist.strategies.hogwild.synchronization.outer_optimizers import OuterOptimizer
from tfdist.strategies.hogwild.synchronization.shard import Shard

_RESOURCE = tf.TensorSpec([], tf.resource)


class ShardFunctions:
    """Traces the functions when they are first needed."""

    def __init__(self, optimizer: OuterOptimizer) -> None:
        self._optimizer = optimizer
        self._functions: dict[Hashable, Callable[..., Any]] = {}

    def push(
        self, shard: Shard, message: Message, numbers: Any, compressor: Compressor, waits: bool, replies: bool = True
    ) -> tuple[Message, Any]:
        """Updates a shard with what a group pushes, on the ps.

        Args:
            shard: the shard.
            message: what the group has sent, as `compressor` has encoded it. Its local replica follows, if the outer optimizer
                of the shard `sends_replica`.
            numbers: those of the group's `Control`, and the number of complete rounds in the last reply, float64.
            compressor: encodes what is sent, in both directions.
            waits: whether to reply at the end of the round.
            replies: whether to reply.

        Returns:
            The encoded reply, empty without `replies`; and `Update.round`, with `waits` that of `Shard.await_round`.
        """
        length = None if compressor.lossless else int(shard.parameters.shape[0])
        sends_replica = shard.optimizer is not None and shard.optimizer.sends_replica

        def run(resources: Sequence[Any], numbers: Any, message: Message) -> tuple[Message, Any]:
            here = shard.given(resources)
            # Otherwise a variable that only a condition uses takes one more message to the worker.
            with tf.control_dependencies(resources):
                numbers = tf.identity(numbers)
            control = Control.of(numbers[:-1])
            if self._optimizer.in_rounds:
                control.wanted = tf.cast(numbers[-1], tf.int64) + 1
            if sends_replica:
                control.replica = message[-1]
            pushed = compressor.decode(message[:-1] if sends_replica else message, length or 0)
            value, round_, awaited = here.apply(pushed, control, replies=replies and not waits)
            if waits:
                value, round_ = here.await_round(round_, awaited, control)
            if not replies:
                return (), round_
            return (value,) if compressor.lossless else here.news(value, compressor, control.group), round_

        key = ("push", compressor, waits, replies, length, *(part.dtype for part in message))
        specs = tuple(tf.TensorSpec([None] if length is None else part.shape, part.dtype) for part in message)
        reply, round_ = self._on_ps(key, shard, run, tf.TensorSpec(numbers.shape, numbers.dtype), specs)(numbers, message)
        for part in reply:
            part.set_shape(shard.parameters.shape if compressor.lossless else part.shape)
        return reply, round_

    def change_round(self, change: Callable[..., Any], shard: Shard, numbers: Any, groups: Any) -> None:
        """Changes the open round of a shard, on the ps, with the numbers of a `Control`. See `Shard.change_round`."""

        def run(resources: Sequence[Any], numbers: Any, groups: Any) -> None:
            shard.given(resources).change_round(change, Control.of(numbers), groups)

        specs = Control.SPEC, tf.TensorSpec(groups.shape, tf.int32)
        self._on_ps((change, shard.parameters.dtype), shard, run, *specs)(numbers, groups)

    def baseline(self, parameters: Any, before: Any, pushed: Any, round_: Any, last_round: Any) -> Any:
        """Does the same as `OuterOptimizer.baseline`, on the worker."""
        if not self._optimizer.in_rounds:
            return self._optimizer.baseline(parameters, before, pushed, round_, last_round)
        vector, counts = tf.TensorSpec([None], parameters.dtype), tf.TensorSpec([2], tf.int64)
        specs = (vector, vector, vector, counts, tf.TensorSpec([], tf.int64))
        function = self._traced(("baseline", parameters.dtype), self._optimizer.baseline, specs)
        return tf.ensure_shape(function(parameters, before, pushed, round_, last_round), parameters.shape)

    def _on_ps(self, key: Hashable, shard: Shard, run: Callable[..., Any], *specs: Any) -> Callable[..., Any]:
        resources = shard.resources()
        # Shards of averages have another outer optimizer than those of weights, and may have as many resources.
        function = self._traced((key, type(shard.optimizer), len(resources)), run, ([_RESOURCE] * len(resources), *specs))

        def call(*arguments: Any) -> Any:
            with tf.device(shard.device):
                return function(resources, *arguments)

        return call

    def _traced(self, key: Hashable, run: Callable[..., Any], specs: Sequence[Any]) -> Callable[..., Any]:
        if key not in self._functions:
            with tf.init_scope():
                self._functions[key] = tf.function(run, autograph=False).get_concrete_function(*specs)
        return self._functions[key]
