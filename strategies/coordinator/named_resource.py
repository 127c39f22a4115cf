"""Variables of other tasks that are known by name alone: nothing of them is kept on the chief.

TensorFlow finds a resource by its device and name. A function that names it therefore meets the variable of whichever task runs
it, without being given a handle: one trace serves all tasks, and no call carries hundreds of handles.
"""

import itertools
import os
import weakref
from typing import Any

import tensorflow as tf

from tfdist.strategies.private_api import outermost_graph, run_independently

_numbers = itertools.count()


class NamedVariable:
    """A variable of a task. It has no value before `assign`, and none again when the task was started anew.

    Attributes:
        name: unique in the cluster for this chief.
        dtype: of its values.
        shape: of its values, fully known.
        device: where it is; without a task, on the task that runs the function.
    """

    def __init__(self, what: str, dtype: tf.DType, shape: Any, device: str) -> None:
        self.name = f"tfdist/{os.getpid()}/{next(_numbers)}/{what}"
        self.dtype = dtype
        self.shape = tf.TensorShape(shape)
        self.device = device
        self._handles: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()

    def handle(self, device: str | None = None) -> Any:
        """The resource, on `device` instead of `self.device` where given; one per outermost function.

        With one per use TensorFlow would not see that a read follows an assignment to the same variable.
        """
        device = device or self.device
        if tf.executing_eagerly():
            return self._make(device)
        graph = outermost_graph()
        handles = self._handles.setdefault(graph, {})
        if device not in handles:
            with graph.as_default(), tf.control_dependencies(None):
                handles[device] = self._make(device)
        return handles[device]

    def _make(self, device: str) -> Any:
        with tf.device(device):
            handle = tf.raw_ops.VarHandleOp(dtype=self.dtype, shape=self.shape, shared_name=self.name, container="")
        if not tf.executing_eagerly():
            run_independently(handle.op)  # Else what is local would wait for the names of what is elsewhere.
        return handle

    def read(self, device: str | None = None) -> Any:
        """The value as a tensor on its device."""
        with tf.device(device or self.device):
            value = tf.raw_ops.ReadVariableOp(resource=self.handle(device), dtype=self.dtype)
            return tf.ensure_shape(value, self.shape)

    def read_now(self, device: str | None = None) -> Any:
        """In a function: the value at the moment, without waiting for assignments that come before in the function."""
        with tf.device(device or self.device):
            value = tf.raw_ops.ReadVariableOp(resource=self._make(device or self.device), dtype=self.dtype)
            return tf.ensure_shape(value, self.shape)

    def assign(self, value: Any, device: str | None = None) -> Any:
        """Gives it a value."""
        with tf.device(device or self.device):
            return tf.raw_ops.AssignVariableOp(resource=self.handle(device), value=tf.cast(value, self.dtype))

    def assign_add(self, value: Any, device: str | None = None) -> Any:
        """Adds to the value, in one operation: of two at once none is lost."""
        with tf.device(device or self.device):
            return tf.raw_ops.AssignAddVariableOp(resource=self.handle(device), value=value)
