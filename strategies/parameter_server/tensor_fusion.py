"""How a step and the ps tasks exchange parameters and gradients: all small ones of one ps together, as one message.

TensorFlow sends each variable and each gradient by itself, a call each; for a model of many small variables these calls cost
more than the step. Here a ps joins the small variables that it holds before it sends them and the worker cuts them apart;
with gradients the other way round.
"""

import contextlib
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tfdist.strategies.private_api import ControlFlowFuncGraph, record_operation, stop_recording, variable_accessed

JOIN_BELOW_BYTES = 256 * 1024
"""Variables and gradients below this size travel joined. Above it, the copy costs more than the call that it saves."""


@dataclass
class _Replica:
    """What the step of one replica has fetched, while it is traced."""

    graph: Any
    device: str
    values: dict[int, Any] = field(default_factory=dict)  # By the id of the variable.


class _Step:
    """The step that is being traced: its replicas by thread, each of which TensorFlow traces in a thread of its own."""

    def __init__(self) -> None:
        self.replicas: dict[int, _Replica] = {}
        self.updating: str | None = None  # The device on which a variable is being updated.

    def replica(self) -> _Replica | None:
        here = self.replicas.get(threading.get_ident())
        # What replicas do together, `merge_call`, is traced in the main thread: what the first has fetched is good for it.
        return here or next(iter(self.replicas.values()), None)


_step: _Step | None = None
"""Steps are traced one at a time."""


@contextlib.contextmanager
def tracing_step() -> Iterator[None]:
    """Around the tracing of one step of all its replicas."""
    global _step
    outer, _step = _step, _Step()
    try:
        yield
    finally:
        _step = outer


@contextlib.contextmanager
def updating(device: str) -> Iterator[None]:
    """Around the update of a variable on `device`, where what lives there is read in place."""
    if _step is None:
        yield
        return
    outer, _step.updating = _step.updating, device
    try:
        yield
    finally:
        _step.updating = outer


@dataclass(frozen=True)
class Joined:
    """Small variables of one ps and dtype: the variables, and their values one after the other [n] on that ps."""

    variables: list[Any]
    values: Any


def join(variables: Sequence[Any]) -> list[Joined]:
    """Joins, on each ps, the small ones of `variables` (`ServerVariable`s)."""
    groups: dict[tuple[str, Any], list[Any]] = defaultdict(list)
    for variable in variables:
        if _is_small(variable.shape, variable.dtype):
            groups[variable.device, variable.dtype].append(variable)
    joined = []
    for (device, _), members in groups.items():
        with tf.device(device), stop_recording():
            joined.append(Joined(members, _joined([variable.get().read_value() for variable in members])))
    return joined


def begin_replica(joined: Sequence[Joined], device: str) -> None:
    """In the thread of a replica: variables are read from `joined`, fetched to `device`, until they are assigned.

    Until the tracing of the step ends: what replicas have in common is traced while they wait, and they end at different times.
    """
    assert _step is not None
    replica = _Replica(tf.compat.v1.get_default_graph(), device)
    for group in joined:
        with tf.device(device), stop_recording():
            pieces = _cut(tf.identity(group.values), [variable.shape for variable in group.variables])
        replica.values.update({id(variable): piece for variable, piece in zip(group.variables, pieces, strict=True)})
    _step.replicas[threading.get_ident()] = replica


def fetched(variable: Any) -> Any:
    """The value of `variable` that this replica's step has fetched, linked to it for gradient tapes; else None."""
    replica = _replica_here()
    if replica is None or id(variable) not in replica.values:
        return None
    assert _step is not None
    if _step.updating is not None and variable.device == _step.updating:
        return None
    return _linked(variable, replica.values[id(variable)], replica.graph, replica.device)


def read_at_home(variable: Any) -> Any:
    """Reads a sharded variable as a whole, once per step, in the graph of the step rather than in a loop's body."""
    if tf.executing_eagerly():
        variable_accessed(variable)
        with stop_recording():
            value = variable.gathered()
        record_operation("ReadVariableOp", [value], [variable.handle], lambda change: [change])
        return value
    replica = _replica_here()
    graph = replica.graph if replica else _home(tf.compat.v1.get_default_graph(), None)
    with graph.as_default(), tf.device(replica.device if replica else None), tf.control_dependencies(None), stop_recording():
        value = variable.gathered()
    if replica and (_step is None or _step.updating is None):
        replica.values[id(variable)] = value
    return _linked(variable, value, graph, replica.device if replica else None)


def at_home() -> bool:
    """Whether gradient tapes can follow an operation recorded here: not in the body of a loop or a condition."""
    if tf.executing_eagerly():
        return True
    graph = tf.compat.v1.get_default_graph()
    replica = _replica_here()
    return graph is (replica.graph if replica else _home(graph, None))


def forget(variable: Any) -> None:
    """After an assignment: the step reads `variable` anew."""
    if _step is not None:
        for replica in _step.replicas.values():
            replica.values.pop(id(variable), None)


def to_servers(gradients_and_variables: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Sends the small dense gradients to the ps of their variables, joined; the others go when they are used.

    Args:
        gradients_and_variables: gradients (tensors, IndexedSlices or None) and `ServerVariable`s or others.
    """
    from tfdist.strategies.parameter_server.variables import ServerVariable, unwrapped

    done = list(gradients_and_variables)
    groups: dict[tuple[str, Any], list[int]] = defaultdict(list)
    for position, (gradient, variable) in enumerate(done):
        variable = unwrapped(variable)
        is_dense = tf.is_tensor(gradient) and not isinstance(gradient, tf.IndexedSlices)
        if is_dense and isinstance(variable, ServerVariable) and _is_small(variable.shape, gradient.dtype):
            groups[variable.device, gradient.dtype].append(position)
    for (device, _), positions in groups.items():
        together = _joined([done[position][0] for position in positions])
        with tf.device(device):
            pieces = _cut(tf.identity(together), [done[position][1].shape for position in positions])
        for position, piece in zip(positions, pieces, strict=True):
            done[position] = (piece, done[position][1])
    return done


def add_up(values: Sequence[Sequence[Any]], devices: Sequence[str]) -> list[Any]:
    """The sums over replicas, on the first replica's device.

    Args:
        values: for each value its dense tensors, one per replica, of one dtype and of equal, fully known shapes.
        devices: the replicas' devices.
    """
    sums: list[Any] = [None] * len(values)
    groups: dict[Any, list[int]] = defaultdict(list)
    for position, tensors in enumerate(values):
        if _is_small(tensors[0].shape, tensors[0].dtype):
            groups[tensors[0].dtype].append(position)
        else:
            with tf.device(devices[0]):
                sums[position] = tf.add_n(list(tensors))
    for positions in groups.values():
        parts = []
        for replica, device in enumerate(devices):
            with tf.device(device):
                parts.append(_joined([values[position][replica] for position in positions]))
        with tf.device(devices[0]):
            pieces = _cut(tf.add_n(parts), [values[position][0].shape for position in positions])
        for position, piece in zip(positions, pieces, strict=True):
            sums[position] = piece
    return sums


def _joined(tensors: Sequence[Any]) -> Any:
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)


def _cut(joined: Any, shapes: Sequence[tf.TensorShape]) -> list[Any]:
    pieces = tf.split(joined, [shape.num_elements() for shape in shapes])
    return [tf.reshape(piece, shape) for piece, shape in zip(pieces, shapes, strict=True)]


def _is_small(shape: tf.TensorShape, dtype: Any) -> bool:
    return bool(shape.is_fully_defined()) and shape.num_elements() * dtype.size < JOIN_BELOW_BYTES and dtype != tf.string


def _replica_here() -> _Replica | None:
    """The replica whose step's graph this is, or a loop or condition in it; None elsewhere, such as in a function it calls."""
    if _step is None or tf.executing_eagerly():
        return None
    replica = _step.replica()
    if replica is None or _home(tf.compat.v1.get_default_graph(), replica.graph) is not replica.graph:
        return None
    return replica


def _home(graph: Any, stop: Any) -> Any:
    """`graph`, or if it is the body of loops or conditions, the graph that they are in; not beyond `stop`."""
    while graph is not stop and isinstance(graph, ControlFlowFuncGraph):
        graph = graph.outer_graph
    return graph


def _linked(variable: Any, value: Any, graph: Any, device: str | None) -> Any:
    """`value` as a read of `variable` that gradient tapes know, as TensorFlow's own cached reads do it."""
    variable_accessed(variable)
    with graph.as_default(), tf.device(device), tf.control_dependencies(None):
        with stop_recording():
            result = tf.identity(value)
        record_operation("ReadVariableOp", [result], [variable.handle], lambda change: [change])
    return result
