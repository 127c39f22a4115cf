"""The calls of worker groups under `hogwild`: which function a group runs next, and which blocks it synchronizes with it.

A group that has about a sync period's batches, or those of several, synchronizes while it computes them. A group that has fewer
synchronizes before them, when the period is over.
"""

import functools
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist.strategies.coordinator.calls.group_function import GroupFunction, HostBatch, examples_in
from tfdist.strategies.coordinator.calls.group_step import GroupStep
from tfdist.strategies.coordinator.calls.tracing import tracing_lock
from tfdist.strategies.coordinator.members.worker_groups import WorkerGroup
from tfdist.strategies.hogwild.inner_steps import InnerSteps
from tfdist.strategies.hogwild.model_blocks import ModelBlocks
from tfdist.strategies.hogwild.replicas.block_registry import Use
from tfdist.strategies.hogwild.replicas.step_counters import StepCounters, counters_of, rates_of
from tfdist.strategies.hogwild.synchronization.control import CallNumbers, Control
from tfdist.strategies.hogwild.timing.measured_delay import FIRST, MeasuredDelay
from tfdist.strategies.hogwild.timing.schedules import aligned_since, is_due
from tfdist.strategies.inputs.worker_input import WorkerBatch, WorkerInput, next_batch
from tfdist.strategies.runtime import chief_device


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
        blocks: the blocks of the model.
        counters: the counters whose changes the results have at their end.
        delay: updates between the push and the pull of a group, and between two pushes.
        measures: whether results have the columns of measured_delay.py after all others.
    """

    def __init__(self, strategy: Any, model: Any, step: GroupStep, trains: bool = False, stacks_results: bool = False) -> None:
        self._strategy = strategy
        self._trains = trains
        self._replicas = strategy.local_replicas
        groups = len(strategy.worker_groups)
        self._since = [0] * groups  # Inner steps of each group since its last synchronization.
        self._turns = [0] * groups  # Pushes of each group, without those that are in no round.
        self._longest = 0  # Batches of the longest call in the epoch, at most a period.
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
        self.blocks = ModelBlocks(strategy, model, self.counters, trains, every=groups * self.delay.between)
        self._steps = InnerSteps(strategy, self.blocks, step, self.counters, self._numbers, stacks_results, self.measures)
        self._function = GroupFunction(strategy, self._steps)
        self._functions: dict[Any, _Functions] = {}
        self._use = Use()  # What functions use that were traced, until it is in blocks.

    def prepare(self, batches: list[Any], element_spec: Any = None, period: int | None = None) -> Callable[..., Any]:
        """Returns the call that makes a step on each batch: it takes the number of the group, then that of the first step.

        Args:
            batches: as for `GroupFunction.prepare`, or `WorkerBatch`es, which the group reads.
            element_spec: as for `GroupFunction.prepare`.
            period: updates between two synchronizations, if not the strategy's.
        """
        period = period or self.delay.between
        batches = _taken_apart(batches)
        self._longest = max(self._longest, min(len(batches), period))
        pushes = self._trains and not self._replicas.keeps_progress
        synchronizes = pushes and is_due(len(batches), len(batches), period)
        several = period if len(batches) > period and self.takes_several_periods() else 0
        functions = self._functions_for(batches, element_spec, synchronizes, several)
        if self._trains:
            self.blocks.take()
        return functools.partial(self._run, functions, batches, period)

    def begin_epoch(self) -> None:
        """Lets all groups push next at the same time, and the same fragment. Otherwise they would wait for each other."""
        self._turns[:] = [max(self._turns)] * len(self._turns)
        self._longest = 0
        if self._replicas.outer_optimizer.in_rounds:
            owners = {self._replicas.owners[group] for group in self._strategy.membership.live_groups}
            self._since[:] = [aligned_since([self._since[owner] for owner in owners] or [0])] * len(self._since)

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
        key = (like, len(batches) > 1, synchronizes, several, len(self.blocks.synchronized))
        if key not in self._functions:
            self._functions[key] = self._trace(batches, element_spec, synchronizes, several)
            if self.blocks.synchronize_assigned():
                return self._functions_for(batches, element_spec, synchronizes, several)
        return self._functions[key]

    def _trace(self, batches: list[Any], element_spec: Any, synchronizes: bool, several: int) -> _Functions:
        self.blocks.register_weights()
        each_turn: list[tuple[int, ...]] = self.blocks.each_turn() if synchronizes else [()]
        without = [()] if synchronizes and self._strategy.shares_replicas else []
        # Locked, because the variables that a function uses are recorded in one place for all models.
        with tracing_lock, self._replicas.registry.recording_use(used := self._use):
            traced = [self._traced(batches, element_spec, (turn, several)) for turn in each_turn + without]
        self.blocks.register_weights()  # The first call of a model may have built it.
        self.blocks.add_used(used)
        self._use = Use()  # Not before: after Ctrl-C here nothing is traced again, so nothing would be recorded.
        examples = examples_in(batches[0].data.example() if isinstance(batches[0], WorkerBatch) else batches[0].values)
        return _Functions(traced, each_turn, synchronizes, float(examples or 1))

    def _run(self, functions: _Functions, batches: list[Any], period: int, group: int, step: int) -> Any:
        """Runs a call on a group, in its thread, and synchronizes the group with it or before it if that is due."""
        replicas, steps = self._replicas, len(batches)
        owner = replicas.owners[group]
        pushes = functions.synchronizes and owner == group  # Of the groups that share a replica, its owner synchronizes it.
        replicas.refresh(group, list(self.blocks.used))
        turn = self._turns[group] % len(functions.turns)
        is_clean = pushes and not self.blocks.have_progress(owner, functions.turns[turn])
        if self._trains:
            # Not `steps`: the last call of an epoch may be shorter, but all groups push in the same epoch.
            usual = max(steps, min(self._longest, period))
            is_over = is_due(self._since[owner], usual, period) and not replicas.keeps_progress
            if not functions.synchronizes and owner == group and is_over:
                self._synchronize(group)
            elif not pushes:
                replicas.pushes_left.begin(group, is_in_round=False)
        for block in self.blocks.changed():
            block.note_progress(owner)
        if isinstance(batches[0], WorkerBatch):
            device = self._strategy.worker_groups[group].devices[0]
            batches[0].data.begin(group, self._strategy.membership.incarnation(group), device)
        function, begins = functions.functions[-1], False
        if pushes:
            function = functions.functions[turn]
            replicas.weights.count_push(owner)
            begins = self._begin_push(group, len(functions.turns), not is_clean or steps > period)
        if self._trains:
            replicas.grace.begin(self)
            replicas.weights.count_examples(owner, steps * functions.examples)
        self._since[owner] = min(steps, period) if pushes else self._since[owner] + steps
        rates = self.blocks.rates_at(step)
        control = replicas.control_numbers(group, rates, step, delay=self.delay.updates, begins=begins)
        if is_clean:
            control[Control.LIVE] *= -1
        return function(batches, group, self._numbers.pack(control, steps, self.counters.counts_at(step)))

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
        each_turn = self.blocks.each_turn()
        turn = each_turn[self._turns[group] % len(each_turn)]
        self._since[group] = 0
        begins = self._begin_push(group, len(each_turn), self.blocks.have_progress(group, turn))
        for block in (self.blocks.synchronized[number] for number in turn):
            # A push without progress would make a round, which applies the outer momentum.
            if group in block.dirty or not self._replicas.outer_optimizer.in_rounds:
                self._replicas.synchronize_now(block, group, begins)

    def _begin_push(self, group: int, turns: int, is_in_round: bool) -> bool:
        """Notes that a group pushes now, and returns whether all groups begin an epoch.

        A push that is in no round is no turn of its fragment. Otherwise a group that has no progress from an earlier fit would
        push another fragment next than those that have, and wait for it.
        """
        self._turns[group] += is_in_round
        self._replicas.pushes_left.begin(group, is_in_round)
        return bool(self._replicas.pushes_left.all_begin(group, turns))


def _taken_apart(batches: list[Any]) -> list[Any]:
    return batches if isinstance(batches[0], WorkerBatch) else [HostBatch.of(batch) for batch in batches]


def can_be_split(batches: list[Any]) -> bool:
    """Returns whether one traced function takes any number of these `WorkerBatch`es or `HostBatch`es."""
    return isinstance(batches[0], WorkerBatch) or batches[0].arrays is not None
