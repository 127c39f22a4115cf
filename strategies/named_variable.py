"""Variables of other tasks, known by their names alone: the chief keeps no handle of them.

TensorFlow finds a resource by device and name. A function that names a variable uses the variable of the task that runs the
function. So one traced function serves all tasks, and no call carries hundreds of handles.
"""

import itertools
import os
from typing import Any

import tensorflow as tf

from tfdist.strategies.private_api import outermost_graph, run_independently

PREFIX = "tfdist/"
"""Of the names of all such variables."""

_numbers = itertools.count()


class NamedVariable:
    """A variable of a task. It has no value before `assign`, and none after a restart of the task.

    Args:
        label: what it holds, for its name.
        dtype: the dtype.
        shape: the shape, fully known.
        device: its device. Without a task in it, the variable is on the task that runs the function.

    Attributes:
        name: its name, unique in the cluster for this chief.
        dtype: the dtype.
        shape: the shape.
        device: its device.
    """

    def __init__(self, label: str, dtype: tf.DType, shape: Any, device: str) -> None:
        self.name = f"{PREFIX}{os.getpid()}/{next(_numbers)}/{label}"
        self.dtype = dtype
        self.shape = tf.TensorShape(shape)
        self.device = device

    def handle(self, device: str | None = None) -> Any:
        """Returns the resource: one handle per outermost function and device.

        With a handle per use TensorFlow would not see that a read follows an assignment to the same variable.

        Args:
            device: where it is, if not on `self.device`.
        """
        device = device or self.device
        if tf.executing_eagerly():
            return self._make(device)
        graph = outermost_graph()
        handles = graph.get_collection_ref((self.name, device))  # A table here would keep the graph as long as the variable.
        if not handles:
            with graph.as_default(), tf.control_dependencies(None):
                handles.append(self._make(device))
        return handles[0]

    def _make(self, device: str) -> Any:
        with tf.device(device):
            handle = tf.raw_ops.VarHandleOp(dtype=self.dtype, shape=self.shape, shared_name=self.name, container="")
        if not tf.executing_eagerly():
            run_independently(handle.op)  # Otherwise local operations would wait for handles of remote variables.
        return handle

    def read(self, device: str | None = None) -> Any:
        """Returns the value as a tensor on the device of the variable."""
        with tf.device(device or self.device):
            value = tf.raw_ops.ReadVariableOp(resource=self.handle(device), dtype=self.dtype)
            return tf.ensure_shape(value, self.shape)

    def read_now(self) -> Any:
        """Returns the present value, in a function: does not wait for the assignments that the function makes before."""
        with tf.device(self.device):
            value = tf.raw_ops.ReadVariableOp(resource=self._make(self.device), dtype=self.dtype)
            return tf.ensure_shape(value, self.shape)

    def assign(self, value: Any, device: str | None = None) -> Any:
        """Assigns a value."""
        with tf.device(device or self.device):
            return tf.raw_ops.AssignVariableOp(resource=self.handle(device), value=tf.cast(value, self.dtype))

    def destroy(self, device: str | None = None) -> None:
        """Frees the variable, if it exists."""
        with tf.device(device or self.device):
            tf.raw_ops.DestroyResourceOp(resource=self.handle(device), ignore_lookup_error=True)

    def assign_add(self, value: Any, device: str | None = None) -> Any:
        """Adds to the value in one operation: if two tasks add at the same time, neither addition is lost."""
        with tf.device(device or self.device):
            return tf.raw_ops.AssignAddVariableOp(resource=self.handle(device), value=value)

    def add(self, factor: Any, value: Any) -> Any:
        """Adds `factor * value` to the value in one pass over the memory, else as `assign_add`."""
        alpha = -tf.cast(factor, self.dtype)
        return tf.raw_ops.ResourceApplyGradientDescent(var=self.handle(), alpha=alpha, delta=value, use_locking=True)


class GivenVariable(NamedVariable):
    """A variable whose resource is an argument of the function that uses it, on the device of the function."""

    def __init__(self, resource: Any, dtype: tf.DType) -> None:
        self._resource, self.dtype, self.device = resource, dtype, ""

    def handle(self, device: str | None = None) -> Any:
        """Returns the resource."""
        return self._resource

    def read(self, device: str | None = None) -> Any:
        """Returns the value as a tensor."""
        return tf.raw_ops.ReadVariableOp(resource=self._resource, dtype=self.dtype)

    read_now = read
