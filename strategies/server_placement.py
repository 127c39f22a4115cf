"""Where variables are created on the ps tasks, and how replicas read, add up and update them.

Servers get nearly equal loads: a variable goes to the ps that holds the fewest bytes, a large one is split by rows over all.
"""

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdist.strategies import parameter_exchange
from tfdist.strategies import replica as replicas
from tfdist.strategies._private import (
    ParameterServerExtended,
    PerReplica,
    UpdateContext,
    call_for_each_replica,
)
from tfdist.strategies.server_variables import ServerVariable, ShardedVariable, SharedByReplicas, shard_scope, unwrapped
from tfdist.strategies.worker_groups import WorkerGroup
from tfdist.strategies.worker_local import WorkerLocalVariable

MIN_SHARD_BYTES = 256 * 1024
"""A variable is split when every shard has at least this size: the default of TensorFlow's `MinSizePartitioner`."""


class ServerExtended(ParameterServerExtended):
    """TensorFlow's extended ParameterServerStrategy, with placement by size, shards, and worker groups of several replicas."""

    def __init__(self, strategy: Any, resolver: Any, groups: Sequence[WorkerGroup]) -> None:
        self._tfdist_widest = max(len(group.devices) for group in groups)
        alike = {group.traced_devices for group in groups}
        # What a function that the user schedules by hand is traced for: None where that depends on the group that runs it.
        self._tfdist_usual = alike.pop() if len(alike) == 1 and len(groups[0].tasks) == 1 else None
        self._tfdist_groups = len(groups)
        self._tfdist_tracing: tuple[str, ...] | None = None
        super().__init__(strategy, resolver, None)
        self._tfdist_bytes = [0] * self._num_ps
        self._tfdist_by_element = False

    # Replicas.

    @contextlib.contextmanager
    def tracing(self, devices: Sequence[str]) -> Iterator[None]:
        """Around the tracing of a step of a worker group with these replica devices."""
        outer, self._tfdist_tracing = self._tfdist_tracing, tuple(devices)
        try:
            yield
        finally:
            self._tfdist_tracing = outer

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """The devices of the replicas of the group whose step is traced; else of whatever group runs the function."""
        return self._tfdist_tracing or self._tfdist_usual or tuple(super().worker_devices)

    @property
    def _num_replicas_in_sync(self) -> int:
        return len(self._tfdist_tracing) if self._tfdist_tracing else self._tfdist_widest

    def _batch_reduce_to(self, reduce_op: Any, value_destination_pairs: Any, options: Any) -> Any:
        """Adds up gradients of several replicas, small ones joined. One replica's are what they are."""
        if not self._tfdist_tracing:
            return super()._batch_reduce_to(reduce_op, value_destination_pairs, options)
        values = [self.local_replicas(value) for value, _ in value_destination_pairs]
        replicas = len(self._tfdist_tracing)
        if replicas == 1:
            return [tensors[0] for tensors in values]
        dense = [i for i, tensors in enumerate(values) if not any(isinstance(t, tf.IndexedSlices) for t in tensors)]
        sums = dict(zip(dense, parameter_exchange.add_up([values[i] for i in dense], self._tfdist_tracing), strict=True))
        with tf.device(self._tfdist_tracing[0]):
            for i, tensors in enumerate(values):
                if i not in sums:
                    sums[i] = _joined_slices(tensors)
            mean = str(getattr(reduce_op, "value", reduce_op)).upper() == "MEAN"
            done = [sums[i] for i in range(len(values))]
            return tf.nest.map_structure(lambda v: v / replicas, done) if mean else done

    def local_replicas(self, value: Any) -> list[Any]:
        """The values of the replicas whose step is traced; one that they have in common for each."""
        if isinstance(value, PerReplica):
            return list(value.values)
        return [value] * len(self.worker_devices)

    def _call_for_each_replica(self, fn: Any, args: Any, kwargs: Any) -> Any:
        if self._tfdist_widest > 1 and not (self._tfdist_tracing or self._tfdist_usual):
            raise RuntimeError(
                "strategy.run cannot be traced by hand where the workers of a group are in several tasks: each group needs a "
                "function of its own. Train with Keras' fit, or describe groups of one worker or groups inside one task"
            )
        return call_for_each_replica(self._container_strategy(), fn, args, kwargs)

    # Creating variables.

    def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
        if kwargs.get("synchronization") == tf.VariableSynchronization.ON_READ:
            return WorkerLocalVariable(self._container_strategy(), next_creator, **kwargs)
        if kwargs.pop("per_worker_variable", False):
            return self._create_per_worker_variable(next_creator, **kwargs)
        aggregation = kwargs.pop("aggregation", None) or tf.VariableAggregation.NONE
        variable = self._create_on_servers(next_creator, kwargs)
        if self._tfdist_widest == 1:
            return variable
        if aggregation == tf.VariableAggregation.NONE:
            # Mirrored replicas would each keep their own (moving averages of BatchNormalization); here they share one.
            mean = variable.dtype.is_floating or variable.dtype.is_complex
            aggregation = tf.VariableAggregation.MEAN if mean else tf.VariableAggregation.ONLY_FIRST_REPLICA
        return SharedByReplicas(self._container_strategy(), variable, aggregation)

    def _create_on_servers(self, next_creator: Any, kwargs: dict[str, Any]) -> Any:
        beside = unwrapped(kwargs.pop("colocate_with", None))
        home = self._server_of(beside) if beside is not None else self._tfdist_bytes.index(min(self._tfdist_bytes))
        initial_value = kwargs.get("initial_value")
        # Without the scopes of whoever creates it: an optimizer creates its slots beside a variable.
        with tf.init_scope(), tf.device(None), tf.compat.v1.colocate_with(None, ignore_existing=True):
            if initial_value is None:  # tf.saved_model.load: the value comes later.
                return self._create_part(next_creator, home, kwargs)
            with tf.device(self._device(home)):
                value = initial_value() if callable(initial_value) else initial_value
                value = tf.convert_to_tensor(getattr(value, "wrapped_value", value), dtype=kwargs.get("dtype"))
            kwargs["initial_value"] = value
            if isinstance(beside, ShardedVariable):
                offsets = beside.offsets if value.shape == beside._shape else None
            else:
                offsets = self._offsets(value) if beside is None else None
            if offsets is None:
                return self._create_part(next_creator, home, kwargs)
            name = kwargs.get("name") or "Variable"
            parts = []
            for number, (begin, end) in enumerate(itertools.pairwise(offsets)):
                part = {**kwargs, "initial_value": value[begin:end], "name": f"{name}/part_{number}"}
                part.pop("shape", None)
                parts.append(self._create_part(next_creator, number, part))
            return ShardedVariable(parts, offsets, f"{name}:0")

    def _create_part(self, next_creator: Any, server: int, kwargs: dict[str, Any]) -> ServerVariable:
        with tf.device(self._device(server)):
            variable = ServerVariable(next_creator(**kwargs))
        if variable.shape.is_fully_defined():
            self._tfdist_bytes[server] += variable.shape.num_elements() * max(1, variable.dtype.size)
        return variable

    def _offsets(self, value: Any) -> list[int] | None:
        """The first rows of the shards of a new variable, then its number of rows; None where it stays whole."""
        servers = self._num_ps
        size = value.shape.num_elements() * value.dtype.size
        if servers == 1 or value.shape.rank == 0 or value.shape[0] < servers or size < servers * MIN_SHARD_BYTES:
            return None
        return [value.shape[0] * number // servers for number in range(servers + 1)]

    @staticmethod
    def _device(server: int) -> str:
        return f"/job:ps/replica:0/task:{server}/device:CPU:0"

    @staticmethod
    def _server_of(variable: Any) -> int:
        return tf.DeviceSpec.from_string(variable.device).task or 0

    def _validate_colocate_with_variable(self, colocate_with_variable: Any) -> None:
        if not isinstance(unwrapped(colocate_with_variable), ServerVariable | ShardedVariable):
            super()._validate_colocate_with_variable(colocate_with_variable)

    # Updating variables.

    def _use_merge_call(self) -> bool:
        """Not once the gradients of a step are added up: the rest of an update may stand in a `cond`, where none can meet."""
        replica = replicas.current()
        return replica is None or not replica.reduced

    def _replica_ctx_update(self, var: Any, fn: Any, args: Any, kwargs: Any, group: bool) -> Any:
        """An update that every replica asks for alike: the first does it."""
        replica = replicas.current()
        return self._update(var, fn, args, kwargs, group) if replica is None or replica.index == 0 else None

    @contextlib.contextmanager
    def updates_by_element(self, by_element: bool) -> Iterator[None]:
        """Whether the functions given to `update` treat each element by itself, so that shards can be updated one by one."""
        outer, self._tfdist_by_element = self._tfdist_by_element, by_element
        try:
            yield
        finally:
            self._tfdist_by_element = outer

    def by_server(
        self, gradients_and_variables: Sequence[tuple[Any, Any]]
    ) -> dict[str, dict[int | None, list[tuple[Any, Any]]]]:
        """The pairs by the device where they are updated, and there by the number of the shard, None for what is whole.

        Of a variable that is updated shard by shard each ps gets its piece of the gradient; any other is where its first is.
        """
        servers: dict[str, dict[int | None, list[tuple[Any, Any]]]] = defaultdict(lambda: defaultdict(list))
        for gradient, given in gradients_and_variables:
            variable = unwrapped(given)
            if self._tfdist_by_element and isinstance(variable, ShardedVariable) and gradient is not None:
                for number, piece in enumerate(variable.split(gradient)):
                    servers[variable.parts[number].device][number].append((piece, given))
            else:
                servers[variable.device][None].append((gradient, given))
        return servers

    @contextlib.contextmanager
    def alone_on(self, device: str, gradients: Sequence[Any]) -> Iterator[None]:
        """Around the updates of variables on a ps with `gradients`: there, no other group updates meanwhile.

        Keras' optimizers read and write in several operations. Of two updates at once one could be lost, or mix with the other:
        Ftrl was seen to jump away.
        """
        if self._tfdist_groups == 1 or tf.executing_eagerly():
            yield
            return
        graph = tf.compat.v1.get_default_graph()
        arrived = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients if g is not None]
        with tf.device(device), tf.control_dependencies(arrived):
            lock = tf.raw_ops.MutexLock(mutex=tf.raw_ops.MutexV2(shared_name="tfdist_update"))
        begin = len(graph.get_operations())
        with tf.control_dependencies([lock]):
            yield
        written = [op for op in graph.get_operations()[begin:] if "Assign" in op.type or "Resource" in op.type]
        with tf.device(device), tf.control_dependencies(written):
            tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)

    def _update(self, var: Any, fn: Any, args: Any, kwargs: Any, group: bool) -> Any:
        variable = unwrapped(var)
        args, kwargs = self._select_single_value(args), self._select_single_value(kwargs)
        if not isinstance(variable, ServerVariable | ShardedVariable):
            return super()._update(var, fn, args, kwargs, group)
        if isinstance(variable, ServerVariable) or variable.is_shard or not self._tfdist_by_element:
            # A shard-wise variable is read as a whole where its first shard is, and written back in pieces.
            result = self._update_on(variable.device, variable, fn, args, kwargs)
            return result if group else tf.nest.map_structure(self._local_results, result)
        pieces = [_pieces(variable, value) for value in args]
        named = {name: _pieces(variable, value) for name, value in kwargs.items()}
        for number, part in enumerate(variable.parts):
            with shard_scope(number):
                self._update_on(
                    part.device, variable, fn, [p[number] for p in pieces], {name: p[number] for name, p in named.items()}
                )
        return variable

    @staticmethod
    def _update_on(device: str, variable: Any, fn: Any, args: Any, kwargs: Any) -> Any:
        with tf.device(device), UpdateContext(device), parameter_exchange.updating(device):
            return fn(variable, *args, **kwargs)


def _pieces(variable: ShardedVariable, value: Any) -> list[Any]:
    """An argument of an update for each shard: a tensor of the variable's shape cut by rows, anything else as it is."""
    whole = variable._shape
    if isinstance(value, tf.IndexedSlices) or (tf.is_tensor(value) and not hasattr(value, "handle") and value.shape == whole):
        return variable.split(value)
    return [value] * len(variable.parts)


def _joined_slices(replicas: list[Any]) -> Any:
    """The sum of gradients of which at least one is IndexedSlices."""
    if not all(isinstance(value, tf.IndexedSlices) for value in replicas):
        return tf.add_n([tf.convert_to_tensor(value) for value in replicas])
    return tf.IndexedSlices(
        tf.concat([value.values for value in replicas], axis=0),
        tf.concat([value.indices for value in replicas], axis=0),
        replicas[0].dense_shape,
    )
