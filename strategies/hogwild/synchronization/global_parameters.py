"""Global parameters on the ps tasks: variables are concatenated into blocks, and each block is cut into shards.

For a model's weights the shards hold the global parameters. For variables that belong to each group (the slots of an optimizer)
they hold the values from which a new or restarted group starts.
"""

import contextlib
import itertools
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.strategies.coordinator.calls.tensor_fusion import flatten, unflatten
from tfdist.strategies.hogwild.synchronization.local_variable import Kind, LocalVariable
from tfdist.strategies.hogwild.synchronization.outer_optimizers import OuterOptimizer
from tfdist.strategies.hogwild.synchronization.reply_queue import ReplyQueue
from tfdist.strategies.hogwild.synchronization.shard import Shard
from tfdist.strategies.named_variable import NamedVariable
from tfdist.strategies.runtime import chief_device

SHARDS_PER_SERVER, SHARD_BYTES = 8, 2**21
"""A ps splits its part of a block into up to 8 shards of at least 2 MiB. Smaller ones cost more than they save:
benchmarks/exchange.md.

They travel one after the other: while the reply for one comes back, the next is on its way to the ps.
"""

ALIGNMENT = 64
"""Number of values that fill whole cache lines for every dtype: TensorFlow aligns tensors to them (EIGEN_MAX_ALIGN_BYTES)."""


class ParameterBlock:
    """Variables of one dtype and kind, concatenated into one vector.

    Args:
        variables: the variables.
        servers: devices of the ps tasks of each server group.
        optimizer: the outer optimizer.
        groups: number of worker groups.
        compressed: whether groups receive compressed replies.

    Attributes:
        variables: the variables in the order of their values in the vector.
        kind: their kind.
        dtype: their dtype.
        size: number of values.
        sizes: number of values of each shard.
        parts: the part of the vector that each shard holds.
        shards: for each server group its shards of the vector. Shards of one ps are neighbors.
        optimizer: the outer optimizer.
        compressed: as given.
        baseline: on the leader of each group, the baseline of the group, [size] (see `outer_optimizers`).
        pulled: on each leader, the global parameters as last pulled, [size]. Differs from `baseline` with compression only.
        last_rounds: on each leader, for each shard the number of complete rounds in the last reply, int64 [number of shards].
        first_round: on each leader, the least of them when the group pulled anew, int64 scalar.
        replies: on each leader, replies that the group has not pulled yet: what they add to the local replica, [size].
        generation: increases when groups have to pull the values of the shards.
        of_values: the last generation that began with `values`. Groups that have not pulled it know less than the chief.
        version: increases when `values` changes.
        values: the vector when the chief last fetched it; None before.
        rates: the outer learning rate and the outer momentum.
        dirty: groups with progress that the shards do not have.
        has_progress: whether groups have made progress since the shards had `values`, also those that have lost it.
        retried: makes calls to the ps, again after a ps was lost.
        assigned: variables that the chief has assigned and whose values the shards do not have yet, by id.
        trained_by: identifies the `GroupCalls` that have trained the block last; None before.
        inner_optimizer: the optimizer of the groups from whose progress the outer momentum comes; None if it is zero or from a
            file.
    """

    def __init__(
        self,
        variables: Sequence[LocalVariable],
        servers: Sequence[Sequence[str]],
        optimizer: OuterOptimizer,
        groups: int,
        compressed: bool,
    ) -> None:
        # A part of a vector that starts at a whole cache line is cut without a copy, so odd lengths go last.
        variables = sorted(variables, key=lambda variable: variable.shape.num_elements() % ALIGNMENT > 0)
        self.variables = variables
        self.optimizer, self.compressed = optimizer, compressed
        self.kind, self.dtype = variables[0].kind, variables[0].dtype
        lengths = [variable.shape.num_elements() for variable in variables]
        self.size = sum(lengths)
        self._places = dict(zip(map(id, variables), _slices(lengths), strict=True))
        synchronized = self.kind is Kind.SYNCHRONIZED
        tasks = min(len(devices) for devices in servers)
        self.sizes, per_task = _shard_sizes(self.size, self.dtype.size, tasks, SHARDS_PER_SERVER if synchronized else 1)
        self.parts = _slices(self.sizes)
        extra = (optimizer, groups if compressed else 0) if synchronized else ()
        self.shards = [
            [Shard(self.dtype, n, devices[number // per_task], *extra) for number, n in enumerate(self.sizes)]
            for devices in servers
        ]
        self.baseline = NamedVariable("baseline", self.dtype, [self.size], "")
        self.pulled = NamedVariable("pulled", self.dtype, [self.size], "")
        self.last_rounds = NamedVariable("last_rounds", tf.int64, [len(self.sizes)], "")
        self.first_round = NamedVariable("first_round", tf.int64, [], "")
        self.replies = ReplyQueue(self.dtype, self.size)
        self.retried: Callable[[Callable[[], Any]], Any] = lambda action: action()
        self.generation = self.of_values = 0
        self.version = 0
        self.values: Any = None
        self.rates = (1.0, 0.0)
        self.dirty: set[int] = set()
        self.has_progress = False
        self.assigned: dict[int, LocalVariable] = {}
        self.trained_by: object = None
        self.inner_optimizer: weakref.ref[Any] | None = None
        for variable in variables:
            variable.block = self

    # On the chief.

    def initialize(self) -> None:
        """Assigns the initial values of all shards, from the values of the variables on the chief."""
        self.retried(self._initialize_shards)
        self.publish()

    def _initialize_shards(self) -> None:
        for shard in itertools.chain(*self.shards):
            shard.initialize()

    def publish(self) -> None:
        """Assigns the values that the variables have on the chief to the shards. Groups pull them before their next call."""
        current = [variable for variable in self.variables if not self.is_newer_than(variable)]
        self.values = np.concatenate([self._value(variable).reshape(-1) for variable in self.variables])
        self.retried(self._assign_shards)
        self.version += 1
        for variable in current:  # The chief's others get their values when they are next read.
            variable.version = self.version
        self.begin_generation()
        self.assigned.clear()
        self.dirty.clear()

    def begin_generation(self) -> None:
        """Lets all groups pull the values of the shards anew, which are `values`."""
        self.generation += 1
        self.of_values = self.generation
        self.has_progress = False

    @property
    def is_ahead(self) -> bool:
        """Whether groups or shards may have progress that the chief does not have.

        What a group has pushed stays on the shards when the group is lost.
        """
        return bool(self.dirty) or (self.has_progress and self.kind is Kind.SYNCHRONIZED)

    def note_progress(self, group: int) -> None:
        """Notes that a group makes progress. Call it in the thread of the group, before the call."""
        self.dirty.add(group)
        self.has_progress = True

    def _assign_shards(self) -> None:
        for shards in self.shards:
            for shard, part in zip(shards, self.parts, strict=True):
                shard.parameters.assign(tf.constant(self.values[part]))

    def _value(self, variable: LocalVariable) -> Any:
        if variable.group_count is not None:
            return np.asarray(variable.group_count, self.dtype.as_numpy_dtype)
        return self.cut(self.values, variable) if self.is_newer_than(variable) else variable.value_on_chief()

    def cut(self, vector: Any, variable: LocalVariable) -> Any:
        """Returns a view of the values of `variable` in a numpy vector of the whole block, in the shape of the variable."""
        return vector[self._places[id(variable)]].reshape(variable.shape)

    def set_values(self, values: Any) -> None:
        """Sets the values that variables have on the chief, numpy [size]. Each variable is assigned when it is next read."""
        self.values = values
        self.version += 1

    def fetch(self, server_group: int | None = None) -> Any:
        """Returns the vector that the shards hold now, numpy [size]: that of a server group, or the mean over all of them."""
        chosen = self.shards if server_group is None else [self.shards[server_group]]
        vectors = self.retried(
            lambda: [
                np.concatenate([chief_device.fetched(shard.parameters.read()).numpy() for shard in shards]) for shards in chosen
            ]
        )
        return vectors[0] if len(vectors) == 1 else np.mean(vectors, axis=0, dtype=np.float64).astype(vectors[0].dtype)

    def is_newer_than(self, variable: LocalVariable) -> bool:
        """Returns whether the block has a newer value than the chief's variable.

        A value that the chief has assigned is the newest until it is published, whatever is collected meanwhile. A counter
        counts on the chief: what a group has counted is never its value.
        """
        is_of_chief = id(variable) in self.assigned or self.kind is Kind.COUNTER
        return self.values is not None and not is_of_chief and variable.version != self.version

    def update_on_chief(self, variable: LocalVariable) -> None:
        """Assigns the chief's variable if the block has a newer value for it."""
        if self.is_newer_than(variable):
            variable.set_on_chief(self.cut(self.values, variable))
            variable.version = self.version

    def remote_variables(self, leaders: Iterable[str]) -> dict[str, list[Any]]:
        """Returns what the block has on other tasks, by device.

        Args:
            leaders: the devices of the local replicas.
        """
        by_device: dict[str, list[Any]] = {}
        for shard in itertools.chain(*self.shards):
            acknowledged = [] if shard.acknowledged is None else [shard.acknowledged]
            by_device.setdefault(shard.device, []).extend([shard.parameters, *shard.state.values(), *acknowledged])
        own = [self.baseline, self.pulled, self.last_rounds, self.first_round, self.replies]
        for leader in leaders:
            place = self.variables[0].place(leader)
            by_device.setdefault(place, []).extend([*own, *(variable.replica for variable in self.variables)])
        return by_device

    # In functions that groups run.

    @property
    def leader(self) -> str:
        """The device of the group's local replica of the variables."""
        return self.variables[0].place()

    def place(self) -> contextlib.AbstractContextManager[Any]:
        """Places operations where the shards of sharded variables are; does nothing for other variables."""
        return contextlib.nullcontext() if self.variables[0].column is None else tf.device(self.leader)

    def split(self, vector: Any) -> list[Any]:
        """Splits a vector of the whole block into one per shard."""
        return list(tf.split(vector, self.sizes))

    def read_replica(self) -> Any:
        """Returns the group's local replica, [size]."""
        with tf.device(self.leader):
            return flatten([self._read(variable) for variable in self.variables])

    def assign_replica(self, vector: Any) -> None:
        """Assigns the group's local replica, [size]."""
        self._write_replica(tf.raw_ops.AssignVariableOp, vector)

    def add_to_replica(self, vector: Any) -> None:
        """Adds to the group's local replica, [size]."""
        self._write_replica(tf.raw_ops.AssignAddVariableOp, vector)

    def _write_replica(self, operation: Any, vector: Any) -> None:
        with tf.device(self.leader):
            values = unflatten(vector, [variable.shape for variable in self.variables])
            for variable, value in zip(self.variables, values, strict=True):
                operation(resource=variable.replica.handle(self.leader), value=value)

    def _read(self, variable: LocalVariable) -> Any:
        value = tf.raw_ops.ReadVariableOp(resource=variable.replica.handle(self.leader), dtype=variable.dtype)
        return tf.ensure_shape(value, variable.shape)


def _slices(lengths: Sequence[int]) -> list[slice]:
    """Returns the parts of a vector that consists of parts of these lengths."""
    return [slice(begin, end) for begin, end in itertools.pairwise(itertools.accumulate(lengths, initial=0))]


def _shard_sizes(size: int, bytes_per_value: int, tasks: int, most_per_task: int) -> tuple[list[int], int]:
    """Returns the sizes of the shards of a vector, and how many shards each ps task holds."""
    per_task = min(max(size * bytes_per_value // (tasks * SHARD_BYTES), 1), most_per_task)
    count = min(size, tasks * per_task) or 1
    bounds = [size * number // count for number in range(count)]
    if size >= count * ALIGNMENT:
        bounds = [bound // ALIGNMENT * ALIGNMENT for bound in bounds]
    bounds.append(size)
    return [end - begin for begin, end in itertools.pairwise(bounds)], per_task
