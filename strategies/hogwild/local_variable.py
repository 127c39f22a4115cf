"""Variables of which every worker group trains a copy of its own.

On the chief such a variable is one value: that of the centre (a model's weights), or what the groups' copies come to (an
optimizer's slots). In a function that a group runs it is the group's own copy, known there by its name.
"""

import enum
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.strategies.coordinator import chief_device
from tfdist.strategies.coordinator.named_resource import NamedVariable
from tfdist.strategies.coordinator.sync_on_read_variable import HandleSpec
from tfdist.strategies.coordinator.variable_base import VariableBase
from tfdist.strategies.private_api import is_saving, outermost_graph, register_tensor_conversion, variable_accessed
from tfdist.strategies.private_api.overrides import overrides


class Kind(enum.Enum):
    """What becomes of the groups' copies of a variable."""

    OWN = "own"
    """Each group has its own; the chief reads their mean, or the first group's where a mean makes no sense."""
    EXCHANGED = "exchanged"
    """Exchanged with the centre, which the chief reads."""
    FROM_CHIEF = "from chief"
    """The chief's value goes with every call (a learning rate)."""
    COUNTER = "counter"
    """Counts the updates of all groups on the chief, those of one on that group (`optimizer.iterations`)."""
    SEED = "seed"
    """Random numbers: the first group draws those that one process would, every other its own."""


_WRITES = {
    "assign": tf.raw_ops.AssignVariableOp,
    "assign_add": tf.raw_ops.AssignAddVariableOp,
    "assign_sub": tf.raw_ops.AssignSubVariableOp,
}


def _kind_of(name: str, shape: tf.TensorShape, kwargs: dict[str, Any]) -> Kind:
    if "seed_generator_state" in name:
        return Kind.SEED
    # Keras' optimizers make these two, and nothing else tells them from a model's own numbers.
    first_only = kwargs.get("aggregation") == tf.VariableAggregation.ONLY_FIRST_REPLICA
    if first_only and shape.rank == 0 and not kwargs.get("trainable"):
        return {"learning_rate": Kind.FROM_CHIEF, "iteration": Kind.COUNTER}.get(name, Kind.OWN)
    return Kind.OWN


class LocalVariable(VariableBase):
    """A variable with one value on the chief and a copy in every worker group.

    Attributes:
        copy: the copy of the group that runs a function.
        kind: what becomes of the copies.
        block: the `Block` in which it is kept together with others; None before a function has used it.
        restored: what groups that have not begun since take for their copies, by the group's number; see hogwild/checkpoint_state.py.
        restored_outer: what the outer rule is to keep beside it in a block.
    """

    def __init__(self, strategy: Any, next_creator: Any, **kwargs: Any) -> None:
        self._strategy_of = strategy
        with tf.init_scope(), tf.device(chief_device.DEVICE):
            self._on_chief = next_creator(**kwargs)
        name = kwargs.get("name") or "Variable"
        self.copy = NamedVariable(name, self._on_chief.dtype, self._on_chief.shape, "")
        self.kind = _kind_of(name, self._on_chief.shape, kwargs)
        self.block: Any = None
        self._chief_handles: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._sent_values: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self.restored: dict[int, Any] = {}
        self.restored_outer: dict[str, Any] = {}
        self.version = 0  # Of the block's values that the chief's variable has.
        self._uncounted = 0  # What is still to be added to the chief's variable.
        # What TensorFlow's variables have.
        self._shape, self._dtype = self._on_chief.shape, self._on_chief.dtype
        self._trainable = self._on_chief.trainable
        self._synchronization, self._aggregation = self._on_chief.synchronization, self._on_chief.aggregation
        self._handle_name = f"{name}:0"
        self._unique_id = f"local_{self.copy.name}"
        self._in_graph_mode = False
        self._cached_value = None
        self._constraint = None

    # In a function of a group.

    @property
    def handle(self) -> Any:
        """The resource: the group's copy in a function that a group runs, the chief's variable elsewhere."""
        if tf.executing_eagerly() or is_saving():
            return self.on_chief().handle
        if not self._strategy_of.extended.is_tracing:
            return self._handle_at_call_time()
        self._strategy_of.local_replicas.record_use(self)
        return self.copy.handle(self._strategy_of.extended.replica_device)

    def _handle_at_call_time(self) -> Any:
        """In a function that the chief runs: the chief's variable, with the value of the moment when it is called."""
        return self._at_call_time(self._chief_handles, lambda: self.on_chief().handle, HandleSpec(value=self._on_chief.handle))

    @staticmethod
    def _at_call_time(known: weakref.WeakKeyDictionary[Any, Any], value: Callable[[], Any], spec: Any) -> Any:
        """What `value()` gives when the function is called. One per outermost function: in a condition it would be lost."""
        graph = outermost_graph()
        if graph not in known:
            with graph.as_default():
                known[graph] = graph.capture_call_time_value(value, spec)
        return known[graph]

    @property
    def _here(self) -> str:
        if not self._strategy_of.extended.is_tracing:
            return str(self._on_chief.device)
        return str(self._strategy_of.extended.replica_device)

    def value(self) -> Any:
        """The value as a tensor: in a function of a group that of its copy, on the chief the centre's."""
        return self._read_variable_op()

    def read_value(self) -> Any:
        """As `value()`."""
        return self._read_variable_op()

    @overrides(VariableBase)
    def _read_variable_op(self, no_copy: bool = False) -> Any:
        if tf.executing_eagerly() or is_saving():
            variable_accessed(self)
            return self.on_chief()._read_variable_op(no_copy)
        if self.kind is Kind.FROM_CHIEF and self._strategy_of.extended.is_tracing:
            spec = tf.TensorSpec(self.shape, self.dtype)
            return self._at_call_time(self._sent_values, lambda: chief_device.value_of(self._on_chief), spec)
        with tf.device(self._here):
            return super()._read_variable_op(no_copy)

    def sparse_read(self, indices: Any, name: Any = None) -> Any:
        """The rows `indices`."""
        if tf.executing_eagerly() or is_saving():
            return self.on_chief().sparse_read(indices, name)
        with tf.device(self._here):
            return super().sparse_read(indices, name)

    def _write(self, method: str, value: Any) -> Any:
        if not tf.executing_eagerly():
            if not self._strategy_of.extended.is_tracing:
                raise RuntimeError(
                    f"{self.name} is assigned in a function that no worker group runs; under hogwild training goes through "
                    "Keras' fit and train_on_batch, and the chief assigns variables outside of tf.function"
                )
            with tf.device(self._here):
                _WRITES[method](resource=self.handle, value=tf.convert_to_tensor(value, self.dtype))
            return self
        with self._strategy_of.local_replicas.assigning(self):
            getattr(self._counted(), method)(value)
        return self

    # On the chief.

    def on_chief(self) -> Any:
        """The chief's variable, with the value that this variable has now."""
        self._strategy_of.local_replicas.refresh_chief(self)
        return self._counted()

    def set_on_chief(self, value: Any) -> None:
        """Sets what the chief knows of the value, without telling the groups."""
        self._counted().assign(value)

    def count_on_chief(self, updates: int) -> None:
        """Adds to what the chief knows of the value, without telling the groups."""
        self._uncounted += updates

    def value_on_chief(self) -> Any:
        """What the chief's variable holds, whatever the groups have done since; a numpy array."""
        return self._counted().numpy()

    def _counted(self) -> Any:
        # Only when somebody looks: after each call of a group it would be a twelfth of what the call costs the chief.
        if self._uncounted:
            self._on_chief.assign_add(self._uncounted)
            self._uncounted = 0
        return self._on_chief

    def numpy(self) -> Any:
        """The value as a numpy array."""
        return self.on_chief().numpy()

    @property
    def name(self) -> str:
        """The name, as that of other variables."""
        return self._handle_name

    @property
    def shape(self) -> tf.TensorShape:
        """The shape."""
        return self._shape

    @property
    def dtype(self) -> Any:
        """The dtype."""
        return self._dtype

    @property
    def device(self) -> str:
        """Where it is: in a function of a group the device of the group's copies."""
        return str(self._on_chief.device) if tf.executing_eagerly() else self._here

    @property
    def op(self) -> Any:
        """The operation that made the chief's variable."""
        return self._on_chief.op

    @overrides(VariableBase)
    def _export_to_saved_model_graph(self, object_map: Any, tensor_map: Any, options: Any, **kwargs: Any) -> list[Any]:
        resources = self.on_chief()._export_to_saved_model_graph(object_map, tensor_map, options, **kwargs)
        object_map[self] = object_map[self._on_chief]
        return resources  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<LocalVariable {self._handle_name!r} shape={self._shape} dtype={self._dtype.name} {self.kind.value}>"


register_tensor_conversion(LocalVariable, lambda v, dtype=None, name=None, as_ref=False: v.value())
