"""The calls of worker groups under `hogwild`: which function a group runs next, and which blocks it synchronizes with it.

A group that has about a sync period's batches, or those of several, synchronizes while it computes them. A group that has fewer
synchronizes before them, when the period is over.
"""

import functools
import logging
import weakref
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfdist.strategies.coordinator.calls.group_function import GroupFunction, HostBatch, examples_in
from tfdist.strategies.coordinator.calls.group_step import GroupStep
from tfdist.strategies.coordinator.calls.tracing import tracing_lock
from tfdist.strategies.coordinator.members.worker_groups import WorkerGroup
from tfdist.strategies.hogwild.inner_steps import InnerSteps
from tfdist.strategies.hogwild.replicas import checkpoint_state, nonnegatives
from tfdist.strategies.hogwild.replicas.assigned_weights import moved_by_outer_rates, warn_of_assigned
from tfdist.strategies.hogwild.replicas.block_registry import Use
from tfdist.strategies.hogwild.replicas.momentum_buffers import AVERAGE, buffers_of, turns, why_none
from tfdist.strategies.hogwild.replicas.step_counters import (
    StepCounters,
    counter_of,
    counters_of,
    deciding,
    innermost,
    learning_rate_of,
    optimizers_by_variable,
    optimizers_of,
    rates_of,
    steps_of,
)
from tfdist.strategies.hogwild.synchronization.control import CallNumbers, Control
from tfdist.strategies.hogwild.synchronization.global_parameters import ParameterBlock
from tfdist.strategies.hogwild.synchronization.local_variable import Kind, LocalVariable, local_variables
from tfdist.strategies.hogwild.synchronization.outer_schedule import OuterSchedule
from tfdist.strategies.hogwild.timing.measured_delay import FIRST, MeasuredDelay
from tfdist.strategies.hogwild.timing.schedules import is_due
from tfdist.strategies.inputs.worker_input import WorkerBatch, WorkerInput, next_batch
from tfdist.strategies.keras_hooks.replicas.overwritten import is_overwritten
from tfdist.strategies.runtime import chief_device

_log = logging.getLogger("tfdist")


@dataclass(frozen=True)
class _Functions:
    """The functions for batches that look alike.

    Attributes:
        functions: the functions that synchronize different blocks, in turn. If groups share replicas, one more follows that
            synchronizes nothing. They take the batches, the number of the group, and the numbers of `CallNumbers`.
        turns: for each turn, the positions of the blocks that its function synchronizes.
        synchronizes: whether the functions synchronize.
        examples: how many examples a batch has.
    """

    functions: list[Callable[..., Any]]
    turns: list[tuple[int, ...]]
    synchronizes: bool
    examples: float


class GroupCalls:
    """The calls that run one step function of a model, and how far each group is in its sync period.

    Args:
        strategy: the strategy.
        model: the Keras model.
        step: its step on the replicas of a group.
        trains: whether the step changes the local replicas.
        stacks_results: whether a call returns the results of all its steps, stacked; else it returns that of its only step.

    Attributes:
        counters: the counters whose changes the results have at their end.
        delay: updates between the push and the pull of a group, and between two pushes.
        measures: whether results have the columns of measured_delay.py after all others.
    """

    def __init__(self, strategy: Any, model: Any, step: GroupStep, trains: bool = False, stacks_results: bool = False) -> None:
        self._strategy = strategy
        self._model = model
        self._trains = trains
        self._replicas = strategy.local_replicas
        self._in_rounds: bool = self._replicas.outer_optimizer.in_rounds
        groups = len(strategy.worker_groups)
        self._since = [0] * groups  # Inner steps of each group since its last synchronization.
        self._turns = [0] * groups  # Pushes of each group, without those that are in no round.
        # A replica that several groups train at once does not show what one of them has counted.
        self.counters = StepCounters(counters_of(model), trains and not strategy.shares_replicas, groups, moves=trains)
        self._numbers = CallNumbers(rates_of(model) if trains else (), self.counters.known)
        options = strategy.synchronization
        given = options.delay if trains and stacks_results else FIRST
        longest = options.longest_period and options.longest_period // options.fragments
        self.delay = MeasuredDelay(
            given, groups, strategy.steps_per_synchronization, longest, options.fragments, compression=options.compression
        )
        if trains:
            strategy.delay, position = self.delay, self._replicas.position_of(model)
            # The model keeps them as long as it is trained, also in its checkpoints.
            self._since, self._turns = position.since, position.turns
        self.measures = trains and stacks_results
        self._steps = InnerSteps(strategy, model, step, self.counters, self._numbers, stacks_results, self.measures)
        self._function = GroupFunction(strategy, self._steps)
        self._functions: dict[Any, _Functions] = {}
        self._blocks: dict[ParameterBlock, None] = {}  # All that the functions use.
        self._parameters: list[ParameterBlock] = []  # Those that are trained: the first of the blocks that are synchronized.
        self._averaged: list[ParameterBlock] = []  # The others.
        self._assigned: dict[ParameterBlock, None] = {}  # Those with variables that the functions assign.
        self._trained: set[int] = set()  # The variables that are trained, by id.
        self._use = Use()  # What functions use that were traced, until it is in blocks.
        self._identity = object()
        self._has_begun = False  # Whether the blocks have been this object's to train.
        self._averages_momentum = trains and bool(options.average_momentum)
        optimizer = deciding(getattr(model, "optimizer", None), lambda name: options.outer_rates(name, groups))
        inner, learning_rate = type(optimizer).__name__, learning_rate_of(optimizer) if trains else None
        rates, farthest = options.outer_rates(inner, groups), options.farthest(inner, groups)
        self._rates = OuterSchedule(rates, farthest, learning_rate, every=groups * self.delay.between)

    def prepare(self, batches: list[Any], element_spec: Any = None, period: int | None = None) -> Callable[..., Any]:
        """Returns the call that makes a step on each batch: it takes the number of the group, then that of the first step.

        Args:
            batches: as for `GroupFunction.prepare`, or `WorkerBatch`es, which the group reads.
            element_spec: as for `GroupFunction.prepare`.
            period: updates between two synchronizations, if not the strategy's.
        """
        period = period or self.delay.between
        batches = _taken_apart(batches)
        pushes = self._trains and not self._replicas.keeps_progress
        synchronizes = pushes and is_due(len(batches), len(batches), period)
        several = period if len(batches) > period and self.takes_several_periods() else 0
        functions = self._functions_for(batches, element_spec, synchronizes, several)
        if self._trains:
            self._take_blocks()
        return functools.partial(self._run, functions, batches, period)

    def pushes_in(self, batches: int) -> bool:
        """Returns whether a group pushes in a call with so many batches; with fewer it may push before the call."""
        return is_due(batches, batches, self.delay.between)

    def align_turns(self) -> None:
        """Lets all groups push the same fragment next. Two that push different ones would wait for each other."""
        self._turns[:] = [max(self._turns)] * len(self._turns)

    def takes_several_periods(self) -> bool:
        """Returns whether `prepare` takes the batches of several periods, and the group synchronizes in each of them."""
        options = self._strategy.synchronization
        # Else the chief decides before each period: what is synchronized, when, or with which weight.
        plain = options.fragments == 1 and options.weights != "examples"
        return self._trains and plain and not options.adaptive and not self._strategy.shares_replicas

    def trace_pieces(self, batches: list[Any], element_spec: Any) -> None:
        """Traces all functions that `prepare` may need for a part of these batches: threads of groups then trace none."""
        batches = _taken_apart(batches)
        for piece in (batches, batches[:1]):
            for synchronizes in (False, True):
                self._functions_for(piece, element_spec, synchronizes)

    def _functions_for(self, batches: list[Any], element_spec: Any, synchronizes: bool, several: int = 0) -> _Functions:
        first = batches[0]
        like = str(first.data.element_spec) if isinstance(first, WorkerBatch) else first.signature
        key = (like, len(batches) > 1, synchronizes, several, len(self._steps.blocks))
        if key not in self._functions:
            self._functions[key] = self._trace(batches, element_spec, synchronizes, several)
            if self._synchronizes_more():
                return self._functions_for(batches, element_spec, synchronizes, several)
        return self._functions[key]

    def _synchronizes_more(self) -> bool:
        """Synchronizes what else the traced step assigns, as a frozen average of others; returns whether there is any."""
        if not self._trains or not self._steps.blocks:
            return False
        weights = [v for weight in self._model.weights for v in local_variables(weight._value) if v.is_assigned]
        assigned = dict.fromkeys(v.block for v in weights if v.block is not None) | self._assigned
        more = [b for b in assigned if b.kind is Kind.SYNCHRONIZED and b not in self._steps.blocks]
        if more:
            self._set_blocks(self._parameters, self._averaged + more)
        return bool(more)

    def _trace(self, batches: list[Any], element_spec: Any, synchronizes: bool, several: int) -> _Functions:
        self._register_weights()
        each_turn: list[tuple[int, ...]] = self._turns_of_blocks() if synchronizes else [()]
        without = [()] if synchronizes and self._strategy.shares_replicas else []
        # Locked, because the variables that a function uses are recorded in one place for all models.
        with tracing_lock, self._replicas.registry.recording_use(used := self._use):
            traced = [self._traced(batches, element_spec, (turn, several)) for turn in each_turn + without]
        self._register_weights()  # The first call of a model may have built it.
        self._add_used(list(used.variables.values()))
        self._assigned.update(dict.fromkeys(v.block for v in used.assigned.values() if v.block is not None))
        self._use = Use()  # Not before: after Ctrl-C here nothing is traced again, so nothing would be recorded.
        outer = moved_by_outer_rates(self._parameters, self._replicas.outer_optimizer)
        warn_of_assigned(self._model, used.assigned, self._trained, outer)
        examples = examples_in(batches[0].data.example() if isinstance(batches[0], WorkerBatch) else batches[0].values)
        return _Functions(traced, each_turn, synchronizes, float(examples or 1))

    def _run(self, functions: _Functions, batches: list[Any], period: int, group: int, step: int) -> Any:
        """Runs a call on a group, in its thread, and synchronizes the group with it or before it if that is due."""
        replicas, steps = self._replicas, len(batches)
        owner = replicas.owners[group]
        pushes = functions.synchronizes and owner == group  # Of the groups that share a replica, its owner synchronizes it.
        replicas.refresh(group, list(self._blocks))
        turn = self._turns[group] % len(functions.turns)
        is_clean = pushes and not self._has_progress(owner, functions.turns[turn])
        if self._trains:
            is_over = is_due(self._since[owner], steps, period) and not replicas.keeps_progress
            if not functions.synchronizes and owner == group and is_over:
                self._synchronize(group)
        for block in self._changed_blocks():
            block.note_progress(owner)
        if isinstance(batches[0], WorkerBatch):
            device = self._strategy.worker_groups[group].devices[0]
            batches[0].data.begin(group, self._strategy.membership.incarnation(group), device)
        function, begins = functions.functions[-1], False
        if pushes:
            function = functions.functions[turn]
            replicas.weights.count_push(owner)
            begins = self._begin_push(group, len(functions.turns), not is_clean or steps > period, is_scheduled=True)
        if self._trains:
            replicas.grace.begin(self)
            replicas.weights.count_examples(owner, steps * functions.examples)
        self._since[owner] = min(steps, period) if pushes else self._since[owner] + steps
        rates = self._rates_at(step)
        control = replicas.control_numbers(group, rates, step, delay=self.delay.updates, begins=begins)
        if is_clean:
            control[Control.LIVE] *= -1
        return function(batches, group, self._numbers.pack(control, steps, self.counters.counts_at(step)))

    def _changed_blocks(self) -> Iterable[ParameterBlock]:
        """Returns the blocks of which a call makes progress that the chief has to collect."""
        blocks = [block for block in self._blocks if block in self._steps.blocks or block.kind is not Kind.SYNCHRONIZED]
        return blocks if self._trains else self._assigned

    def _take_blocks(self) -> None:
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
        shared = [block for block in self._blocks if block.kind is Kind.SYNCHRONIZED]
        if any(forgotten.values()) or (is_first and any(block.dirty for block in shared)):
            self._replicas.wait_until_idle()
            self._replicas.collect(shared)
            for block, variables in forgotten.items():
                checkpoint_state.forget_outer(block, variables)
        self._has_begun = True
        for block in taken:
            block.trained_by, block.inner_optimizer = self._identity, weakref.ref(inner)

    def _traced(self, batches: list[Any], element_spec: Any, variant: Hashable) -> Callable[..., Any]:
        if not isinstance(batches[0], WorkerBatch):
            return self._function.traced(batches, element_spec, variant)
        functions = [self._function_that_reads(group, variant, batches[0].data) for group in self._strategy.worker_groups]

        def read(batches: list[Any], group: int, sent: Any) -> Any:
            return batches[0].data.read(group, len(batches), functools.partial(functions[group], chief_device.constant(sent)))

        return read

    def _function_that_reads(self, group: WorkerGroup, variant: Hashable, data: WorkerInput) -> Any:
        variant = self._steps.variant_of(group, variant)
        devices, spec = group.traced_devices, data.element_spec

        def run(numbers: Any, handle: Any) -> Any:
            return self._steps.run_on(variant, devices, lambda number: next_batch(spec, handle), True, numbers)

        def trace() -> Any:
            function = tf.function(run, autograph=False)
            return function.get_concrete_function(*self._steps.arguments, tf.TensorSpec([], tf.resource))

        return self._function.trace_for(group, devices, (variant, devices, str(spec)), trace)

    def _synchronize(self, group: int) -> None:
        """Makes a group synchronize with a call for this alone."""
        each_turn = self._turns_of_blocks()
        turn = each_turn[self._turns[group] % len(each_turn)]
        self._since[group] = 0
        begins = self._begin_push(group, len(each_turn), self._has_progress(group, turn), is_scheduled=False)
        for block in (self._steps.blocks[number] for number in turn):
            # A push without progress would make a round, which applies the outer momentum.
            if group in block.dirty or not self._in_rounds:
                self._replicas.synchronize_now(block, group, begins)

    def _has_progress(self, owner: int, turn: tuple[int, ...]) -> bool:
        """Returns whether a replica has anything to push of the blocks of a turn. Without rounds it always pushes.

        A turn without blocks counts as one with progress, or it would never be over.
        """
        return any(owner in self._steps.blocks[number].dirty for number in turn) or not self._in_rounds or not turn

    def _begin_push(self, group: int, turns: int, is_in_round: bool, is_scheduled: bool) -> bool:
        """Notes that a group pushes now, and returns whether all groups begin an epoch.

        A push that is in no round is no turn of its fragment. Otherwise a group that has no progress from an earlier fit would
        push another fragment next than those that have, and wait for it.
        """
        self._turns[group] += is_in_round
        self._replicas.pushes_left.begin(group, is_in_round, is_scheduled)
        return bool(self._replicas.pushes_left.all_begin(group, turns))

    def _register_weights(self) -> None:
        """Registers the weights of the model. Blocks of frozen ones are synchronized only if the step assigns them."""
        if self._steps.blocks or not self._model.built:
            return
        self._replicas.release_unused()
        weights = {}
        overwritten = {id(v) for each in self._model.weights if is_overwritten(each) for v in local_variables(each._value)}
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
        floating = [v for v in weights.values() if v.dtype.is_floating]
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
        self._set_blocks(dict.fromkeys(v.block for v in active), dict.fromkeys(v.block for v in buffers + statistics))
        self._rates_at(steps_of(getattr(self._model, "optimizer", None)))
        self._add_used(floating + buffers)

    def _register_frozen(self, variables: list[LocalVariable], averages: list[LocalVariable]) -> None:
        # In blocks of their own: the outer rates would let a moving variance overshoot, below zero.
        nonnegatives.mark(averages)
        self._replicas.register(averages, Kind.SYNCHRONIZED)
        self._replicas.register(variables, Kind.SYNCHRONIZED)

    def _set_blocks(self, parameters: Iterable[ParameterBlock], averaged: Iterable[ParameterBlock]) -> None:
        """Sets which blocks are synchronized: those that are trained, and those of which the groups only take the mean."""
        self._parameters = list(parameters)
        self._averaged = [block for block in averaged if block not in self._parameters]
        for block in self._averaged:
            block.rates = AVERAGE
        self._steps.blocks = self._parameters + self._averaged
        if self._trains:
            self._strategy.synchronized_blocks = weakref.WeakSet(self._steps.blocks)

    def _rates_at(self, step: int) -> tuple[float, float]:
        """Returns the outer rates at a step. Synchronizations outside of calls, as before an evaluation, use the same."""
        rates = self._rates.at(self.counters.count_at(step, counter_of(getattr(self._model, "optimizer", None))))
        for block in self._parameters if self._trains else ():
            block.rates = rates
        return rates

    def _turns_of_blocks(self) -> list[tuple[int, ...]]:
        return turns(self._strategy.synchronization.fragments, len(self._parameters), len(self._averaged))

    def _add_used(self, variables: list[LocalVariable]) -> None:
        owners = optimizers_by_variable(self._model)
        others = [v for v in variables if id(v) not in owners]
        # Weights of another model, which a loss calls and the program may train later.
        read = [v for v in others if v.kind is Kind.OWN and v.dtype.is_floating and not v.is_assigned]
        self._register_frozen(read, [v for v in read if not v.trainable])
        self._replicas.register(others)  # Apart from slots: of what the program assigns, groups pull the whole block.
        self._replicas.register(variables)
        blocks = dict.fromkeys(v.block for v in variables if v.block is not None)
        self._blocks.update(blocks)
        for block in blocks:
            for variable in block.variables:
                variable.is_slot = id(variable) in owners and variable.dtype.is_floating
            # Slots are gone with their optimizer, which `compile` replaces.
            for owner in {id(each): each for each in (owners.get(id(v), self._model) for v in block.variables)}.values():
                self._replicas.use(owner, [block])
        if self._trains:
            self.counters.add_others(variables)


def _taken_apart(batches: list[Any]) -> list[Any]:
    return batches if isinstance(batches[0], WorkerBatch) else [HostBatch.of(batch) for batch in batches]


def can_be_split(batches: list[Any]) -> bool:
    """Returns whether one traced function takes any number of these `WorkerBatch`es or `HostBatch`es."""
    return isinstance(batches[0], WorkerBatch) or batches[0].arrays is not None
