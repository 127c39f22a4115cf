"""The variables that a step reads from the ps tasks: the small ones of each ps arrive as one message.

`StepReads` belongs to the step that is being traced. Variables find it with `current()`, because TensorFlow reads them without
an argument that could carry it.
"""

import contextlib
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tfdist.strategies.coordinator.tensor_fusion import flatten, is_small, unflatten
from tfdist.strategies.private_api import ControlFlowFuncGraph, record_operation, stop_recording, variable_accessed


@dataclass
class _Replica:
    """The values that one replica has read, by the id of the variable, and where its step is traced."""

    graph: Any
    device: str
    values: dict[int, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Fused:
    """Small variables of one ps and dtype, and their values on that ps, [n]."""

    variables: list[Any]
    values: Any


class StepReads:
    """The reads of one step.

    Args:
        fused: the fused variables that each replica reads.
    """

    def __init__(self, fused: Sequence[_Fused] = ()) -> None:
        self._fused = fused
        self._replicas: dict[int, _Replica] = {}  # By thread: TensorFlow traces each replica in a thread.
        self._updated_device: str | None = None

    def begin_replica(self, device: str) -> None:
        """Reads the fused variables to `device`. Call it in the thread of the replica.

        The values serve until the tracing of the whole step ends. Replicas end at different times, and what they do together
        (`merge_call`) is traced while they wait.
        """
        replica = _Replica(tf.compat.v1.get_default_graph(), device)
        for fused in self._fused:
            with tf.device(device), stop_recording():
                pieces = unflatten(tf.identity(fused.values), [variable.shape for variable in fused.variables])
            replica.values.update({id(variable): piece for variable, piece in zip(fused.variables, pieces, strict=True)})
        self._replicas[threading.get_ident()] = replica

    @contextlib.contextmanager
    def updating(self, device: str) -> Iterator[None]:
        """Makes an update on `device` read the variables of that device in place."""
        outer, self._updated_device = self._updated_device, device
        try:
            yield
        finally:
            self._updated_device = outer

    def value_of(self, variable: Any) -> Any:
        """Returns the value of `variable` that the replica has read, known to gradient tapes; None if it has read none."""
        replica = self._replica()
        if replica is None or id(variable) not in replica.values:
            return None
        if self._updated_device is not None and variable.device == self._updated_device:
            return None
        return _recorded(variable, replica.values[id(variable)], replica.graph, replica.device)

    def read_whole(self, variable: Any) -> Any:
        """Reads a sharded variable, once per step, in the graph of the step rather than in the body of a loop."""
        if tf.executing_eagerly():
            variable_accessed(variable)
            with stop_recording():
                value = variable.gathered()
            record_operation("ReadVariableOp", [value], [variable.handle], lambda change: [change])
            return value
        replica = self._replica()
        graph = replica.graph if replica else _outside_loops(tf.compat.v1.get_default_graph(), None)
        device = replica.device if replica else None
        with graph.as_default(), tf.device(device), tf.control_dependencies(None), stop_recording():
            value = variable.gathered()
        if replica and self._updated_device is None:
            replica.values[id(variable)] = value
        return _recorded(variable, value, graph, device)

    def is_in_loop(self) -> bool:
        """Returns whether the body of a loop or a condition is traced. Gradient tapes cannot follow an operation out of it."""
        if tf.executing_eagerly():
            return False
        graph = tf.compat.v1.get_default_graph()
        replica = self._replica()
        return graph is not (replica.graph if replica else _outside_loops(graph, None))

    def forget(self, variable: Any) -> None:
        """Makes the replicas read `variable` again, because it has been assigned."""
        for replica in self._replicas.values():
            replica.values.pop(id(variable), None)

    def _replica(self) -> _Replica | None:
        """Returns the replica whose graph is traced, or a loop in it; None elsewhere, such as in a function that it calls."""
        if not self._replicas or tf.executing_eagerly():
            return None
        # `merge_call` is traced in the main thread: it takes what the first replica has read.
        replica = self._replicas.get(threading.get_ident()) or next(iter(self._replicas.values()))
        return replica if _outside_loops(tf.compat.v1.get_default_graph(), replica.graph) is replica.graph else None


_current = StepReads()
"""Outside of a step: nothing has been read. Steps are traced one at a time."""


def current() -> StepReads:
    """Returns the reads of the step that is being traced."""
    return _current


@contextlib.contextmanager
def reading(variables: Sequence[Any]) -> Iterator[StepReads]:
    """Surrounds the tracing of a step whose replicas read these variables (`ServerVariable`), the small ones fused."""
    global _current
    outer, _current = _current, StepReads(_fuse(variables))
    try:
        yield _current
    finally:
        _current = outer


def _fuse(variables: Sequence[Any]) -> list[_Fused]:
    groups: dict[tuple[str, tf.DType], list[Any]] = defaultdict(list)
    for variable in variables:
        if is_small(variable.shape, variable.dtype):
            groups[variable.device, variable.dtype].append(variable)
    fused = []
    for (device, _), members in groups.items():
        with tf.device(device), stop_recording():
            fused.append(_Fused(members, flatten([variable.get().read_value() for variable in members])))
    return fused


def _outside_loops(graph: Any, stop: Any) -> Any:
    """Returns `graph`, or the graph around it if it is the body of loops or conditions; not beyond `stop`."""
    while graph is not stop and isinstance(graph, ControlFlowFuncGraph):
        graph = graph.outer_graph
    return graph


def _recorded(variable: Any, value: Any, graph: Any, device: str | None) -> Any:
    """Returns `value` as a read of `variable` that gradient tapes know, as TensorFlow does for its own cached reads."""
    variable_accessed(variable)
    with graph.as_default(), tf.device(device), tf.control_dependencies(None):
        with stop_recording():
            result = tf.identity(value)
        record_operation("ReadVariableOp", [result], [variable.handle], lambda change: [change])
    return result
