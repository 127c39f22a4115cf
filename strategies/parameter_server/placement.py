"""Where variables are created on the ps tasks, and how replicas read, add up and update them.

Servers get nearly equal loads: a variable goes to the ps that holds the fewest bytes, a large one is split by rows over all.
"""

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdist.strategies.coordinator.critical_section import critical_section
from tfdist.strategies.coordinator.extended import GroupExtended
from tfdist.strategies.coordinator.sync_on_read_variable import SyncOnReadVariable
from tfdist.strategies.coordinator.worker_groups import WorkerGroup
from tfdist.strategies.parameter_server.variables import ServerVariable, ShardedVariable, shard_scope, unwrapped

MIN_SHARD_BYTES = 256 * 1024
"""A variable is split when every shard has at least this size: the default of TensorFlow's `MinSizePartitioner`."""


class ServerExtended(GroupExtended):
    """TensorFlow's extended ParameterServerStrategy, with placement by size, shards, and worker groups of several replicas."""

    def __init__(self, strategy: Any, resolver: Any, groups: Sequence[WorkerGroup]) -> None:
        super().__init__(strategy, resolver, groups)
        self._tfdist_bytes = [0] * self._num_ps
        self._tfdist_by_element = False

    # Creating variables.

    def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
        if kwargs.get("synchronization") == tf.VariableSynchronization.ON_READ:
            return SyncOnReadVariable(self._container_strategy(), next_creator, **kwargs)
        if kwargs.pop("per_worker_variable", False):
            return self._create_per_worker_variable(next_creator, **kwargs)
        aggregation = kwargs.pop("aggregation", None)
        return self._shared(self._create_on_servers(next_creator, kwargs), aggregation)

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

    def critical_section(self, device: str, gradients: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
        """Keeps other groups from updating variables on the ps `device` while this group applies `gradients` there.

        Keras' optimizers read and write in several operations. Of two updates at the same time one could be lost, or they could
        mix: with Ftrl, weights jumped away.
        """
        if self._tfdist_groups == 1 or tf.executing_eagerly():
            return contextlib.nullcontext()
        arrived = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients if g is not None]
        return critical_section("tfdist_update", device, arrived)

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


def _pieces(variable: ShardedVariable, value: Any) -> list[Any]:
    """An argument of an update for each shard: a tensor of the variable's shape cut by rows, anything else as it is."""
    whole = variable._shape
    if isinstance(value, tf.IndexedSlices) or (tf.is_tensor(value) and not hasattr(value, "handle") and value.shape == whole):
        return variable.split(value)
    return [value] * len(variable.parts)
