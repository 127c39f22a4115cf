"""The variables that a step reads from the ps tasks, each once: the small ones of each ps arrive as one message.

`StepReads` belongs to the step that is being traced. Variables find it with `current()`: no argument could carry it.

Trainable float32 variables may travel rounded to bfloat16 (`--compression bf16`). A step that assigns such a variable reads it
in place, and so exactly, from then on.

A value that is read once serves in loops too. It must not be older than an assignment in the step: a variable that the step
assigns is read in place from then on, and one that is not trainable is read in place in loops (a state that each turn assigns).
"""

import contextlib
import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tfdist.strategies.attributes import replaced
from tfdist.strategies.coordinator.calls.tensor_fusion import flatten, is_small, unflatten
from tfdist.strategies.parameter_server.whole_tables import TableReads
from tfdist.strategies.private_api import (
    ControlFlowFuncGraph,
    WhileBodyFuncGraph,
    WhileCondFuncGraph,
    patches,
    read_write_resource_inputs,
    record_operation,
    stop_recording,
    variable_accessed,
)
from tfdist.strategies.private_api.own_gradients import with_refused_gradient


class _Vectorized(threading.local):
    depth = 0


_vectorized = _Vectorized()
"""How many functions of `tf.vectorized_map` are traced in this thread, one within the other."""


def install() -> None:
    """Lets steps read variables in functions that are vectorized. Calling it again does nothing."""
    patches.NESTED_OPERATIONS["vectorized_map"].patch(_vectorized_map)


def _vectorized_map(original: Callable[..., Any], fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    def noted(*each: Any) -> Any:
        with replaced(_vectorized, depth=_vectorized.depth + 1):
            return fn(*each)

    return original(noted, *args, **kwargs)


@dataclass
class _Value:
    """A value that has been read.

    Attributes:
        tensor: the value.
        graph: the graph that has it.
        writes: how many operations of that graph wrote the variable before.
    """

    tensor: Any
    graph: Any
    writes: int


@dataclass
class _Reads:
    """What one replica has read, or a function that it calls.

    Attributes:
        graph: the graph of the replica or function, outside of its loops and conditions.
        devices: those of the replica: where the values are; none for the device of the function.
        values: the values, by id of the variable. Branches of a condition have their own.
        in_place: ids of variables that the step has assigned.
        fresh: tensors that were read in place, by id of the variable, since the step has assigned it.
        stale: tensors that were read before the step assigned the variable.
        loops: for each id of a variable the graphs of loops that use a value from outside of the loop.
    """

    graph: Any
    devices: tuple[str, ...]
    values: dict[int, list[_Value]] = field(default_factory=lambda: defaultdict(list))
    in_place: set[int] = field(default_factory=set)
    fresh: dict[int, list[Any]] = field(default_factory=lambda: defaultdict(list))
    stale: dict[int, list[Any]] = field(default_factory=lambda: defaultdict(list))
    loops: dict[int, list[Any]] = field(default_factory=lambda: defaultdict(list))

    def place(self, variable: Any) -> str | None:
        """Returns the device that reads a variable."""
        return self.devices[getattr(variable, "column", None) or 0] if self.devices else None


@dataclass(frozen=True)
class _Fused:
    """Small variables of one ps and dtype that one device of a replica reads, and their values on that ps, [n].

    The values are bfloat16 if they travel rounded.
    """

    variables: list[Any]
    values: Any


class StepReads:
    """The reads of one step.

    Args:
        fused: the fused variables that each replica reads.
        rounded: whether trainable float32 variables and dense or sparse float32 gradients travel as bfloat16.

    Attributes:
        rounded: as given.
        tables: what the step looks up and reads whole.
    """

    def __init__(self, fused: Sequence[_Fused] = (), rounded: bool = False) -> None:
        self._fused = fused
        self.rounded = rounded
        self.tables = TableReads()
        self._replicas: dict[int, _Reads] = {}  # By thread: TensorFlow traces each replica in a thread.
        self._updated_device: str | None = None

    def begin_replica(self, devices: tuple[str, ...]) -> None:
        """Reads the fused variables to the devices of a replica. Call it in the thread of the replica.

        The values serve until the tracing of the whole step ends. Replicas end at different times, and what they do together
        (`merge_call`) is traced while they wait.
        """
        replica = _Reads(tf.compat.v1.get_default_graph(), devices)
        for fused in self._fused:
            with tf.device(replica.place(fused.variables[0])), stop_recording():
                values = tf.cast(tf.identity(fused.values), fused.variables[0].dtype)
                pieces = unflatten(values, [variable.shape for variable in fused.variables])
            for variable, piece in zip(fused.variables, pieces, strict=True):
                replica.values[id(variable)] = [_Value(piece, replica.graph, _writes(variable, replica.graph))]
        self._replicas[threading.get_ident()] = replica

    def updating(self, device: str) -> contextlib.AbstractContextManager[None]:
        """Makes an update on `device` read the variables of that device in place."""
        return replaced(self, _updated_device=device)

    def value_of(self, variable: Any) -> Any:
        """Returns the value of `variable` that the replica has read, and reads it the first time; known to gradient tapes.

        Returns None if the variable has to be read in place: outside of a step, and where the value may differ.
        """
        if tf.executing_eagerly():
            return None
        reads, graphs = self._here()
        if reads is None or id(variable) in reads.in_place or variable.device == self._updated_device:
            return None
        loops = [graph for graph in graphs[:-1] if isinstance(graph, WhileBodyFuncGraph | WhileCondFuncGraph)]
        if loops and not variable.trainable and len(variable.parts) == 1:
            return None
        value = next((value for value in reads.values[id(variable)] if value.graph in graphs), None)
        graph = _outside(graphs, loops, variable) if value is None else value.graph
        writes = _writes(variable, graph)
        if (value is not None and writes > value.writes) or _writes(variable, *graphs[: graphs.index(graph)]):
            reads.in_place.add(id(variable))  # By rows, or by a function that was traced before.
            return None
        if value is None:
            if self._updated_device is not None:
                return None
            self.tables.read_whole(variable)
            tensor = _read_in(graph, reads.place(variable), variable, self.rounded and can_be_rounded(variable))
            value = _Value(tensor, graph, writes)
            reads.values[id(variable)].append(value)
        reads.loops[id(variable)] += loops
        return _recorded(variable, value.tensor, value.graph, reads.place(variable))

    def read_whole(self, variable: Any) -> Any:
        """Reads a sharded variable where `value_of` has no value, in the graph around all loops; in place if it is changed."""
        if tf.executing_eagerly():
            variable_accessed(variable)
            with stop_recording():
                value = variable.read_parts()
            record_operation("ReadVariableOp", [value], [variable.handle], lambda change: [change])
            return value
        reads, graphs = self._here()
        if reads is not None:
            self.tables.read_whole(variable)
        if self._updated_device is not None or _writes(variable, *graphs[:-1]):
            with stop_recording():
                value = _without_gradient(variable, variable.read_parts())
            return _recorded(variable, value, graphs[0], None)
        device = reads.place(variable) if reads else None
        return _recorded(variable, _read_in(graphs[-1], device, variable), graphs[-1], device)

    def look_up(self, variable: Any) -> None:
        """Notes that the step looks up rows of `variable`."""
        if self._replicas and not tf.executing_eagerly():
            self.tables.look_up(variable)

    def guarded(self, variable: Any, value: Any) -> Any:
        """Returns rows of a sharded variable: with `_without_gradient`, unless a replica itself has looked them up."""
        is_safe = tf.executing_eagerly() or ((reads := self._here()[0]) is not None and reads.devices)
        return value if is_safe else _without_gradient(variable, value)

    def rounds(self, variable: Any) -> bool:
        """Returns whether rows of `variable` that are looked up here travel rounded."""
        reads = None if tf.executing_eagerly() or not (self.rounded and can_be_rounded(variable)) else self._here()[0]
        return reads is not None and id(variable) not in reads.in_place and variable.device != self._updated_device

    def is_in_loop(self) -> bool:
        """Returns whether the body of a loop, a condition or a function that is vectorized is traced.

        Gradient tapes cannot follow an operation of this module's own out of it.
        """
        return not tf.executing_eagerly() and (_vectorized.depth > 0 or len(self._here()[1]) > 1)

    def read_in_place(self, variable: Any, value: Any) -> Any:
        """Notes and returns the value of `variable` that was read in place."""
        if not tf.executing_eagerly() and (reads := self._here()[0]) is not None:
            reads.fresh[id(variable)].append(value)
        return value

    def reads_of(self, variable: Any) -> tuple[list[Any], list[Any], list[Any]]:
        """Returns the tensors that are the value of `variable` where a step is traced.

        Returns:
            Those that were read since the step has assigned it, in order; those that were read before that; and the graph that
            is traced, those around it, and finally that of the function.
        """
        reads, graphs = self._here()
        if reads is None:
            return [], [], graphs
        own = [value.tensor for value in reads.values.get(id(variable), [])]
        return own + reads.fresh.get(id(variable), []), reads.stale.get(id(variable), []), graphs

    def forget(self, variable: Any) -> None:
        """Makes the step read `variable` in place, because it is being assigned.

        Raises:
            RuntimeError: if a loop around the assignment uses a value from outside of the loop.
        """
        if tf.executing_eagerly():
            return
        here, graphs = self._here()
        if here is not None and any(loop in graphs for loop in here.loops[id(variable)]):
            raise RuntimeError(
                f"{variable.name} is assigned in a loop of the step that also uses its value, which parameter_server reads "
                "from the ps once per step; make the updates in a Python loop, or one in each train_step"
            )
        for reads in [*self._replicas.values(), *([here] if here is not None else [])]:
            before = [value.tensor for value in reads.values.pop(id(variable), [])]
            reads.stale[id(variable)] += before + reads.fresh.pop(id(variable), [])
            reads.in_place.add(id(variable))

    def _here(self) -> tuple[_Reads | None, list[Any]]:
        """Returns the reads of the replica or function that is traced, None outside of a step, and its graphs.

        The graphs are that of the loop or condition that is traced, those around it, and finally that of the function.
        """
        graph = tf.compat.v1.get_default_graph()
        if self._replicas:
            # `merge_call` is traced in the main thread: it takes what the first replica has read.
            replica = self._replicas.get(threading.get_ident()) or next(iter(self._replicas.values()))
            graphs = _until_function(graph, replica.graph)
            if graphs[-1] is replica.graph:
                return replica, graphs
        graphs = _until_function(graph, None)
        if threading.get_ident() not in self._replicas:
            return None, graphs
        function = graphs[-1]  # The replica calls it.
        if not hasattr(function, _ATTRIBUTE):
            setattr(function, _ATTRIBUTE, _Reads(function, ()))
        return getattr(function, _ATTRIBUTE), graphs


_ATTRIBUTE = "_tfdist_reads"
"""Of the graph of a function: values refer to their graph, and a dictionary of both would keep them forever."""

_current = StepReads()
"""Outside of a step: nothing has been read. Steps are traced one at a time."""


def current() -> StepReads:
    """Returns the reads of the step that is being traced."""
    return _current


@contextlib.contextmanager
def reading(variables: Sequence[Any], rounded: bool = False) -> Iterator[StepReads]:
    """Surrounds the tracing of a step whose replicas read these variables (`ServerVariable`), the small ones fused."""
    global _current
    outer, _current = _current, StepReads(_fuse(variables, rounded), rounded)
    try:
        yield _current
    finally:
        _current = outer


def can_be_rounded(variable: Any) -> bool:
    """Returns whether a variable may travel as bfloat16: a weight. A state that a step assigns would lose small changes."""
    return bool(variable.trainable) and variable.dtype == tf.float32


def _fuse(variables: Sequence[Any], rounded: bool) -> list[_Fused]:
    groups: dict[tuple[str, tf.DType, int, bool], list[Any]] = defaultdict(list)
    for variable in variables:
        if is_small(variable.shape, variable.dtype):
            key = (variable.device, variable.dtype, variable.column or 0, rounded and can_be_rounded(variable))
            groups[key].append(variable)
    fused = []
    for (device, dtype, _, is_rounded), members in groups.items():
        with tf.device(device), stop_recording():
            values = flatten([variable.read_parts() for variable in members])
            fused.append(_Fused(members, tf.cast(values, tf.bfloat16 if is_rounded else dtype)))
    return fused


def _until_function(graph: Any, stop: Any) -> list[Any]:
    """Returns `graph` and the graphs around it until that of a function, or until `stop`."""
    graphs = [graph]
    while graphs[-1] is not stop and isinstance(graphs[-1], ControlFlowFuncGraph):
        graphs.append(graphs[-1].outer_graph)
    return graphs


def _outside(graphs: list[Any], loops: list[Any], variable: Any) -> Any:
    """Returns the graph in which to read: outside of all loops. A branch that a step does not take reads nothing."""
    if len(variable.parts) > 1:
        return graphs[-1]  # Gradients cannot follow several reads out of a condition.
    return graphs[graphs.index(loops[-1]) + 1] if loops else graphs[0]


def _read_in(graph: Any, device: str | None, variable: Any, rounded: bool = False) -> Any:
    """Returns the value of `variable`, read in `graph`; gradient tapes do not know of it."""
    with graph.as_default(), _on(device), tf.control_dependencies(None), stop_recording():
        value = tf.cast(tf.identity(variable.read_parts(rounded)), variable.dtype)
        return value if device or len(variable.parts) == 1 else _without_gradient(variable, value)


def _without_gradient(variable: Any, value: Any) -> Any:
    """Returns `value`, read by a function; a gradient tape around a call of the function raises ValueError.

    Such a tape knows only the parts that the function reads, and it would take the gradient of the first for that of the whole.
    """
    if not variable.trainable:
        return tf.stop_gradient(value)
    return with_refused_gradient(
        f"{variable.name} is sharded over {len(variable.parts)} ps tasks, and a tf.function that reads it, or a branch or loop "
        "that also assigns it, is called within a GradientTape; leave @tf.function out (fit compiles the whole step), or open "
        "the tape inside of it",
        value,
    )


def _on(device: str | None) -> Any:
    return tf.device(device) if device else contextlib.nullcontext()


def _writes(variable: Any, *graphs: Any) -> int:
    """Returns how many operations of these graphs write the variable, in their functions too."""
    handles = [_handle_in(graph, part.handle) for graph, part in itertools.product(graphs, variable.parts)]
    return sum(h in read_write_resource_inputs(each)[1] for h in handles if h is not None for each in h.consumers())


def _handle_in(graph: Any, handle: Any) -> Any:
    """Returns what `handle` is in `graph`; None if the graph does not use it. (`capture` would make it use it.)"""
    # A loop or condition gets it itself, or as what it is in the graph around it.
    around = _handle_in(graph.outer_graph, handle) if isinstance(graph, ControlFlowFuncGraph) else None
    return next((inside for outside, inside in graph.captures if outside is handle or outside is around), None)


def _recorded(variable: Any, value: Any, graph: Any, device: str | None) -> Any:
    """Returns `value` as a read of `variable` that gradient tapes know, as TensorFlow does for its own cached reads."""
    variable_accessed(variable)
    with graph.as_default(), _on(device), tf.control_dependencies(None):
        with stop_recording():
            result = tf.identity(value)
        record_operation("ReadVariableOp", [result], [variable.handle], lambda change: [change])
    return result
