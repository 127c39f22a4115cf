"""`SplitVariable`: a variable whose parts are on the devices of a replica.

Keras sees one variable, with one value to read, assign, save and load. A gradient tape differentiates by its parts, so that
its gradient is a `SplitTensor`. An optimizer updates each part by itself (`part_scope`).
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist.strategies.keras_hooks import replica_context
from tfdist.strategies.model_parallel.split_tensor import Splittable, SplitTensor, pieces
from tfdist.strategies.private_api import CompositeTensorGradient, register_tensor_conversion
from tfdist.strategies.private_api.overrides import overrides
from tfdist.strategies.variable_base import VariableBase


class _Part(threading.local):
    number: int | None = None


_current_part = _Part()


@contextlib.contextmanager
def part_scope(number: int) -> Iterator[None]:
    """Makes every `SplitVariable` stand for its part `number` in this thread."""
    outer, _current_part.number = _current_part.number, number
    try:
        yield
    finally:
        _current_part.number = outer


class _PartGradients(CompositeTensorGradient):  # type: ignore[misc]
    """Makes gradient tapes differentiate by the parts."""

    def get_gradient_components(self, value: Any) -> list[Any]:
        return list(value.handles)

    def replace_gradient_components(self, value: Any, component_grads: list[Any]) -> Any:
        if any(gradient is None for gradient in component_grads):
            return None
        if all(isinstance(gradient, tf.IndexedSlices) for gradient in component_grads):
            return _joined(component_grads, value.axis)
        parts = []
        for device, gradient in zip(value.devices, component_grads, strict=True):
            with tf.device(device):
                parts.append(tf.convert_to_tensor(gradient))
        return SplitTensor(parts=tuple(parts), axis=value.axis, devices=value.devices)


def _joined(slices: list[Any], axis: int) -> Any:
    """Returns the gradients of the parts of a table as the IndexedSlices that a table in one place would have."""
    if axis == 1:  # Each part looks up the same rows.
        return tf.IndexedSlices(tf.concat([each.values for each in slices], axis=1), slices[0].indices)
    begins = [number * tf.cast(each.dense_shape[0], each.indices.dtype) for number, each in enumerate(slices)]
    indices = tf.concat([each.indices + begin for each, begin in zip(slices, begins, strict=True)], axis=0)
    return tf.IndexedSlices(tf.concat([each.values for each in slices], axis=0), indices)


class _Handles(tf.experimental.ExtensionType):  # type: ignore[misc]
    """The handles of the parts, which a gradient tape takes as one source."""

    __name__ = "tfdist.Handles"
    __composite_gradient__ = _PartGradients()

    handles: tuple[tf.Tensor, ...]
    axis: int
    devices: tuple[str, ...]


class SplitVariable(VariableBase):
    """A variable in equal parts along one axis.

    Attributes:
        parts: the variables that hold the parts, in order. Each has a copy per replica.
        axis: the axis along which they make up the variable, from 0.
    """

    def __init__(self, parts: list[Any], axis: int, name: str) -> None:
        self.parts = parts
        self.axis = axis
        shape = parts[0].shape.as_list()
        shape[axis] *= len(parts)
        self._shape = tf.TensorShape(shape)
        self._name = name
        self._unique_id = f"{parts[0]._unique_id}_parts"
        self._distribute_strategy = parts[0].distribute_strategy
        self._in_graph_mode = False
        self._cached_value = None

    @property
    def _here(self) -> Any:
        """The part that this variable stands for in a `part_scope`; None outside."""
        return None if _current_part.number is None else self.parts[_current_part.number]

    @property
    def is_part(self) -> bool:
        """Whether it stands for one of its parts in this thread."""
        return _current_part.number is not None

    def local(self, part: Any) -> Any:
        """Returns the current replica's variable of a part; outside of replicas, the first one's."""
        if not isinstance(part, tf.distribute.DistributedValues):
            return part
        found = part._get()
        return found if isinstance(found, tf.Variable) else part.values[0]

    @property
    def handle(self) -> Any:
        """The handles of the parts; in a `part_scope`, the handle of the part."""
        if self._here is not None:
            return self.local(self._here).handle
        parts = [self.local(part) for part in self.parts]
        return _Handles(
            handles=tuple(part.handle for part in parts), axis=self.axis, devices=tuple(part.device for part in parts)
        )

    @property
    def shape(self) -> tf.TensorShape:
        """The shape of the whole variable; in a `part_scope`, of the part."""
        return self._shape if self._here is None else self._here.shape

    @property
    def dtype(self) -> Any:
        """The dtype."""
        return self.parts[0].dtype

    @property
    def device(self) -> str:
        """The device of the first part; in a `part_scope`, of the part."""
        return str(self.local(self.parts[0] if self._here is None else self._here).device)

    @property
    def distribute_strategy(self) -> Any:
        """The strategy in whose scope it was created."""
        return self._distribute_strategy

    @property
    def _devices(self) -> Any:
        """Where a variable that is colocated with this one goes."""
        return self.parts[0]._devices

    @property
    def name(self) -> str:
        """The name of the whole variable."""
        return self._name

    @property
    def trainable(self) -> bool:
        """Whether gradient tapes watch it."""
        return bool(self.parts[0].trainable)

    @property
    def synchronization(self) -> Any:
        """See `tf.Variable.synchronization`."""
        return self.parts[0].synchronization

    @property
    def aggregation(self) -> Any:
        """See `tf.Variable.aggregation`."""
        return self.parts[0].aggregation

    @property
    def constraint(self) -> None:
        """None: Keras applies constraints."""
        return None

    def get_shape(self) -> tf.TensorShape:
        """Returns `shape`."""
        return self.shape

    def as_split(self) -> SplitTensor:
        """Returns the value in its parts, each read on its device."""
        values, devices = [], []
        for part in self.parts:
            local = self.local(part)
            with tf.device(local.device):
                values.append(local.read_value())
            devices.append(local.device)
        return SplitTensor(parts=tuple(values), axis=self.axis, devices=tuple(devices))

    def value(self) -> Any:
        """Returns the whole value as a tensor; in a `part_scope`, the value of the part."""
        if self._here is not None:
            return self.local(self._here).read_value()
        if replica_context.current() is not None:
            raise ValueError(
                f"{self._name} is split over {len(self.parts)} devices, and this step reads it as a whole, for an operation "
                "that cannot compute on its parts; leave it out of the layout map (docs/model_parallel.md lists the operations)"
            )
        return self.as_split().whole()

    def read_value(self) -> Any:
        """Returns `value()`."""
        return self.value()

    @overrides(VariableBase)
    def _dense_var_to_tensor(self, dtype: Any = None, name: Any = None, as_ref: bool = False) -> Any:
        del dtype, name, as_ref
        return self.value()

    def numpy(self) -> Any:
        """Returns the whole value as a numpy array."""
        return self.value().numpy()

    def _write(self, method: str, value: Any) -> "SplitVariable":
        in_replica = tf.distribute.get_replica_context() is not None
        if self._here is not None:
            getattr(self.local(self._here), method)(value)
            return self
        if not (isinstance(value, SplitTensor) and value.axis == self.axis and len(value.parts) == len(self.parts)):
            value = tf.convert_to_tensor(value, self.dtype)
            parts = pieces(value, len(self.parts), self.axis)
        else:
            parts = value.parts
        for variable, part in zip(self.parts, parts, strict=True):
            target = self.local(variable) if in_replica else variable
            getattr(target, method)(part)
        return self

    @overrides(VariableBase)
    def _export_to_saved_model_graph(self, object_map: Any, tensor_map: Any, options: Any, **kwargs: Any) -> list[Any]:
        raise NotImplementedError(
            f"{self._name} is split over {len(self.parts)} devices, and a SavedModel cannot hold that; save the model as "
            ".keras, load it in a program without a layout map, and export it there"
        )

    def __repr__(self) -> str:
        return f"<SplitVariable {self._name!r} shape={self._shape} dtype={self.dtype.name} in {len(self.parts)} parts>"


Splittable.register(SplitVariable)
register_tensor_conversion(SplitVariable, lambda v, dtype=None, name=None, as_ref=False: v.value())
