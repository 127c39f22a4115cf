"""The state of a replica while its step of a model is traced.

TensorFlow traces the step of each replica in another thread; the state belongs to the current thread.
"""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tfdist.strategies.attributes import replaced


class NotInLoopError(Exception):
    """The replicas cannot sum in a loop what the step sums: its size differs between steps. The user never sees it."""


@dataclass
class Replica:
    """One replica in one step.

    Attributes:
        strategy: the strategy of the replica.
        index: its number among the replicas of this task.
        share: its part of the examples of the whole batch, a float32 scalar; the shares of all replicas add up to 1.
        rows: the number of its examples; None if it is not known while the step is traced.
        examples: the same as a tensor, at least 1; None if the strategy does not say. A trial says it.
        batch: its shard of the batch, nested tensors, as the step gets it; None if the strategy does not say.
        may_be_empty: whether it may have no examples, and computes zeros in their place, which must not count even as NaN.
        assigned: the variables that the step assigns, by id.
        reduced: whether gradients have been added up over the replicas.
        postponed: updates that run after compiled code, as (function of gradients and variables, (optimizer, gradients,
            variables)); None outside of compiled code.
        before_update: how many operations compiled code has before its update.
        given: what the step assigns by itself, not by an optimizer, as (variable, [(value, graph)]), by the id of the variable.
        averaged: the ids of those of them that all replicas have the mean of by now.
        own_handles: the handles of variables of which each replica has its own value, such as those of metrics.
        updated: the ids of the variables that optimizers update.
        summed: what the step does by itself with variables on a ps, by id: "add" to them, "replace" their values.
        graph: the graph of the step; None if the strategy does not say.
        branches: the graphs inside it in which the step applies gradients, as those of a `tf.cond`; if the step is only tried
            out, those in which it assigns variables.
        pieces: the pieces of each gradient of such an update (same_rows.py); None elsewhere.
        unbuilt: updates of optimizers that have no variables yet, as (optimizer, variables). They are left out, and what is
            traced must not run. None if the strategy cannot build optimizers that it finds in a step.
        recorded: if the step is only tried out, its gradients, as (None, tensor), and what it would assign, as (path of the
            variable, tensor); else None.
        sizes_of_updates: if the step is only tried out, how many gradients each of its updates has.
        integers: if the step is only tried out, the paths of the integers and truth values, no metric's, that it would assign
            by the examples.
        unseen: if the step is only tried out, the paths of variables that it assigns by the examples in a branch or loop.
        held: if the step is only tried out, the values of variables in whose place it reads what it would assign, by id, as
            (variable, value).
        counted: if the step is only tried out, what it would add to variables of metrics, as (variable, change).
        settled: the ids of those of them that Keras' metrics count rightly on several replicas.
        added: if the step is only tried out, the losses that layers add, as (layer, number).
        in_full: the added losses that are divided by the share already, or by the number of examples in a trial.
        losses: what layers have added with `add_loss`, by the id of the list of a layer.
        as_means: if the step is only tried out, the ids of layers whose added losses are divided by `examples`.
        reads_replicas: whether the user's code has read how many replicas there are, if the step is only tried out.
        draw: which random numbers a step draws that is only tried out, an integer scalar; None for those of one process.
        looping: whether the step is traced as the body of a loop.
        weighted: the ids of optimizers for which the step has scaled a loss, which then counts by `share` already.
        same: the ids of variables that get the same value on every replica without communication.
        in_compile_loss: whether the losses of `compile` are computed.
        has_loss_by_class: whether one of these has a number for each class.
        has_scalar_loss: whether the loss function that runs has returned one number for a batch, or one for each class, or
            compares the examples.
        rows_of_function: the first dimensions of the arguments of the loss or metric function that runs.
        arguments: these arguments, nested tensors, if the function is of the user's.
        reductions: how many losses Keras has reduced.
        has_whole_batch: whether the loss or metric function that runs sees the examples of all replicas.
        gathered: tensors of the whole batch with those of this replica (whole_batch.py).
        metric_numbers: what the metric function that runs has returned for a batch, if that is one number or one for each
            class; None if no metric function runs.
        is_over_batch: whether the metric function that runs surely returns that.
        normalizing: the names of the layers that normalize the examples of this replica alone, in their order.
        drawn: how many operations of `tf.random` the updates of the step have; of steps that run eagerly, also those before it.
        compiled: copies of the functions that XLA compiles inside the step, as (copy, function), by the id of the function.
        compiling: the name of the innermost of these functions that is traced; None outside of them.
        model: the Keras model of the step; None if the strategy does not say.
        predicts: whether it predicts: `share` is for what metrics count and layers assign, and no loss counts.
        agree: called with what the step does next, if it runs eagerly and other tasks have to do the same, else None.
    """

    strategy: tf.distribute.Strategy
    index: int
    share: Any
    rows: int | None = None
    examples: Any = None
    batch: Any = None
    may_be_empty: bool = False
    assigned: dict[int, Any] = field(default_factory=dict)
    given: dict[int, tuple[Any, list[tuple[Any, Any]]]] = field(default_factory=dict)
    averaged: set[int] = field(default_factory=set)
    own_handles: list[Any] = field(default_factory=list)
    reduced: bool = False
    postponed: list[Any] | None = None
    before_update: int = 0
    graph: Any = None
    branches: list[Any] = field(default_factory=list)
    pieces: list[list[tuple[Any, str]]] | None = None
    unbuilt: list[Any] | None = None
    recorded: list[tuple[str | None, Any]] | None = None
    sizes_of_updates: list[int] = field(default_factory=list)
    integers: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    held: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    counted: list[tuple[Any, Any]] = field(default_factory=list)
    settled: set[int] = field(default_factory=set)
    added: list[tuple[Any, Any]] = field(default_factory=list)
    in_full: list[Any] = field(default_factory=list)
    losses: dict[int, list[Any]] = field(default_factory=dict)
    as_means: frozenset[int] = frozenset()
    reads_replicas: bool = False
    draw: Any = None
    looping: bool = False
    updated: set[int] = field(default_factory=set)
    summed: dict[int, set[str]] = field(default_factory=dict)
    weighted: set[int] = field(default_factory=set)
    same: set[int] = field(default_factory=set)
    in_compile_loss: bool = False
    has_loss_by_class: bool = False
    has_scalar_loss: bool = False
    rows_of_function: set[int | None] = field(default_factory=set)
    arguments: Any = ()
    reductions: int = 0
    has_whole_batch: bool = False
    gathered: dict[Any, tuple[Any, Any]] = field(default_factory=dict)
    metric_numbers: list[Any] | None = None
    is_over_batch: bool = False
    normalizing: dict[str, None] = field(default_factory=dict)
    drawn: int = 0
    compiled: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    compiling: str | None = None
    model: Any = None
    predicts: bool = False
    agree: Callable[[str], None] | None = None


class _Thread(threading.local):
    replica: Replica | None = None


_thread = _Thread()


def current() -> Replica | None:
    """Returns the replica whose step this thread traces; None outside of tfdist's step functions."""
    return _thread.replica


def with_share() -> Replica | None:
    """Returns the current replica; None outside of tfdist's step functions, for one that is alone, or that predicts."""
    replica = that_counts()
    return None if replica is None or replica.predicts else replica


def that_counts() -> Replica | None:
    """Returns the current replica, for what metrics count, if it predicts, too; None outside of steps and for one alone."""
    replica = current()
    return None if replica is None or replica.share is None else replica


def is_trial() -> bool:
    """Returns whether this thread traces a step that is only tried out: it must change nothing."""
    replica = current()
    return replica is not None and replica.recorded is not None


def note_read_of_replicas() -> None:
    """Notes, in a trial, that code of the user's reads how many replicas there are. The strategy calls it in a property."""
    if not is_trial():
        return
    frame: Any = sys._getframe(2)
    while frame is not None and _package_of(frame) in ("tensorflow", "tfdist"):
        frame = frame.f_back
    replica = current()
    if replica is not None and frame is not None and _package_of(frame) != "keras":
        replica.reads_replicas = True


def _package_of(frame: Any) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


@contextlib.contextmanager
def entered(replica: Replica) -> Iterator[Replica]:
    """Makes `replica` the current one of this thread."""
    with replaced(_thread, replica=replica):
        yield replica
