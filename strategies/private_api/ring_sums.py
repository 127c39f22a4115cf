"""Collectives among tasks of a MultiWorkerMirroredStrategy that do not wait for each other.

TensorFlow's own collectives wait for those before them in the function, as NCCL needs it. And each has a new instance key in
every execution; TensorFlow keeps what belongs to a key, 1.5 KB, as long as the process runs. Here keys are used again.
"""

import itertools
from typing import Any

import tensorflow as tf

from tfdist.strategies.private_api.checks import need, need_attributes, need_function

_ReplicaLauncher: Any = need("tensorflow.python.distribute.cross_device_utils", "CollectiveReplicaLauncher")
_next_instance_key: Any = need_function(_ReplicaLauncher, "_next_instance_key", "self", "calls")
need_attributes(_ReplicaLauncher, "_group_key", "_device", "_collective_keys")
need_function(_ReplicaLauncher, "_use_unique_instance_key", "self", "calls")

FIRST_KEY = 2**30
"""Above all keys that TensorFlow gives, which it counts from 100."""

CYCLE = 1024
"""After so many sums of one kind a key is used again: more than one execution has. Tasks are at most one execution apart."""


FIRST_GROUP = 2**30
"""Above all keys of groups that TensorFlow gives."""

GROUPS = 2**12
"""Most groups of tasks that a program has."""

OF_REPLICA = "tfdist_of_replica"
"""The name of the operations among the tasks of one replica."""

_KEYS_OF_KIND = 2**28

FIRST_NUMBERED_KEY = FIRST_KEY + 3 * _KEYS_OF_KIND

_SIZES = 131071  # A prime. Sizes that are not known while a function is traced are counted modulo it.


class RingSums:
    """The collectives of one group of tasks, of which each takes part with one device.

    Args:
        device: the device of this task.
        size: the number of tasks.
        group: the number of the group, below `GROUPS`. No other group of the program has it.
        kind: the number of its kind of groups, from 0 to 2. A task is in one group of each kind at most.
        name: the name of the operations. Default: that of TensorFlow.
    """

    def __init__(self, device: str, size: int, group: int = 0, kind: int = 0, name: str | None = None) -> None:
        self._device, self._size, self._group, self._name = device, size, FIRST_GROUP + group, name
        # Messages between two tasks are told apart by these keys, whatever their groups.
        self._firsts = itertools.count(FIRST_KEY + kind * _KEYS_OF_KIND, CYCLE)
        self._keys: dict[Any, _Keys] = {}

    def sum(self, value: tf.Tensor) -> tf.Tensor:
        """Returns the sum of a dense tensor, of the same shape on every task."""
        key = self._next_key((value.dtype, tuple(value.shape)))
        return self._run(tf.raw_ops.CollectiveReduceV2, key, value, merge_op="Add", final_op="Id")

    def gather(self, value: tf.Tensor, timeout: float = 0.0) -> tf.Tensor:
        """Returns the tensors of all tasks, of the same shape, concatenated along the first axis in the order of the tasks.

        Args:
            value: the tensor of this task.
            timeout: seconds after which DeadlineExceededError is raised if other tasks have not called it; 0 to wait forever.
        """
        key = self._next_key(("gather", value.dtype, tuple(value.shape)))
        return self._run(tf.raw_ops.CollectiveGatherV2, key, value, timeout_seconds=timeout)

    def gather_by_number(self, value: tf.Tensor, number: int, timeout: float) -> tf.Tensor:
        """Returns what `gather` returns, between the steps, for what has this number on every task.

        Args:
            value: a tensor, of the same shape on every task.
            number: a number from 0. Tasks that gather other numbers do not meet.
            timeout: seconds after which DeadlineExceededError is raised if other tasks have not called it.
        """
        return self._run(tf.raw_ops.CollectiveGatherV2, FIRST_NUMBERED_KEY + number, value, timeout_seconds=timeout)

    def _next_key(self, kind: Any) -> tf.Tensor:
        if kind not in self._keys:
            self._keys[kind] = _Keys(self._firsts)
        return self._keys[kind]._next_instance_key()

    def _run(self, operation: Any, key: Any, value: tf.Tensor, **kwargs: Any) -> tf.Tensor:
        with tf.device(self._device):
            return operation(
                input=value,
                group_size=self._size,
                group_key=self._group_for(value),
                instance_key=key,
                ordering_token=[],
                communication_hint="ring",
                name=self._name,
                **kwargs,
            )

    def _group_for(self, value: tf.Tensor) -> Any:
        """Returns the key of the group: another one for each value of the sizes that are unknown while a function is traced.

        TensorFlow refuses another shape under a pair of keys that it has seen.
        """
        unknown = [number for number, size in enumerate(value.shape) if size is None]
        if not unknown:
            return self._group
        shape, count = tf.shape(value), tf.constant(1)
        for number in unknown:
            count = tf.math.floormod(count * 1009 + shape[number], _SIZES)
        return self._group + GROUPS * count


class _Keys:
    """Instance keys of the sums of one dtype and shape: TensorFlow refuses others with the same key.

    TensorFlow's launcher asks it when a function is called, as its own. All tasks call the same functions in the same order, so
    they get the same keys, whatever each has traced.
    """

    _next_instance_key = _next_instance_key

    def __init__(self, firsts: "itertools.count[int]") -> None:
        self._collective_keys, self._group_key, self._device = self, 0, ""
        self._firsts, self._first, self._calls = firsts, 0, itertools.count()

    def _use_unique_instance_key(self) -> bool:
        return True

    def get_instance_key(self, group_key: int, device: str) -> int:
        """See TensorFlow's `CollectiveKeys`."""
        self._first = self._first or next(self._firsts)
        return self._first + next(self._calls) % CYCLE
