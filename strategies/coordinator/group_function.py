"""The functions that worker groups run: traced once for groups that look alike, cached, and called with a batch.

What a function computes is a `GroupProgram`, which each strategy supplies.
"""

import abc
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar

import tensorflow as tf

from tfdist.strategies.coordinator.tensor_fusion import can_pack, pack, unpack
from tfdist.strategies.coordinator.tracing import tracing_lock
from tfdist.strategies.coordinator.worker_groups import WorkerGroup
from tfdist.strategies.runtime import chief_device


class GroupProgram(abc.ABC):
    """What a worker group computes with one call."""

    arguments: ClassVar[tuple[tf.TensorSpec, ...]] = ()
    """What the function takes beside the batch."""

    def variant_of(self, group: WorkerGroup, variant: Hashable) -> Hashable:
        """Returns what the traced function depends on beside the batch and the devices of the group.

        Args:
            group: the group.
            variant: as given to `GroupFunction.prepare`.
        """
        del group
        return variant

    @abc.abstractmethod
    def run(self, variant: Any, devices: tuple[str, ...], data: Any, stacked: bool, *arguments: Any) -> Any:
        """Creates the operations of the function and returns its result, nested tensors. Called while it is traced.

        Args:
            variant: as `variant_of` returned it.
            devices: the devices of the replicas.
            data: nested tensors: one batch, or several along a first dimension.
            stacked: whether `data` holds several batches.
            *arguments: one tensor per entry of `arguments`.
        """


class GroupFunction:
    """A `GroupProgram` as functions for the worker groups of a strategy."""

    def __init__(self, strategy: Any, program: GroupProgram) -> None:
        self._strategy = strategy
        self._program = program
        self._functions: dict[Any, Any] = {}
        self._packed: dict[Any, tuple[list[tf.TensorShape], Any]] = {}
        self._traced: dict[Any, list[Any]] = {}

    def prepare(self, batches: list[Any], element_spec: Any = None, variant: Hashable = None) -> Callable[..., Any]:
        """Returns the call that runs the program on `batches`: it takes the number of the group, then the arguments.

        Args:
            batches: one or more batches, nested tensors. Several have equal shapes.
            element_spec: the element specification of their dataset. It tells which dimensions differ between batches; without
                it, functions are traced for the shapes of these batches.
            variant: distinguishes functions that compute different things on the same batches.
        """
        stacked = len(batches) > 1
        data = tf.nest.map_structure(lambda *values: tf.stack(values), *batches) if stacked else batches[0]
        flat = tf.nest.flatten(data)
        packed = can_pack(flat)
        signature = (
            variant,
            stacked,
            packed,
            tuple(_type_of(value) for value in flat),
            str(tf.nest.map_structure(lambda _: 0, data)),
        )
        traced = self._traced.get(signature)
        if traced is None:
            examples = examples_in(batches[0])
            shapes = _shapes_to_trace(flat, element_spec, stacked)
            traced = [
                self._trace(group, variant, data, shapes, stacked, packed, examples) for group in self._strategy.worker_groups
            ]
            self._traced[signature] = traced
        if packed:
            return lambda group, *arguments: traced[group](chief_device.constant(pack(flat)), *arguments)
        return lambda group, *arguments: traced[group](data, *arguments)

    def trace_for(self, group: WorkerGroup, devices: Sequence[str], key: Hashable, trace: Callable[[], Any]) -> Any:
        """Returns the function that `trace` makes for a group. Groups with the same key share it."""
        if key not in self._functions:
            with tracing_lock, tf.device(group.devices[0]), self._strategy.extended.tracing(devices):
                self._functions[key] = trace()
        return self._functions[key]

    def _trace(
        self, group: WorkerGroup, variant: Any, data: Any, shapes: list[Any], stacked: bool, packed: bool, examples: int | None
    ) -> Any:
        # The first replica computes a batch with fewer examples than the group has replicas.
        width = len(group.devices) if examples is None or examples >= len(group.devices) else 1
        devices = group.traced_devices[:width]
        variant = self._program.variant_of(group, variant)
        with tracing_lock, tf.device(group.devices[0]), self._strategy.extended.tracing(devices, group.traced_devices):
            if packed:
                return self._trace_packed((variant, group.traced_devices), devices, data, shapes, stacked)
            key = (variant, group.traced_devices, devices, stacked)
            if key not in self._functions:
                self._functions[key] = tf.function(
                    lambda batch, *arguments: self._program.run(variant, devices, batch, stacked, *arguments),
                    reduce_retracing=True,
                    autograph=False,
                )
            return self._functions[key].get_concrete_function(data, *self._program.arguments)

    def _trace_packed(
        self, group: tuple[Any, tuple[str, ...]], devices: tuple[str, ...], data: Any, shapes: list[Any], stacked: bool
    ) -> Any:
        """Returns the function for batches that arrive as bytes: one function if they differ in some dimensions only.

        Args:
            group: the variant for the group, and all of its devices.
            devices: the devices that compute the batch.
            data: the first batch, or several stacked.
            shapes: the shapes to trace for.
            stacked: whether `data` holds several batches.
        """
        variant, _ = group
        flat = tf.nest.flatten(data)
        structure = str(tf.nest.map_structure(lambda _: 0, data))
        key = (group, devices, stacked, tuple((v.dtype, v.shape.rank) for v in flat), structure)
        traced, function = self._packed.get(key, (shapes, None))
        general = [a.most_specific_compatible_shape(b) for a, b in zip(traced, shapes, strict=True)]
        if function is None or any(str(a) != str(b) for a, b in zip(traced, general, strict=True)):
            specs = [tf.TensorSpec(shape, value.dtype) for shape, value in zip(general, flat, strict=True)]

            def from_bytes(message: Any, *arguments: Any) -> Any:
                batch = tf.nest.pack_sequence_as(data, unpack(message, specs))
                return self._program.run(variant, devices, batch, stacked, *arguments)

            function = tf.function(from_bytes, autograph=False)
            function = function.get_concrete_function(tf.TensorSpec([None], tf.uint8), *self._program.arguments)
            self._packed[key] = (general, function)
        return function


def runs_of_equal_shapes(batches: list[Any]) -> list[list[Any]]:
    """Splits `batches`, in order, where their shapes change. The batches of each run can be stacked."""
    runs: list[list[Any]] = []
    last: Any = None
    for batch in batches:
        flat = tf.nest.flatten(batch)
        dense = all(isinstance(value, tf.Tensor) for value in flat)
        shapes = [value.shape for value in flat] if dense else None
        if dense and shapes == last:
            runs[-1].append(batch)
        else:
            runs.append([batch])
        last = shapes
    return runs


def examples_in(batch: Any) -> int | None:
    """Returns the number of examples of a batch; None if no tensor of the batch is dense."""
    for value in tf.nest.flatten(batch):
        if isinstance(value, tf.Tensor) and value.shape.rank:
            return int(value.shape[0])
    return None


def _type_of(value: Any) -> Any:
    """Returns what two values must have in common to be arguments of the same traced function."""
    if isinstance(value, tf.Tensor):
        return value.dtype, tuple(value.shape)
    return None if value is None else tf.type_spec_from_value(value)


def _shapes_to_trace(flat: list[Any], element_spec: Any, stacked: bool) -> list[Any]:
    """Returns the shapes to trace a function for: those of the dataset if they fit, else those of the values.

    Args:
        flat: the values.
        element_spec: nested specifications of the dataset's elements, or None.
        stacked: whether `flat` holds several batches along a new first dimension.
    """
    own = [getattr(value, "shape", None) for value in flat]
    specs = tf.nest.flatten(element_spec)
    if len(specs) != len(flat) or not all(isinstance(spec, tf.TensorSpec) and spec.shape.rank is not None for spec in specs):
        return own
    general = [tf.TensorShape([None]).concatenate(spec.shape) if stacked else spec.shape for spec in specs]
    fit = all(shape.is_compatible_with(value) for shape, value in zip(general, own, strict=True))
    return general if fit else own
