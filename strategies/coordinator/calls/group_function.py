"""The functions that worker groups run: traced once for groups that look alike, cached, and called with a batch.

What a function computes is a `GroupProgram`, which each strategy supplies.
"""

import abc
import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.strategies.coordinator.calls.tensor_fusion import can_pack, pack, unpack, unpack_arguments
from tfdist.strategies.coordinator.calls.tracing import tracing_lock
from tfdist.strategies.coordinator.members.worker_groups import WorkerGroup
from tfdist.strategies.inputs.batches import without_optionals
from tfdist.strategies.runtime import chief_device


class GroupProgram(abc.ABC):
    """What a worker group computes with one call."""

    arguments: tuple[tf.TensorSpec, ...] = ()
    """What the function takes beside the batch: shapes fully known."""

    def variant_of(self, group: WorkerGroup, variant: Hashable) -> Hashable:
        """Returns what the traced function depends on beside the batch and the devices of the group.

        Args:
            group: the group.
            variant: as given to `GroupFunction.prepare`.
        """
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
        self._traced: dict[Any, Callable[..., Any]] = {}

    def prepare(self, batches: list[Any], element_spec: Any = None, variant: Hashable = None) -> Callable[..., Any]:
        """Returns the call that runs the program on `batches`: it takes the number of the group, then the arguments.

        Args:
            batches: one or more batches, nested tensors or `HostBatch`es. Several have equal signatures.
            element_spec: the element specification of their dataset. It tells which dimensions differ between batches; without
                it, functions are traced for the shapes of these batches.
            variant: distinguishes functions that compute different things on the same batches.
        """
        own = [HostBatch.of(batch) for batch in batches]
        return functools.partial(self.traced(own, element_spec, variant), own)

    def traced(self, batches: list["HostBatch"], element_spec: Any = None, variant: Hashable = None) -> Callable[..., Any]:
        """Returns the function for batches like these, and any number of them if they are several.

        Args:
            batches: as for `prepare`.
            element_spec: as for `prepare`.
            variant: as for `prepare`.

        Returns:
            A function that takes the batches, the number of the group, and the arguments, numpy arrays.
        """
        stacked, batch = len(batches) > 1, batches[0]
        signature = (variant, stacked, batch.signature)
        call = self._traced.get(signature)
        if call is None:
            specs = _specs_to_trace(batch, element_spec, stacked)
            functions = [self._trace(group, variant, batch, specs, stacked) for group in self._strategy.worker_groups]
            call = functools.partial(self._run_packed if batch.arrays is not None else self._run_as_they_are, functions)
            self._traced[signature] = call
        return call

    def _run_packed(self, functions: list[Any], batches: list["HostBatch"], group: int, *arguments: Any) -> Any:
        message = pack([batch.arrays or [] for batch in batches], len(batches) > 1, arguments)
        return functions[group](chief_device.constant(message))

    def _run_as_they_are(self, functions: list[Any], batches: list["HostBatch"], group: int, *arguments: Any) -> Any:
        values = [batch.values for batch in batches]
        data = tf.nest.map_structure(lambda *each: tf.stack(each), *values) if len(values) > 1 else values[0]
        return functions[group](data, *map(chief_device.constant, arguments))

    def trace_for(self, group: WorkerGroup, devices: Sequence[str], key: Hashable, trace: Callable[[], Any]) -> Any:
        """Returns the function that `trace` makes for a group. Groups with the same key share it."""
        if key not in self._functions:
            with tracing_lock, tf.device(group.devices[0]), self._strategy.extended.tracing(devices):
                self._functions[key] = trace()
        return self._functions[key]

    def _trace(self, group: WorkerGroup, variant: Any, batch: "HostBatch", specs: list[Any], stacked: bool) -> Any:
        # The first replica computes a batch with fewer examples than the group has replicas.
        examples = examples_in(batch.values)
        width = len(group.devices) if examples is None or examples >= len(group.devices) else 1
        devices = group.traced_devices[:width]
        variant = self._program.variant_of(group, variant)
        with tracing_lock, tf.device(group.devices[0]), self._strategy.extended.tracing(devices, group.traced_devices):
            if batch.arrays is not None:
                return self._trace_packed((variant, group.traced_devices), devices, batch, specs, stacked)
            key = (variant, group.traced_devices, devices, stacked)
            if key not in self._functions:
                self._functions[key] = tf.function(
                    lambda data, *arguments: self._program.run(variant, devices, data, stacked, *arguments),
                    reduce_retracing=True,
                    autograph=False,
                )
            return self._functions[key].get_concrete_function(
                tf.nest.pack_sequence_as(batch.values, specs), *self._program.arguments
            )

    def _trace_packed(
        self, group: tuple[Any, tuple[str, ...]], devices: tuple[str, ...], like: "HostBatch", specs: list[Any], stacked: bool
    ) -> Any:
        """Returns the function for batches that arrive as bytes: one function if they differ in some dimensions only.

        Args:
            group: the variant for the group, and all of its devices.
            devices: the devices that compute the batch.
            like: a batch like them.
            specs: the specs of the tensors to trace for.
            stacked: whether the message holds several batches.
        """
        variant, _ = group
        key = (group, devices, stacked, tuple((v.dtype, v.shape.rank) for v in like.flat), like.signature[0])
        shapes = [spec.shape for spec in specs]
        traced, function = self._packed.get(key, (shapes, None))
        general = [a.most_specific_compatible_shape(b) for a, b in zip(traced, shapes, strict=True)]
        if function is None or any(str(a) != str(b) for a, b in zip(traced, general, strict=True)):
            specs = [tf.TensorSpec(shape, value.dtype) for shape, value in zip(general, like.flat, strict=True)]

            def from_bytes(message: Any) -> Any:
                arguments, begin = unpack_arguments(message, self._program.arguments)
                data = like.filled(unpack(message, specs, begin))
                return self._program.run(variant, devices, data, stacked, *arguments)

            function = tf.function(from_bytes, autograph=False)
            function = function.get_concrete_function(tf.TensorSpec([None], tf.uint8))
            self._packed[key] = (general, function)
        return function


class HostBatch:
    """A batch on the chief, taken apart once.

    Attributes:
        values: the nested tensors.
        flat: the tensors in the order of `tf.nest.flatten`; those that are None only if the batch cannot travel as bytes.
        arrays: views of them as numpy arrays; None if they cannot travel as bytes.
        signature: what two batches have in common if one traced function takes both: structure, dtypes and shapes.
        is_dense: whether several of them with the same signature can be stacked.
    """

    __slots__ = ("arrays", "flat", "is_dense", "signature", "values")

    def __init__(self, values: Any) -> None:
        self.values = values
        self.flat = tf.nest.flatten(values)
        self.is_dense = all(isinstance(value, tf.Tensor) for value in self.flat)
        self.arrays: list[Any] | None = None
        given = [value for value in self.flat if value is not None]  # `train_on_batch` passes None for missing weights.
        if given and can_pack(given):
            self.flat = given
            self.arrays = [np.asarray(value) for value in self.flat]
            types: tuple[Any, ...] = tuple((array.dtype, array.shape) for array in self.arrays)
        else:
            types = tuple(_type_of(value) for value in self.flat)
        self.signature = (_structure_of(values), types)

    def filled(self, tensors: Sequence[Any]) -> Any:
        """Returns nested tensors like `values` with these in place of the tensors in `flat`, where no other is None."""
        values = iter(tensors)
        return tf.nest.map_structure(lambda value: None if value is None else next(values), self.values)

    @classmethod
    def of(cls, batch: Any) -> "HostBatch":
        """Returns `batch` as a `HostBatch`, if it is none."""
        return batch if isinstance(batch, HostBatch) else cls(batch)


def _structure_of(values: Any) -> Hashable:
    """Returns what two nested structures have in common if `tf.nest` takes one for the other; quick for those of datasets."""
    if type(values) is tuple:
        return tuple(map(_structure_of, values))
    if type(values) is dict:
        return ("dict", *((name, _structure_of(values[name])) for name in sorted(values)))
    if isinstance(values, tf.Tensor):
        return 0
    return str(tf.nest.map_structure(lambda value: None if value is None else 0, values))


def runs_of_equal_shapes(batches: list[Any]) -> list[list[HostBatch]]:
    """Splits batches, nested tensors in order, where their shapes change. The batches of each run can be stacked."""
    runs: list[list[HostBatch]] = []
    for batch in map(HostBatch.of, batches):
        if runs and batch.is_dense and batch.signature == runs[-1][0].signature:
            runs[-1].append(batch)
        else:
            runs.append([batch])
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


def _specs_to_trace(batch: HostBatch, element_spec: Any, stacked: bool) -> list[Any]:
    """Returns what to trace a function for, a spec for each value in `batch.flat`: those of the dataset if they fit.

    A step may compute with the number of examples that it is traced for: Keras does, in the losses of several outputs.

    Args:
        batch: the first batch.
        element_spec: nested specifications of the dataset's elements, or None.
        stacked: whether to trace for several batches along a new first dimension. All of them are dense then.
    """
    own: list[Any] = [None if value is None else tf.type_spec_from_value(value) for value in batch.flat]
    specs = tf.nest.flatten(without_optionals(element_spec))
    if batch.arrays is not None:
        specs = [spec for spec in specs if spec is not None]
    if len(specs) == len(own) and all(_fits(*pair) for pair in zip(specs, own, strict=True)):
        own = [value and spec for spec, value in zip(specs, own, strict=True)]
    return [tf.TensorSpec([None, *spec.shape], spec.dtype) for spec in own] if stacked else own


def _fits(spec: Any, value: Any) -> bool:
    """Returns whether the spec of a dataset allows a value, of which the spec is given. Both may be None."""
    return spec is value or (spec is not None and spec.shape.rank is not None and bool(spec.is_compatible_with(value)))
