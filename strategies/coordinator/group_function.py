"""A model's step as functions that worker groups run: traced once for groups that look alike, with one replica per worker."""

import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.strategies.coordinator import chief_device
from tfdist.strategies.coordinator.batch_packing import can_pack, pack, unpack
from tfdist.strategies.coordinator.worker_groups import WorkerGroup
from tfdist.strategies.inputs.batch_shards import Layout, per_replica
from tfdist.strategies.keras_hooks import replica_context as replicas
from tfdist.strategies.parameter_server import tensor_fusion
from tfdist.strategies.parameter_server.variables import ServerVariable, unwrapped

tracing_lock = threading.RLock()


class GroupFunction:
    """`step` of `model` for every worker group.

    Args:
        strategy: the ParameterServer strategy.
        model: the Keras model.
        step: its train_step, test_step or predict_step.
        on_replica: what a replica gives, of the outputs of its step. For several steps at once a float64 vector.
        after: what a replica gives after the last step, in a call of its own.
        collect: what the function gives: takes what the replicas gave of the last step, what they gave after it, their shares
            of the examples of the last step (float32 scalars).
    """

    arguments: tuple[tf.TensorSpec, ...] = ()
    """What the function takes beside a batch."""

    no_xla = "XLA has no access to variables of another task"
    """Why jit_compile cannot work."""

    def __init__(
        self,
        strategy: Any,
        model: Any,
        step: Callable[..., Any],
        on_replica: Callable[[Any], Any],
        after: Callable[[], Any],
        collect: Callable[[list[Any], list[Any], list[Any]], Any],
    ) -> None:
        self._refuse_what_cannot_run(strategy.title, model)
        self._strategy = strategy
        self._model = model
        self._step = model._autoconvert_optionals(step)
        self._on_replica = on_replica
        self._after = after
        self._collect = collect
        self._functions: dict[Any, Any] = {}
        self._packed: dict[Any, tuple[list[tf.TensorShape], Any]] = {}
        self._traced: dict[Any, list[Any]] = {}

    def _refuse_what_cannot_run(self, strategy: str, model: Any) -> None:
        if model.run_eagerly:
            raise ValueError(
                f"run_eagerly=True cannot work under {strategy}: a worker runs compiled functions only. "
                "Leave run_eagerly away, or debug in one process (--tier BASIC)."
            )
        if model.jit_compile is True:
            raise ValueError(f"jit_compile=True cannot work under {strategy}: {self.no_xla}. Leave jit_compile at 'auto'.")

    def prepare(self, batches: list[Any], element_spec: Any = None, variant: Any = None) -> Callable[..., Any]:
        """The function that a group runs on `batches`, one step each: takes the number of the group, then `arguments`.

        Args:
            batches: nested tensors, of equal shapes where they are several.
            element_spec: the specification of the dataset that they are from, which says which dimensions differ between
                batches; without it they are traced for the shapes that they have.
            variant: which of several functions, told to `_run`; hashable.
        """
        several = len(batches) > 1
        data = tf.nest.map_structure(lambda *values: tf.stack(values), *batches) if several else batches[0]
        flat = tf.nest.flatten(data)
        packed = can_pack(flat)
        signature = (
            variant,
            several,
            packed,
            tuple(_type_of(value) for value in flat),
            str(tf.nest.map_structure(lambda _: 0, data)),
        )
        traced = self._traced.get(signature)
        if traced is None:
            examples = rows_of(batches[0])
            shapes = _shapes(flat, element_spec, several)
            traced = [
                self._trace(group, variant, data, shapes, several, packed, examples) for group in self._strategy.worker_groups
            ]
            self._traced[signature] = traced
        if packed:
            return lambda group, *arguments: traced[group](chief_device.constant(pack(flat)), *arguments)
        return lambda group, *arguments: traced[group](data, *arguments)

    def _variant_of(self, group: WorkerGroup, variant: Any) -> Any:
        """What else the function depends on than the batch and what the group looks like inside."""
        del group
        return variant

    def _trace(
        self,
        group: WorkerGroup,
        variant: Any,
        data: Any,
        shapes: list[Any],
        several: bool,
        packed: bool,
        examples: int | None,
    ) -> Any:
        # A batch with fewer examples than the group has workers is computed by the first alone.
        width = len(group.devices) if examples is None or examples >= len(group.devices) else 1
        devices = group.traced_devices[:width]
        variant = self._variant_of(group, variant)
        with tracing_lock, tf.device(group.devices[0]), self._strategy.extended.tracing(devices):
            if packed:
                return self._trace_packed(variant, devices, data, shapes, several)
            key = (variant, devices, several)
            if key not in self._functions:
                self._functions[key] = tf.function(
                    lambda batch, *arguments: self._run(variant, devices, batch, several, *arguments),
                    reduce_retracing=True,
                    autograph=False,
                )
            return self._functions[key].get_concrete_function(data, *self.arguments)

    def _trace_packed(self, variant: Any, devices: tuple[str, ...], data: Any, shapes: list[Any], several: bool) -> Any:
        """The function for batches that come as bytes: one for all that differ in some dimensions only."""
        flat = tf.nest.flatten(data)
        structure = str(tf.nest.map_structure(lambda _: 0, data))
        key = (variant, devices, several, tuple((v.dtype, v.shape.rank) for v in flat), structure)
        known, function = self._packed.get(key, (shapes, None))
        general = [a.most_specific_compatible_shape(b) for a, b in zip(known, shapes, strict=True)]
        if function is None or any(str(a) != str(b) for a, b in zip(known, general, strict=True)):
            specs = [tf.TensorSpec(shape, value.dtype) for shape, value in zip(general, flat, strict=True)]

            def from_bytes(message: Any, *arguments: Any) -> Any:
                batch = tf.nest.pack_sequence_as(data, unpack(message, specs))
                return self._run(variant, devices, batch, several, *arguments)

            function = tf.function(from_bytes, autograph=False)
            function = function.get_concrete_function(tf.TensorSpec([None], tf.uint8), *self.arguments)
            self._packed[key] = (general, function)
        return function

    def _run(self, variant: Any, devices: tuple[str, ...], data: Any, several: bool) -> Any:
        """In the function: one step, or one for each entry of the first dimension of `data`; what `collect` makes of them."""
        del variant
        if several:
            count = tf.shape(tf.nest.flatten(data)[0])[0]
            width = len(devices)

            def body(number: tf.Tensor, before: Any, shares: Any) -> Any:
                del before, shares
                outputs, shares = self._one_step(devices, tf.nest.map_structure(lambda value: value[number], data))
                return number + 1, outputs, shares

            begin = (tf.constant(0), [tf.zeros([0], tf.float64)] * width, [tf.constant(0.0)] * width)
            shapes = (tf.TensorShape([]), [tf.TensorShape([None])] * width, [tf.TensorShape([])] * width)
            _, outputs, shares = tf.while_loop(lambda number, *_: number < count, body, begin, shapes, parallel_iterations=1)
        else:
            outputs, shares = self._one_step(devices, data)
        after = self._by_replica(devices, self._strategy.run(self._after))
        return self._collect(outputs, after, shares)

    def _one_step(self, devices: tuple[str, ...], data: Any) -> tuple[list[Any], list[Any]]:
        """What each replica gave, and its share of the examples."""
        strategy = self._strategy
        layout = Layout(len(devices), range(len(devices)))
        shares: list[Any] = [tf.constant(1.0)]
        batch = data
        if len(devices) > 1:
            element = layout.split(data)
            batch = per_replica(element["shards"])
            shares = layout.shares(element["examples"])
        with tensor_fusion.tracing_step():
            joined = tensor_fusion.join(_read_by_each_step(self._model))

            def on_replica(part: Any) -> Any:
                index = int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group))
                share = shares[index] if len(devices) > 1 else None
                tensor_fusion.begin_replica(joined, devices[index])
                with replicas.entered(replicas.Replica(strategy, index, share)):
                    return self._on_replica(self._step(part))

            return self._by_replica(devices, strategy.run(on_replica, args=(batch,))), shares

    def _by_replica(self, devices: tuple[str, ...], outputs: Any) -> list[Any]:
        """Of several replicas' outputs TensorFlow makes one whose leaves have a value for each; this takes them apart."""
        extended = self._strategy.extended
        return [tf.nest.map_structure(lambda v, r=r: extended.local_replicas(v)[r], outputs) for r in range(len(devices))]


def _read_by_each_step(model: Any) -> list[Any]:
    """The variables on ps tasks that a step reads: the model's, and the optimizer's numbers (learning rate, iterations)."""
    candidates = [*model.variables]
    optimizer = getattr(model, "optimizer", None)
    for owner in (optimizer, getattr(optimizer, "inner_optimizer", None)):
        candidates += [variable for variable in getattr(owner, "variables", []) if variable.shape.rank == 0]
    found = {id(v): v for v in (unwrapped(getattr(c, "_value", None)) for c in candidates)}
    return [variable for variable in found.values() if isinstance(variable, ServerVariable)]


def _shapes(flat: list[Any], element_spec: Any, several: bool) -> list[Any]:
    """The shapes to trace for: those of the dataset where they fit, else those of the values."""
    own = [getattr(value, "shape", None) for value in flat]
    specs = tf.nest.flatten(element_spec)
    if len(specs) != len(flat) or not all(isinstance(spec, tf.TensorSpec) and spec.shape.rank is not None for spec in specs):
        return own
    given = [tf.TensorShape([None]).concatenate(spec.shape) if several else spec.shape for spec in specs]
    fit = all(shape.is_compatible_with(value) for shape, value in zip(given, own, strict=True))
    return given if fit else own


def _type_of(value: Any) -> Any:
    """What a value has to have in common with another to be passed to the same traced function."""
    if isinstance(value, tf.Tensor):
        return value.dtype, tuple(value.shape)
    return None if value is None else tf.type_spec_from_value(value)


def rows_of(batch: Any) -> int | None:
    """The number of examples of a batch on the chief; None where it is not known without looking."""
    for value in tf.nest.flatten(batch):
        if isinstance(value, tf.Tensor) and value.shape.rank:
            return int(value.shape[0])
    return None
