"""`LocalVariable`: a variable with a local replica in every worker group and one value on the chief.

The chief's value is the global parameter (for a model's weights) or the merged value of the replicas (for an optimizer's
slots). In a function that a group runs, the variable is the replica of that group, which the function finds by its name.
"""

import contextlib
import enum
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist.strategies.coordinator.extended import unwrapped
from tfdist.strategies.coordinator.sync_on_read_variable import HandleSpec
from tfdist.strategies.hogwild.synchronization.by_reference import ByReference
from tfdist.strategies.hogwild.synchronization.counted_steps import warn_of_counted
from tfdist.strategies.hogwild.synchronization.mixed_values import warn_of_mixed, warn_of_mixed_parts
from tfdist.strategies.named_variable import NamedVariable
from tfdist.strategies.private_api import (
    GENERATOR_STATE,
    is_saving,
    read_write_resource_inputs,
    register_tensor_conversion,
    variable_accessed,
)
from tfdist.strategies.private_api.overrides import overrides
from tfdist.strategies.runtime import chief_device, interrupts
from tfdist.strategies.variable_base import ON_HANDLE, VariableBase


class Kind(enum.Enum):
    """How the replicas of a variable and its value on the chief are related."""

    OWN = "own"
    """Each group has its own. The chief reads their mean, or for dtypes without a mean the first group's."""
    SYNCHRONIZED = "synchronized"
    """Synchronized with the global parameters, which the chief reads."""
    FROM_CHIEF = "from chief"
    """The chief sends its value with every call (a learning rate)."""
    COUNTER = "counter"
    """Counts the updates of all groups on the chief, and of one group in its replica (`optimizer.iterations`)."""
    SEED = "seed"
    """Seeds random numbers. The first group draws those of a single process, every other group different ones."""


_sent_values: dict[int, Any] = {}
"""In the function that is traced: the values that it gets from the chief with every call, by the id of the variable."""


@contextlib.contextmanager
def sent_values(values: dict[int, Any]) -> Iterator[None]:
    """Surrounds the tracing of a function that gets `values` of variables of kind FROM_CHIEF, by id, with every call."""
    global _sent_values
    outer, _sent_values = _sent_values, values
    try:
        yield
    finally:
        _sent_values = outer


_WRITES = {
    "assign": tf.raw_ops.AssignVariableOp,
    "assign_add": tf.raw_ops.AssignAddVariableOp,
    "assign_sub": tf.raw_ops.AssignSubVariableOp,
}

_ADDING = ("scatter_add", "scatter_sub", "scatter_nd_add", "scatter_nd_sub")
"""Writes of a part that add to it."""


def _kind_of(name: str, shape: tf.TensorShape, kwargs: dict[str, Any]) -> Kind:
    if "seed_generator_state" in name or name == GENERATOR_STATE:
        return Kind.SEED
    # Only these arguments tell the variables of Keras' optimizers from a model's own.
    first_only = kwargs.get("aggregation") == tf.VariableAggregation.ONLY_FIRST_REPLICA
    if first_only and shape.rank == 0 and not kwargs.get("trainable"):
        return {"learning_rate": Kind.FROM_CHIEF, "iteration": Kind.COUNTER}.get(name, Kind.OWN)
    return Kind.OWN


class _HandleAtCall:
    """Finds the chief's variable when a function that has captured its handle is called on the chief.

    Args:
        variable: a weak reference to the variable: TensorFlow's functions hold variables.
        graph: the graph of the function.
    """

    def __init__(self, variable: "weakref.ref[LocalVariable]", graph: Any) -> None:
        self._variable, self._graph = variable, graph
        self._writes: bool | None = None  # Unknown before the first call: until then the graph grows.

    def captured_by(self, graph: Any) -> "_HandleAtCall":
        """Returns the closure for the graph of a function that calls this one."""
        return _HandleAtCall(self._variable, graph)

    def __call__(self) -> Any:
        variable = self._variable()
        if variable is None:
            raise ValueError("a function uses a variable that is deleted; keep the model as long as the function")
        if self._writes is None:
            self._writes = self._has_writes(variable)
        return variable.handle_to_write() if self._writes else variable.on_chief().handle

    def _has_writes(self, variable: "LocalVariable") -> bool:
        """Returns whether an operation of the function writes the variable, such as the call of another function."""
        with self._graph.as_default():
            handle = variable.handle
        return any(handle in read_write_resource_inputs(user)[1] for user in handle.consumers())


class LocalVariable(VariableBase):
    """A variable with one value on the chief and a local replica in every worker group.

    Attributes:
        replica: the replica of the group that runs a function.
        column: if the variable is a shard of one that is sharded over the devices of a replica: the number of the device that
            holds it, from 0. None for others, which the first device holds.
        kind: how replicas and chief are related.
        block: the `ParameterBlock` that holds the variable; None until a function uses it.
        restored: restored values for replicas of groups that have not started since, numpy, by group (checkpoint_state.py).
        restored_outer: restored state of the outer optimizer for this variable, numpy, by name.
        version: version of the block's values that the chief's variable has.
        is_assigned: whether a function that a group runs assigns it.
        is_slot: whether it is a slot of an optimizer, with floating-point numbers.
        is_nonnegative: whether groups take the mean of it and it had no negative value at first, see nonnegatives.py.
        moved: how far the program has moved a counter by assigning it.
        count_before: the count before the program assigned a counter; what groups count moves in proportion.
        group_count: the count with which a group begins; None if it is the chief's.
        path: that of the Keras variable which has it, if a step of its model has been traced; else its name.
    """

    def __init__(self, strategy: Any, next_creator: Any, column: int | None = None, **kwargs: Any) -> None:
        self.column = column
        self.tfdist_strategy = self._strategy_of = strategy
        with tf.init_scope(), tf.device(chief_device.DEVICE):
            self._on_chief = next_creator(**kwargs)
        name = kwargs.get("name") or "Variable"
        self.replica = NamedVariable(name, self._on_chief.dtype, self._on_chief.shape, "")
        self.kind = _kind_of(name, self._on_chief.shape, kwargs)
        self.block: Any = None
        self._handle_key, self._value_key = object(), object()  # Under which functions capture them.
        self.restored: dict[int, Any] = {}
        self.restored_outer: dict[str, Any] = {}
        self.version = 0
        self.is_assigned = False
        self.is_slot = False
        self.is_nonnegative = False
        self.moved = 0
        self.count_before = 0
        self.group_count: int | None = None
        self._uncounted = 0  # Updates to be added to the chief's variable.
        self._is_read = False  # Whether the program has read this count, since updates were last added.
        # TensorFlow's variables have these attributes.
        self._shape, self._dtype = self._on_chief.shape, self._on_chief.dtype
        self._trainable = self._on_chief.trainable
        self._synchronization, self._aggregation = self._on_chief.synchronization, self._on_chief.aggregation
        self._handle_name = f"{name}:0"
        self._unique_id = f"local_{self.replica.name}"
        self.keras_constraint: Callable[[Any], Any] | None = None
        self.path = name

    # In a function that a group runs.

    @property
    def handle(self) -> Any:
        """The resource: the replica in a function that a group runs, the chief's variable elsewhere."""
        if tf.executing_eagerly() or is_saving():
            return self.on_chief().handle
        if not self._strategy_of.extended.is_tracing:
            return self._handle_at_call_time()
        self._strategy_of.local_replicas.registry.record_use(self)
        return self.replica.handle(self.place())

    def __tf_tracing_type__(self, signature_context: Any) -> ByReference:
        """Returns what a `tf.function` knows of this variable as an argument."""
        return ByReference(self)

    def _handle_at_call_time(self) -> Any:
        """Returns the chief's variable in a function that the chief runs, with its value at the time of the call.

        Each function has a capture of its own, which its caller fills: TensorFlow keeps the trace of a function for other
        callers.
        """
        graph, in_files = tf.compat.v1.get_default_graph(), self._on_chief.handle
        closure = _HandleAtCall(weakref.ref(self), graph)
        return graph.capture_call_time_value(closure, HandleSpec(value=in_files), self._handle_key, default_value=in_files)

    @property
    def _here(self) -> str:
        if not self._strategy_of.extended.is_tracing:
            return str(self._on_chief.device)
        return self.place()

    def place(self, leader: str | None = None) -> str:
        """Returns the device that holds the local replica (`HogwildExtended.place_of`)."""
        return str(self._strategy_of.extended.place_of(self.column, leader))

    def value(self) -> Any:
        """Returns the value as a tensor: that of the replica in a function that a group runs, else the chief's."""
        return self._read_variable_op()

    @overrides(VariableBase)
    def _read_variable_op(self, no_copy: bool = False) -> Any:
        if tf.executing_eagerly() or is_saving():
            variable_accessed(self)
            return self.on_chief()._read_variable_op(no_copy)
        if self.kind is Kind.FROM_CHIEF and self._strategy_of.extended.is_tracing:
            if id(self) in _sent_values:
                return _sent_values[id(self)]
            graph, spec = tf.compat.v1.get_default_graph(), tf.TensorSpec(self.shape, self.dtype)
            return graph.capture_call_time_value(lambda: chief_device.value_of(self._on_chief), spec, self._value_key)
        with tf.device(self._here):
            return super()._read_variable_op(no_copy)

    def sparse_read(self, indices: Any, name: Any = None) -> Any:
        """Returns the rows `indices`."""
        if tf.executing_eagerly() or is_saving():
            return self.on_chief().sparse_read(indices, name)
        with tf.device(self._here):
            return super().sparse_read(indices, name)

    def handle_for_update(self) -> Any:
        """Returns the local replica, for an operation that changes it, in a function that a group runs; None elsewhere."""
        if not self._strategy_of.extended.is_tracing:
            return None
        self._note_assignment()
        return self.handle

    def _write(self, method: str, value: Any) -> Any:
        if not tf.executing_eagerly():
            self._note_assignment()
            if self._strategy_of.extended.is_tracing:
                warn_of_counted(self, method, value)
                if method == "assign":
                    warn_of_mixed(self, value)
            with tf.device(self._here):
                _WRITES[method](resource=self.handle, value=tf.convert_to_tensor(value, self.dtype))
            return self
        if method != "assign":
            self._strategy_of.local_replicas.chief.finish_steps_on(self)
        if self.kind is not Kind.COUNTER:
            with self._strategy_of.local_replicas.assigning(self):
                getattr(self._counted(), method)(value)
            return self
        read = self.value_on_chief() if self._is_read and method == "assign" else None
        with self._strategy_of.local_replicas.assigning(self):  # Counts the steps in flight.
            before = self.value_on_chief()
            getattr(self._counted(), method)(value)
            if read is not None:  # The new value may be computed from the count that the program has read.
                self._on_chief.assign_add(before - read)
            self.moved += int(self.value_on_chief() - before)
        return self

    def _note_assignment(self) -> None:
        """Notes that the function that a group will run assigns the variable."""
        if self._strategy_of.extended.is_tracing:
            self._check_step_may_assign()
            self.is_assigned = True
            self._strategy_of.local_replicas.registry.record_use(self, assigns=True)

    def _check_step_may_assign(self) -> None:
        """Raises ValueError if the chief sends the value with every call, so that nobody would read what a step assigns."""
        if self.kind is Kind.FROM_CHIEF:
            raise ValueError(
                "a step assigns the learning rate of an optimizer. Under hogwild the chief sends the learning rate with every "
                "call of a worker group, so the assignment would have no effect. Give the optimizer a LearningRateSchedule, or "
                "assign optimizer.learning_rate in a callback."
            )

    # On the chief.

    def on_chief(self) -> Any:
        """Returns the chief's variable with the current value."""
        with tf.init_scope():  # `export` reads variables while it traces a function.
            self._strategy_of.local_replicas.chief.refresh(self)
        self._is_read = True
        return self._counted()

    def handle_to_write(self) -> Any:
        """Returns the handle of the chief's variable to a function that the chief runs and that assigns it."""
        with tf.init_scope(), self._strategy_of.local_replicas.assigning(self):
            return self._counted().handle

    def set_on_chief(self, value: Any) -> None:
        """Assigns the value on the chief only. The groups do not pull it."""
        self._counted().assign(value)

    def count_on_chief(self, updates: int) -> None:
        """Adds to the value on the chief only."""
        self._uncounted += updates
        self._is_read = False

    def value_on_chief(self) -> Any:
        """Returns the value on the chief without asking the groups, as a numpy array. Threads of groups may call it."""
        return chief_device.value_of(self._counted()).numpy()

    def _counted(self) -> Any:
        # Added only when the value is read: after each call of a group it would be a twelfth of the chief's work for the call.
        if self._uncounted:
            with interrupts.held():  # Else Ctrl-C after the addition would leave the steps, and they would be added again.
                self._on_chief.assign_add(self._uncounted)
                self._uncounted = 0
        return self._on_chief

    def numpy(self) -> Any:
        """Returns the value as a numpy array."""
        value = self._strategy_of.local_replicas.chief.newer(self)
        return self.on_chief().numpy() if value is None else value

    @property
    def device(self) -> str:
        """The device: that of the replica in a function that a group runs, else the chief's."""
        return str(self._on_chief.device) if tf.executing_eagerly() else self._here

    @property
    def op(self) -> Any:
        """The operation that created the chief's variable."""
        return self._on_chief.op

    @overrides(VariableBase)
    def _export_to_saved_model_graph(self, object_map: Any, tensor_map: Any, options: Any, **kwargs: Any) -> list[Any]:
        # In a graph that nobody runs: the values are read later, when they are saved.
        resources = self._on_chief._export_to_saved_model_graph(object_map, tensor_map, options, **kwargs)
        object_map[self] = object_map[self._on_chief]
        return resources  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<LocalVariable {self._handle_name!r} shape={self._shape} dtype={self._dtype.name} {self.kind.value}>"


def _writing(method: str) -> Any:
    """Returns a method of TensorFlow's variables that writes a part of the value, such as `scatter_update`."""

    def write(self: LocalVariable, *args: Any, **kwargs: Any) -> Any:
        if not tf.executing_eagerly():
            self._note_assignment()
            if method not in _ADDING and self._strategy_of.extended.is_tracing:
                warn_of_mixed_parts(self, [*args, *kwargs.values()])
            return getattr(VariableBase, method)(self, *args, **kwargs)
        self._strategy_of.local_replicas.chief.finish_steps_on(self)
        with self._strategy_of.local_replicas.assigning(self):
            getattr(self._counted(), method)(*args, **kwargs)
        return self

    write.__name__ = method
    return overrides(VariableBase)(write) if method.startswith("_") else write


for _method in ON_HANDLE:
    if _method != "gather_nd":  # It reads.
        setattr(LocalVariable, _method, _writing(_method))


def local_variables(variable: Any) -> list[LocalVariable]:
    """Returns the local variables that hold a variable: several if it is sharded, none if it is of another kind."""
    held = [unwrapped(each) for each in getattr(variable, "shards", [variable])]
    return [each for each in held if isinstance(each, LocalVariable)]


register_tensor_conversion(LocalVariable, lambda v, dtype=None, name=None, as_ref=False: v.value())
