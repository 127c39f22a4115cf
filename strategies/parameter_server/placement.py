"""Places variables on the ps tasks and updates them there.

A variable goes to the ps that holds the fewest bytes; a large one is split by rows over all ps. So the ps carry nearly equal
loads.
"""

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.strategies.attributes import replaced
from tfdist.strategies.coordinator.critical_section import critical_section
from tfdist.strategies.coordinator.extended import GroupExtended, SharedByReplicas, unwrapped, update_on
from tfdist.strategies.coordinator.members.worker_groups import WorkerGroup
from tfdist.strategies.coordinator.sync_on_read_variable import SyncOnReadVariable
from tfdist.strategies.model_parallel.split_variable import SplitVariable
from tfdist.strategies.model_parallel.variables import current_column
from tfdist.strategies.parameter_server import fused_reads
from tfdist.strategies.parameter_server.relative_assigns import Change, change_of
from tfdist.strategies.parameter_server.variables import ServerVariable, ShardedVariable
from tfdist.strategies.private_api.overrides import overrides
from tfdist.strategies.variable_base import InShards, on_shards

MIN_SHARD_BYTES = 256 * 1024
"""A variable is split if every shard has at least this size. The default of TensorFlow's `MinSizePartitioner`."""


class ServerExtended(GroupExtended):
    """`tf.distribute.StrategyExtended` of `parameter_server`.

    Attributes:
        has_several_groups: whether worker groups make steps at the same time.
        group_number: in a function that is traced, the number of the group that runs it, int32 scalar; None of a single group.
    """

    group_number: Any = None

    def __init__(self, strategy: Any, resolver: Any, groups: Sequence[WorkerGroup]) -> None:
        self.has_several_groups = len(groups) > 1
        super().__init__(strategy, resolver, groups)
        self._tfdist_bytes = [0] * self._num_ps
        self._tfdist_elementwise = False

    def in_group(self, number: Any = None) -> contextlib.AbstractContextManager[None]:
        """Sets `group_number` while a function of a group is traced."""
        return replaced(self, group_number=number)

    # Creating variables.

    @overrides(GroupExtended)
    def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
        self.check_process()
        if kwargs.get("synchronization") == tf.VariableSynchronization.ON_READ:
            return SyncOnReadVariable(self._container_strategy(), next_creator, **kwargs)
        if kwargs.pop("per_worker_variable", False):
            return self._create_per_worker_variable(next_creator, **kwargs)
        aggregation = kwargs.pop("aggregation", None)
        variable = self._create_on_ps(next_creator, kwargs)
        variable.tfdist_strategy = self._container_strategy()
        return self.shared(variable, aggregation)

    def _create_on_ps(self, next_creator: Any, kwargs: dict[str, Any]) -> Any:
        beside, column = unwrapped(kwargs.pop("colocate_with", None)), current_column()
        if isinstance(beside, SplitVariable):
            beside = unwrapped(beside.shards[0 if column is None else column.number])
        home = _ps_of(beside) if beside is not None else self._tfdist_bytes.index(min(self._tfdist_bytes))
        initial_value = kwargs.get("initial_value")
        # Outside of the caller's scopes: an optimizer creates its slots beside a variable.
        with tf.init_scope(), tf.device(None), tf.compat.v1.colocate_with(None, ignore_existing=True):
            if initial_value is None:  # From `tf.saved_model.load`, which assigns the value later.
                return self._create_on(next_creator, home, kwargs)
            with tf.device(_device(home)):
                value = initial_value() if callable(initial_value) else initial_value
                value = tf.convert_to_tensor(getattr(value, "wrapped_value", value), dtype=kwargs.get("dtype"))
            kwargs["initial_value"] = value
            if column is not None:  # A shard of a variable that is sharded over the devices of a replica.
                variable = self._create_on(next_creator, home, kwargs)
                variable.column = column.number
                return variable
            if isinstance(beside, ShardedVariable):
                offsets = beside.offsets if value.shape == beside._shape else None
            else:
                offsets = self._offsets(value) if beside is None else None
            if offsets is None:
                return self._create_on(next_creator, home, kwargs)
            name = kwargs.get("name") or "Variable"
            shards = []
            for number, (begin, end) in enumerate(itertools.pairwise(offsets)):
                shard = {**kwargs, "initial_value": value[begin:end], "name": f"{name}/part_{number}"}
                shard.pop("shape", None)
                shards.append(self._create_on(next_creator, number, shard))
            return ShardedVariable(shards, offsets, f"{name}:0")

    def _create_on(self, next_creator: Any, ps: int, kwargs: dict[str, Any]) -> ServerVariable:
        with tf.device(_device(ps)):
            variable = ServerVariable(next_creator(**kwargs))
        if variable.shape.is_fully_defined():
            self._tfdist_bytes[ps] += variable.shape.num_elements() * max(1, variable.dtype.size)
        return variable

    def _offsets(self, value: Any) -> list[int] | None:
        """Returns the first row of each shard of a new variable, then the number of rows; None if it is not split."""
        count = self._num_ps
        size = value.shape.num_elements() * value.dtype.size
        if count == 1 or value.shape.rank == 0 or value.shape[0] < count or size < count * MIN_SHARD_BYTES:
            return None
        return [value.shape[0] * number // count for number in range(count + 1)]

    @overrides(GroupExtended)
    def _validate_colocate_with_variable(self, colocate_with_variable: Any) -> None:
        if not isinstance(unwrapped(colocate_with_variable), ServerVariable | ShardedVariable | SplitVariable):
            super()._validate_colocate_with_variable(colocate_with_variable)

    # Updating variables.

    def elementwise_updates(self, elementwise: bool) -> contextlib.AbstractContextManager[None]:
        """Says whether the functions passed to `update` treat each element by itself, so that each shard is updated alone."""
        return replaced(self, _tfdist_elementwise=elementwise)

    def shared(self, variable: Any, aggregation: Any) -> Any:
        """See `GroupExtended`."""
        shared = super().shared(variable, aggregation)
        return shared if shared is variable else _Shared(self._container_strategy(), variable, shared.aggregation)

    def update_elements(self, variable: Any, change: Change) -> Any:
        """Makes a change of a variable on the ps that hold it. Replicas that share a variable may not call it."""
        with self.elementwise_updates(True):
            return self.update(variable, change.apply, args=change.for_shards(variable), group=False)

    def by_ps(self, gradients_and_variables: Sequence[tuple[Any, Any]]) -> dict[str, dict[int | None, list[tuple[Any, Any]]]]:
        """Groups pairs by the ps that updates the variable.

        Returns:
            The device of the ps -> the number of the shard, None for a variable as a whole -> pairs. With elementwise updates
            each ps gets the rows of the gradient that belong to its shard. Otherwise the ps of the first shard gets all.
        """
        by_ps: dict[str, dict[int | None, list[tuple[Any, Any]]]] = defaultdict(lambda: defaultdict(list))
        for gradient, wrapper in gradients_and_variables:
            variable = unwrapped(wrapper)
            if self._tfdist_elementwise and isinstance(variable, InShards) and gradient is not None:
                for number, piece in enumerate(variable.for_shards(gradient)):
                    by_ps[variable.shards[number].device][number].append((piece, wrapper))
            else:
                by_ps[variable.device][None].append((gradient, wrapper))
        return by_ps

    def critical_section(self, device: str, gradients: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
        """Keeps other groups from updating variables on the ps `device` while this group applies `gradients` there.

        Keras' optimizers read and write in several operations. Of two updates at the same time one could be lost, or they could
        mix: with Ftrl, weights jumped away.
        """
        if not self.has_several_groups or tf.executing_eagerly():
            return contextlib.nullcontext()
        arrived = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients if g is not None]
        return critical_section("tfdist_update", device, arrived)

    @overrides(GroupExtended)
    def _update(self, var: Any, fn: Any, args: Any, kwargs: Any, group: bool) -> Any:
        variable = unwrapped(var)
        args, kwargs = self._select_single_value(args), self._select_single_value(kwargs)
        if not isinstance(variable, ServerVariable | InShards):
            return super()._update(var, fn, args, kwargs, group)
        if isinstance(variable, ServerVariable) or variable.is_shard or not self._tfdist_elementwise:
            # If it is sharded and not elementwise: read as a whole where its first shard is, and written back in pieces.
            result = _update_on_ps(variable.device, variable, fn, args, kwargs)
            return result if group else tf.nest.map_structure(self._local_results, result)

        def update(shard: Any, function: Any, args: Any, kwargs: Any, group: bool) -> Any:
            return _update_on_ps(shard.device, shard, function, args, kwargs)

        return on_shards(update, variable, fn, args, kwargs, group)


def extended_of(optimizer: Any) -> ServerExtended | None:
    """Returns the `ServerExtended` of the strategy of an optimizer of Keras; None if it has another strategy."""
    extended = getattr(getattr(optimizer, "_distribution_strategy", None), "extended", None)
    return extended if isinstance(extended, ServerExtended) else None


class _Shared(SharedByReplicas):
    """A variable on a ps that the replicas of a group share."""

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Assigns a value, as `tf.Variable.assign`; if it is computed from the old one, see relative_assigns.py."""
        means = (tf.VariableAggregation.MEAN, tf.VariableAggregation.ONLY_FIRST_REPLICA)
        change = change_of(self.get(), value, self.aggregation in means)
        if change is None:
            return super().assign(value, *args, **kwargs)
        return self._assign_func(change.rest, f=change.apply)


def _update_on_ps(device: str, variable: Any, update: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    with fused_reads.current().updating(device):
        return update_on(device, variable, update, args, kwargs)


def _device(ps: int) -> str:
    return f"/job:ps/replica:0/task:{ps}/device:CPU:0"


def _ps_of(variable: Any) -> int:
    return tf.DeviceSpec.from_string(variable.device).task or 0
