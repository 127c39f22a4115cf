"""`TaskGroups`: the groups of tasks of a `MultiWorkerMirroredStrategy` whose replicas span tasks.

Tasks 0 to m-1 are the first replica, m to 2m-1 the second, and so on. TensorFlow's strategy then has the tasks at one position
of their replicas as its workers: they have the same shards, and each stands for its replica. What tasks of one replica compute
alike, such as metrics and gradients of whole variables, is summed over all tasks, and only the first task of each replica
counts. So all tasks have the same numbers, to the last bit, and decide alike.
"""

from typing import Any

import tensorflow as tf

from tfdist.strategies.data_parallel import buckets
from tfdist.strategies.data_parallel.same_calls import SameCalls
from tfdist.strategies.data_parallel.same_reads import SameReads
from tfdist.strategies.keras_hooks.replicas.reduction import sent_as
from tfdist.strategies.model_parallel import task_span
from tfdist.strategies.private_api.ring_sums import GROUPS, OF_REPLICA, RingSums

END_SECONDS = 60.0
"""How long the first task waits at its end for the tasks of other replicas."""

_ALL, _REPLICA, _POSITION = range(3)


class TaskGroups:
    """The groups of one task.

    Args:
        device: the first device of this task.
        task: the number of this task.
        tasks: the number of tasks.
        spanned: the number of tasks of a replica.
        calls: the calls of this task.

    Attributes:
        replicas: the number of replicas.
        replica: the number of the replica of this task.
        is_first: whether this task is the first of its replica.
    """

    def __init__(self, device: str, task: int, tasks: int, spanned: int, calls: SameCalls) -> None:
        self.replicas, self.replica, position = tasks // spanned, task // spanned, task % spanned
        self.is_first = position == 0
        self._is_chief = task == 0
        assert 1 + self.replicas + spanned < GROUPS
        self._all = RingSums(device, tasks, kind=_ALL)
        of_replica = RingSums(device, spanned, 1 + self.replica, kind=_REPLICA, name=OF_REPLICA)
        self._position = RingSums(device, self.replicas, 1 + self.replicas + position, kind=_POSITION)
        first = self.replica * spanned
        self._reads = SameReads(calls, calls.names[first : first + spanned])
        self._others = calls.names[spanned:] if self._is_chief else []
        self._span = task_span.TaskSpan(of_replica, position, spanned, self._reads.meet)
        task_span.set_current(self._span)

    def end(self) -> None:
        """Waits, in the first task, until the other replicas have read their weights and ended, for `END_SECONDS` at most."""
        self._reads.outlast(self._others, END_SECONDS)

    def sums(self, values: list[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the sum of each tensor over the replicas, the same in all tasks."""
        return self._in_buckets([value if self.is_first else tf.zeros_like(value) for value in values], self._all.sum)

    def sums_of_slices(self, slices: tf.IndexedSlices, sum_of: Any) -> tf.IndexedSlices:
        """Returns the sum of the slices of whole variables, the same in all tasks.

        Args:
            slices: those of this replica.
            sum_of: adds up slices over the tasks at the position of this one.
        """
        alike = tf.IndexedSlices(self.alike(slices.values), slices.indices, slices.dense_shape)
        return alike if self.replicas == 1 else sum_of(alike)

    def sums_of_shards(self, values: list[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the sum over the replicas of each tensor that belongs to shards of this task."""
        return values if self.replicas == 1 else self._in_buckets(values, self._position.sum)

    def alike(self, value: tf.Tensor) -> tf.Tensor:
        """Returns the value that the first task of the replica has, where all have computed the same up to rounding."""
        return self._span.alike(value)

    def of_chief(self, value: tf.Tensor) -> tf.Tensor:
        """Returns the value of the first task, numbers or booleans, in all tasks."""
        numbers = tf.cast(value, sent_as(value.dtype))
        return tf.cast(self._all.sum(numbers if self._is_chief else tf.zeros_like(numbers)), value.dtype)

    @staticmethod
    def _in_buckets(values: list[tf.Tensor], sum_of: Any) -> list[tf.Tensor]:
        known = [value for value in values if value.shape.is_fully_defined()]
        found = iter(buckets.sums(known, sum_of))
        return [next(found) if value.shape.is_fully_defined() else sum_of(value) for value in values]

    def check_same(self, nested: Any) -> None:
        """Checks, in a step, that all tasks of this replica have the same examples."""
        leaves = tf.nest.flatten(nested, expand_composites=True)
        prints = [_fingerprint(leaf) for leaf in leaves if isinstance(leaf, tf.Tensor) and leaf.dtype not in _OPAQUE]
        if not prints:
            return
        found = self._span.gather(tf.stack(prints)[tf.newaxis], axis=0)
        tf.debugging.Assert(tf.reduce_all(found == found[:1]), [_OTHER_EXAMPLES], summarize=1)


_OTHER_EXAMPLES = (
    "the tasks of one replica have got different examples, and they compute each step on the same ones; let every task read "
    "the same data in the same order: with seeds for shuffling, without deterministic=False, and not sharded by task"
)

_OPAQUE = (tf.variant, tf.resource)


def _fingerprint(value: tf.Tensor) -> tf.Tensor:
    """Returns an int64 that tensors of other values most likely do not have."""
    if value.dtype == tf.string:
        value = tf.strings.to_hash_bucket_fast(value, 2**62)
    if value.dtype == tf.bool:
        value = tf.cast(value, tf.uint8)
    octets = value if value.dtype == tf.uint8 else tf.bitcast(value, tf.uint8)
    return tf.bitcast(tf.fingerprint(tf.reshape(octets, [1, -1]))[0], tf.int64)
