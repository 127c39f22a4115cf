"""Sums over the tasks of a MultiWorkerMirroredStrategy on CPUs that do not wait for each other.

TensorFlow's own collectives wait for those before them in the function, as NCCL needs it. And each has a new instance key in
every execution; TensorFlow keeps what belongs to a key, 1.5 KB, as long as the process runs. Here keys are used again.
"""

import itertools
from typing import Any

import tensorflow as tf

from tfdist.strategies.private_api.checks import need, need_attributes, need_function

_CollectiveAllReduce: Any = need("tensorflow.python.distribute.cross_device_ops", "CollectiveAllReduce")
_ReplicaLauncher: Any = need("tensorflow.python.distribute.cross_device_utils", "CollectiveReplicaLauncher")
_next_instance_key: Any = need_function(_ReplicaLauncher, "_next_instance_key", "self", "calls")
need_attributes(_CollectiveAllReduce, "_launchers")
need_attributes(_ReplicaLauncher, "_group_key", "_group_size", "_device", "_collective_keys")
need_function(_ReplicaLauncher, "_use_unique_instance_key", "self", "calls")

FIRST_KEY = 2**30
"""Above all keys that TensorFlow gives, which it counts from 100."""

CYCLE = 1024
"""After so many sums of one kind a key is used again: more than one execution has. Tasks are at most one execution apart."""


class RingSums:
    """The sums of one strategy.

    Args:
        extended: that of the strategy, which has one replica in this task.
    """

    def __init__(self, extended: Any) -> None:
        (self._launcher,) = extended._cross_device_ops._launchers
        self._firsts = itertools.count(FIRST_KEY, CYCLE)
        self._keys: dict[tuple[tf.DType, tuple[int, ...]], _Keys] = {}

    def sum(self, value: tf.Tensor) -> tf.Tensor:
        """Returns the sum of a dense tensor, of the same known shape on every task, within a function."""
        launcher, kind = self._launcher, (value.dtype, tuple(value.shape))
        if kind not in self._keys:
            self._keys[kind] = _Keys(self._firsts)
        with tf.device(launcher._device):
            return tf.raw_ops.CollectiveReduceV2(
                input=value,
                group_size=launcher._group_size,
                group_key=launcher._group_key,
                instance_key=self._keys[kind]._next_instance_key(),
                ordering_token=[],
                merge_op="Add",
                final_op="Id",
                communication_hint="ring",
            )


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
        del group_key, device
        self._first = self._first or next(self._firsts)
        return self._first + next(self._calls) % CYCLE
