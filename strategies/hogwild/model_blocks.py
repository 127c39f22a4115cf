"""`ModelBlocks`: the blocks with the variables of one model, which of them groups synchronize, and at which outer rates."""

import logging
import weakref
from collections.abc import Iterable
from typing import Any

import keras

from tfdist.strategies.hogwild.replicas import checkpoint_state, nonnegatives
from tfdist.strategies.hogwild.replicas.assigned_weights import moved_by_outer_rates, warn_of_assigned
from tfdist.strategies.hogwild.replicas.block_registry import Use
from tfdist.strategies.hogwild.replicas.momentum_buffers import AVERAGE, buffers_of, turns, why_none
from tfdist.strategies.hogwild.replicas.step_counters import (
    StepCounters,
    counter_of,
    deciding,
    innermost,
    learning_rate_of,
    optimizers_by_variable,
    optimizers_of,
    steps_of,
)
from tfdist.strategies.hogwild.synchronization.global_parameters import ParameterBlock
from tfdist.strategies.hogwild.synchronization.local_variable import Kind, LocalVariable, local_variables
from tfdist.strategies.hogwild.synchronization.outer_schedule import OuterSchedule
from tfdist.strategies.keras_hooks.replicas.overwritten import is_overwritten

_log = logging.getLogger("tfdist")


class ModelBlocks:
    """The blocks with the variables that the functions of one `GroupCalls` use.

    Args:
        strategy: the strategy.
        model: the Keras model.
        counters: the counters of its steps.
        trains: whether the functions change the local replicas.
        every: updates of all groups between two that follow the schedule of the inner learning rate, see `OuterSchedule`.

    Attributes:
        synchronized: those that groups synchronize: of weights that are trained, then those of which the groups take the mean.
        used: all of them.
    """

    def __init__(self, strategy: Any, model: Any, counters: StepCounters, trains: bool, every: int) -> None:
        self._strategy = strategy
        self._replicas = strategy.local_replicas
        self._model = model
        self._counters = counters
        self._trains = trains
        self._in_rounds: bool = self._replicas.outer_optimizer.in_rounds
        self.synchronized: list[ParameterBlock] = []
        self.used: dict[ParameterBlock, None] = {}
        self._parameters: list[ParameterBlock] = []  # Those that are trained: the first of `synchronized`.
        self._averaged: list[ParameterBlock] = []  # The others.
        self._assigned: dict[ParameterBlock, None] = {}  # Those with variables that the functions assign.
        self._trained: set[int] = set()  # The variables that are trained, by id.
        self._identity = object()  # What blocks refer to: they outlive the model.
        self._has_begun = False  # Whether the blocks have been this object's to train.
        groups, options = len(strategy.worker_groups), strategy.synchronization
        self._averages_momentum = trains and bool(options.average_momentum)
        optimizer = deciding(getattr(model, "optimizer", None), lambda name: options.outer_rates(name, groups))
        inner, learning_rate = type(optimizer).__name__, learning_rate_of(optimizer) if trains else None
        self._rates = OuterSchedule(options.outer_rates(inner, groups), options.farthest(inner, groups), learning_rate, every)

    def register_weights(self) -> None:
        """Registers the weights of the model. Blocks of frozen ones are synchronized only if the step assigns them."""
        if self.synchronized or not self._model.built:
            return
        self._replicas.release_unused()
        overwritten = {id(v) for each in self._model.weights if is_overwritten(each) for v in local_variables(each._value)}
        floating = [v for v in self._constrained_weights() if v.dtype.is_floating]
        self._trained = {id(v) for weight in self._model.trainable_weights for v in local_variables(weight._value)}
        active = [v for v in floating if id(v) in self._trained - overwritten]
        statistics = [v for v in floating if not v.trainable and id(v) not in overwritten]
        self._replicas.register(active, Kind.SYNCHRONIZED, self._strategy.synchronization.fragments)
        # Each step moves float8's histories: a reply that comes later would add to other places of them.
        self._replicas.register([v for v in floating if id(v) in overwritten], Kind.OWN)
        self._register_frozen(floating, statistics)
        buffers = buffers_of(optimizers_of(self._model)) if self._averages_momentum else []
        if self._averages_momentum and not buffers:
            _log.warning("average_momentum has no effect: %s", why_none(optimizers_of(self._model)))
        self._replicas.register(buffers, Kind.SYNCHRONIZED, self._strategy.synchronization.fragments)
        self._synchronize(dict.fromkeys(v.block for v in active), dict.fromkeys(v.block for v in buffers + statistics))
        self.rates_at(steps_of(getattr(self._model, "optimizer", None)))
        self._add(floating + buffers)

    def _constrained_weights(self) -> list[LocalVariable]:
        """Gives the variables of the weights their constraints, and returns them, each once.

        Raises:
            ValueError: if a constraint needs a whole weight that is sharded.
        """
        weights = {}
        for weight in self._model.weights:
            held = local_variables(weight._value)
            if len(held) > 1 and weight.constraint is not None and type(weight.constraint) is not keras.constraints.NonNeg:
                raise ValueError(
                    f"{weight.path} is sharded over {len(held)} devices, and hogwild constrains each shard of the global "
                    f"parameters by itself: {type(weight.constraint).__name__} needs the whole weight; leave it whole"
                )
            for variable in held:
                weights[id(variable)] = variable
                variable.keras_constraint, variable.path = weight.constraint, weight.path
        return list(weights.values())

    def add_used(self, used: Use) -> None:
        """Adds the variables that functions use which were traced, and warns of weights that a step assigns in vain."""
        self._register_others(used)
        self._add(list(used.variables.values()))
        self._assigned.update(dict.fromkeys(v.block for v in used.assigned.values() if v.block is not None))
        outer = moved_by_outer_rates(self._parameters, self._replicas.outer_optimizer)
        warn_of_assigned(self._model, used.assigned, self._trained, outer)

    def synchronize_assigned(self) -> bool:
        """Synchronizes what else the traced step assigns, as a frozen average of others; returns whether there is any."""
        if not self._trains or not self._model.built:
            return False
        weights = [v for weight in self._model.weights for v in local_variables(weight._value) if v.is_assigned]
        assigned = dict.fromkeys(v.block for v in weights if v.block is not None) | self._assigned
        more = [b for b in assigned if b.kind is Kind.SYNCHRONIZED and b not in self.synchronized]
        if more:
            self._synchronize(self._parameters, self._averaged + more)
        return bool(more)

    def take(self) -> None:
        """Makes the trained blocks this object's own. Then nothing moves variables that it does not train.

        The outer momentum comes from what was trained before: another model that shares blocks with this one, or this model
        with weights that are frozen now, or with an optimizer that is replaced. Runs on the chief, before calls are scheduled.
        """
        taken = [block for block in self._parameters if block.trained_by is not self._identity]
        if not taken:
            return
        is_first, inner = not self._has_begun, innermost(getattr(self._model, "optimizer", None)) or self._model
        forgotten: dict[ParameterBlock, list[LocalVariable]] = {}
        for block in filter(checkpoint_state.has_momentum, taken):
            before = block.inner_optimizer
            is_new = is_first and before is not None and before() is not inner
            forgotten[block] = [v for v in block.variables if is_new or id(v) not in self._trained]
        shared = [block for block in self.used if block.kind is Kind.SYNCHRONIZED]
        if any(forgotten.values()) or (is_first and any(block.dirty for block in shared)):
            self._replicas.wait_until_idle()
            self._replicas.collect(shared)
            for block, variables in forgotten.items():
                checkpoint_state.forget_outer(block, variables)
        self._has_begun = True
        for block in taken:
            block.trained_by, block.inner_optimizer = self._identity, weakref.ref(inner)

    def changed(self) -> Iterable[ParameterBlock]:
        """Returns the blocks of which a call makes progress that the chief has to collect."""
        blocks = [block for block in self.used if block in self.synchronized or block.kind is not Kind.SYNCHRONIZED]
        return blocks if self._trains else self._assigned

    def have_progress(self, owner: int, turn: tuple[int, ...]) -> bool:
        """Returns whether a replica has anything to push of the blocks of a turn. Without rounds it always pushes.

        A turn without blocks counts as one with progress, or it would never be over.
        """
        return any(owner in self.synchronized[number].dirty for number in turn) or not self._in_rounds or not turn

    def each_turn(self) -> list[tuple[int, ...]]:
        """Returns, for each turn, the positions in `synchronized` of the blocks that groups synchronize in it."""
        return turns(self._strategy.synchronization.fragments, len(self._parameters), len(self._averaged))

    def rates_at(self, step: int) -> tuple[float, float]:
        """Returns the outer rates at a step. Synchronizations outside of calls, as before an evaluation, use the same."""
        rates = self._rates.at(self._counters.count_at(step, counter_of(getattr(self._model, "optimizer", None))))
        for block in self._parameters if self._trains else ():
            block.rates = rates
        return rates

    def _register_frozen(self, variables: list[LocalVariable], averages: list[LocalVariable]) -> None:
        # In blocks of their own: the outer rates would let a moving variance overshoot, below zero.
        nonnegatives.mark(averages)
        self._replicas.register(averages, Kind.SYNCHRONIZED)
        self._replicas.register(variables, Kind.SYNCHRONIZED)

    def _register_others(self, used: Use) -> None:
        """Registers what else the step assigns that is no slot of an optimizer: weights of a model that a closure holds.

        Left to each group, they would drift apart, and `predict` of that model would use those of one group or another.
        """
        if not self._model.built:
            return
        owners = optimizers_by_variable(self._model)
        others = [v for v in used.assigned.values() if v.kind is Kind.OWN and v.dtype.is_floating and id(v) not in owners]
        weights = [v for v in others if v.trainable or id(v) in used.given]
        self._register_frozen(weights, [v for v in weights if not v.trainable])

    def _synchronize(self, parameters: Iterable[ParameterBlock], averaged: Iterable[ParameterBlock]) -> None:
        """Sets which blocks are synchronized: those that are trained, and those of which the groups only take the mean."""
        self._parameters = list(parameters)
        self._averaged = [block for block in averaged if block not in self._parameters]
        for block in self._averaged:
            block.rates = AVERAGE
        self.synchronized = self._parameters + self._averaged
        if self._trains:
            self._strategy.synchronized_blocks = weakref.WeakSet(self.synchronized)

    def _add(self, variables: list[LocalVariable]) -> None:
        owners = optimizers_by_variable(self._model)
        others = [v for v in variables if id(v) not in owners]
        # Weights of another model, which a loss calls and the program may train later.
        read = [v for v in others if v.kind is Kind.OWN and v.dtype.is_floating and not v.is_assigned]
        self._register_frozen(read, [v for v in read if not v.trainable])
        self._replicas.register(others)  # Apart from slots: of what the program assigns, groups pull the whole block.
        self._replicas.register(variables)
        blocks = dict.fromkeys(v.block for v in variables if v.block is not None)
        self.used.update(blocks)
        for block in blocks:
            for variable in block.variables:
                variable.is_slot = id(variable) in owners and variable.dtype.is_floating
            # Slots are gone with their optimizer, which `compile` replaces.
            for owner in {id(each): each for each in (owners.get(id(v), self._model) for v in block.variables)}.values():
                self._replicas.use(owner, [block])
        if self._trains:
            self._counters.add_others(variables)
