"""Blocks: variables that travel together, joined to one vector, of which each ps task holds a slice.

For a model's weights the slices are the centre. For what belongs to each group (an optimizer's slots) they hold what a group
begins with that is new or was started anew.
"""

import itertools
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.strategies.coordinator import chief_device
from tfdist.strategies.coordinator.named_resource import NamedVariable
from tfdist.strategies.hogwild.local_variable import Kind, LocalVariable

SLICES_PER_SERVER, SLICE_BYTES = 8, 2**19
"""A ps holds its part in up to so many slices of at least so many bytes, which travel one after the other: while the answer to
one comes back, the next is on its way there.
"""

ALIGNMENT = 64
"""So many values fill whole cache lines whatever their dtype: how TensorFlow aligns tensors (EIGEN_MAX_ALIGN_BYTES)."""


class ParameterBlock:
    """Variables of one dtype and kind.

    Attributes:
        variables: in the order in which their values follow each other in the vector.
        kind: of all of them.
        dtype: of all of them.
        size: the number of values.
        sizes: of the slices.
        slices: for each server group its slices of the vector, those of one ps side by side.
        state: for each slice what the outer rule keeps beside it.
        known: for each slice what each group knows of the centre, [groups, n]; empty without compression.
        last: on each group's leader, the copy when its progress was last handed over, [size].
        received: on each group's leader, the centre as it last came; only kept apart from `last` with compression.
        seen: on each group's leader, what the outer rule remembers of each slice, [number of slices].
        inbox: on each group's leader, what an answer of the centre adds to the copies, [size].
        is_there: on each group's leader, whether the answer to the last exchange is in `inbox`.
        generation: goes up when the groups have to take over the slices' values.
        version: goes up when `values` changes.
        values: what the slices held when the chief last looked, as a vector; None while it has not looked.
        rates: the outer learning rate and momentum.
        dirty: groups with progress that the slices do not have.
        changed: whether the chief has assigned variables that the slices do not have yet.
    """

    def __init__(
        self, variables: list[LocalVariable], servers: list[list[str]], rule: Any, groups: int, compressed: bool
    ) -> None:
        # Pieces of a vector that begin at whole cache lines are cut from it without copying: odd lengths go last.
        variables = sorted(variables, key=lambda variable: variable.shape.num_elements() % ALIGNMENT > 0)
        self.variables = variables
        self.kind, self.dtype = variables[0].kind, variables[0].dtype
        self.lengths = [variable.shape.num_elements() for variable in variables]
        self.size = sum(self.lengths)
        begins = itertools.accumulate(self.lengths, initial=0)
        self._begins = {id(variable): begin for variable, begin in zip(variables, begins, strict=False)}
        exchanged = self.kind is Kind.EXCHANGED
        tasks = min(len(devices) for devices in servers)
        on_each = min(max(self.size * self.dtype.size // (tasks * SLICE_BYTES), 1), SLICES_PER_SERVER) if exchanged else 1
        parts = min(self.size, tasks * on_each) or 1
        bounds = [self.size * number // parts for number in range(parts)]
        if self.size >= parts * ALIGNMENT:
            bounds = [bound // ALIGNMENT * ALIGNMENT for bound in bounds]
        bounds.append(self.size)
        self.sizes = [end - begin for begin, end in itertools.pairwise(bounds)]
        self.slices = [
            [NamedVariable("centre", self.dtype, [n], devices[number // on_each]) for number, n in enumerate(self.sizes)]
            for devices in servers
        ]
        self.state = [[rule.state(each) if exchanged else {} for each in slices] for slices in self.slices]
        self.known = [
            [NamedVariable("known", self.dtype, [groups, *each.shape], each.device) for each in slices]
            if exchanged and compressed
            else []
            for slices in self.slices
        ]
        self.last = NamedVariable("last", self.dtype, [self.size], "")
        self.received = NamedVariable("received", self.dtype, [self.size], "")
        self.seen = NamedVariable("seen", tf.int64, [parts], "")
        self.inbox = NamedVariable("inbox", self.dtype, [self.size], "")
        self.is_there = NamedVariable("is_there", tf.bool, [], "")
        self.generation = 0
        self.version = 0
        self.values: Any = None
        self.rates = (1.0, 0.0)
        self.dirty: set[int] = set()
        self.changed = False
        for variable in variables:
            variable.block = self

    # On the chief.

    def begin(self) -> None:
        """Gives what is kept beside the slices its first values, zeros."""
        kept = [variable for states in self.state for state in states for name, variable in state.items() if name != "mutex"]
        for variable in [*kept, *(known for slices in self.known for known in slices)]:
            variable.assign(tf.zeros(variable.shape, variable.dtype))

    def publish(self) -> None:
        """Gives the slices the values that the variables have on the chief; the groups take them over before they go on."""
        self.values = np.concatenate([self._value(variable).reshape(-1) for variable in self.variables])
        for slices in self.slices:
            begin = 0
            for each in slices:
                each.assign(tf.constant(self.values[begin : begin + each.shape[0]]))
                begin += each.shape[0]
        self.version += 1
        for variable in self.variables:
            variable.version = self.version
        self.generation += 1
        self.changed = False
        self.dirty.clear()

    def _value(self, variable: LocalVariable) -> Any:
        if variable.version == self.version or self.values is None:
            return variable.value_on_chief()
        return self.cut(self.values, variable)

    def cut(self, vector: Any, variable: LocalVariable) -> Any:
        """The values of `variable` in a vector of the whole block, numpy arrays."""
        begin = self._begins[id(variable)]
        return vector[begin : begin + variable.shape.num_elements()].reshape(variable.shape)

    def set_values(self, values: Any) -> None:
        """Notes a new vector of values, numpy [size]; the variables take theirs when somebody reads them."""
        self.values = values
        self.version += 1

    def fetch(self, servers: int | None = None) -> Any:
        """The vector that the slices hold now: those of one server group, or the mean over all of them."""
        chosen = self.slices if servers is None else [self.slices[servers]]
        copies = [np.concatenate([chief_device.fetched(each.read()).numpy() for each in slices]) for slices in chosen]
        return copies[0] if len(copies) == 1 else np.mean(copies, axis=0, dtype=np.float64).astype(copies[0].dtype)

    def bring(self, variable: LocalVariable) -> None:
        """Gives the chief's variable the value that this block has for it."""
        if variable.version != self.version:
            variable.set_on_chief(self.cut(self.values, variable))
            variable.version = self.version

    # In functions.

    def split(self, vector: Any) -> list[Any]:
        """A vector of the whole block as those of the slices."""
        return list(tf.split(vector, self.sizes))

    def copies(self) -> Any:
        """The group's own copies as a vector."""
        with tf.device(self.leader):
            return tf.concat([tf.reshape(self._read(variable), [-1]) for variable in self.variables], axis=0)

    def set_copies(self, vector: Any, add: bool = False) -> None:
        """Assigns the group's copies, or adds to them."""
        with tf.device(self.leader):
            for variable, value in zip(self.variables, tf.split(vector, self.lengths), strict=True):
                value = tf.reshape(value, variable.shape)
                operation = tf.raw_ops.AssignAddVariableOp if add else tf.raw_ops.AssignVariableOp
                operation(resource=variable.copy.handle(self.leader), value=value)

    def _read(self, variable: LocalVariable) -> Any:
        value = tf.raw_ops.ReadVariableOp(resource=variable.copy.handle(self.leader), dtype=variable.dtype)
        return tf.ensure_shape(value, variable.shape)

    @property
    def leader(self) -> str:
        """The device of the group's copies."""
        return str(self.variables[0]._strategy_of.extended.replica_device)
