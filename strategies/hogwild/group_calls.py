"""The calls of worker groups under `hogwild`: which function a group runs next, and which blocks it synchronizes with it.

A group that has about a sync period's batches synchronizes while it computes them. A group that has fewer synchronizes before
them, when the period is over.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist.strategies.coordinator.extended import unwrapped
from tfdist.strategies.coordinator.group_function import GroupFunction, examples_in
from tfdist.strategies.coordinator.group_step import GroupStep
from tfdist.strategies.coordinator.tensor_fusion import can_pack
from tfdist.strategies.coordinator.worker_groups import WorkerGroup
from tfdist.strategies.hogwild.global_parameters import ParameterBlock
from tfdist.strategies.hogwild.inner_steps import InnerSteps
from tfdist.strategies.hogwild.local_variable import Kind, LocalVariable
from tfdist.strategies.hogwild.schedules import is_due
from tfdist.strategies.hogwild.step_counters import StepCounters, counters_of, name_of
from tfdist.strategies.inputs.worker_input import WorkerBatch, WorkerInput, next_batch
from tfdist.strategies.runtime import chief_device


@dataclass(frozen=True)
class _PreparedCall:
    """A call that any group can run.

    Attributes:
        functions: the functions that synchronize different fragments, in turn. If groups share replicas, one more follows that
            synchronizes nothing.
        turns: how many functions take turns.
        overlaps: whether the functions synchronize.
        steps: how many steps the call makes.
        examples: how many examples they train on.
        period: updates between two synchronizations.
        data: where the group reads its batches; None if the chief sends them.
    """

    functions: list[Callable[..., Any]]
    turns: int
    overlaps: bool
    steps: int
    examples: float
    period: int
    data: WorkerInput | None


class GroupCalls:
    """The calls that run one step function of a model, and how far each group is in its sync period.

    Args:
        strategy: the strategy.
        model: the Keras model.
        step: its step on the replicas of a group.
        trains: whether the step changes the local replicas.
        stacks_results: whether a call returns the results of all its steps, stacked; else it returns that of its only step.
    """

    def __init__(self, strategy: Any, model: Any, step: GroupStep, trains: bool = False, stacks_results: bool = False) -> None:
        self._strategy = strategy
        self._model = model
        self._trains = trains
        self._replicas = strategy.local_replicas
        groups = len(strategy.worker_groups)
        self._since = [0] * groups  # Inner steps of each group since its last synchronization.
        self._turns = [0] * groups  # Synchronizations of each group.
        if trains:  # The model keeps them as long as it is trained, also in its checkpoints.
            position = self._replicas.position_of(model)
            self._since, self._turns = position.since, position.turns
        # A replica that several groups train at once does not show what one of them has counted.
        self.counters = StepCounters(counters_of(model) if trains and not strategy.shares_replicas else ())
        self._steps = InnerSteps(strategy, model, step, self.counters, stacks_results)
        self._function = GroupFunction(strategy, self._steps)
        self._blocks: dict[ParameterBlock, None] = {}  # All that the functions use.
        self._rates = strategy.synchronization.outer_rates(name_of(getattr(model, "optimizer", None)))

    def prepare(self, batches: list[Any], element_spec: Any = None, period: int | None = None) -> Callable[..., Any]:
        """Returns the call that makes a step on each batch: it takes the number of the group, then that of the first step.

        Args:
            batches: as for `GroupFunction.prepare`, or `WorkerBatch`es, which the group reads.
            element_spec: as for `GroupFunction.prepare`.
            period: updates between two synchronizations, if not the strategy's.
        """
        self._register_weights()
        data = batches[0].data if isinstance(batches[0], WorkerBatch) else None
        options = self._strategy.synchronization
        period = period or self._strategy.steps_per_synchronization
        overlaps = self._trains and is_due(len(batches), len(batches), period) and options.overlap
        turns: list[tuple[int, ...]] = [()]
        if overlaps:
            every = range(len(self._steps.blocks))
            turns = [tuple(every)] if options.fragments == 1 else [(number,) for number in every]
        without = [()] if overlaps and self._strategy.shares_replicas else []
        with self._replicas.recording_use() as used:
            functions = [self._function_for(batches, element_spec, turn, data) for turn in turns + without]
        self._register_weights()  # The first call of a model may have built it.
        self._add_used(used)
        examples = float(len(batches) * (examples_in(data.example() if data else batches[0]) or 1))
        return functools.partial(
            self._run, _PreparedCall(functions, len(turns), overlaps, len(batches), examples, period, data)
        )

    def _run(self, call: _PreparedCall, group: int, step: int) -> Any:
        """Runs a call on a group, in its thread, and synchronizes the group with it or before it if that is due."""
        replicas = self._replicas
        owner = replicas.owners[group]
        synchronizes = call.overlaps and owner == group  # Of the groups that share a replica, its owner synchronizes it.
        try:
            replicas.refresh(group, list(self._blocks))
            if self._trains:
                if not call.overlaps and owner == group and is_due(self._since[owner], call.steps, call.period):
                    self._synchronize(group)
                for block in self._blocks:
                    if block in self._steps.blocks or block.kind is not Kind.SYNCHRONIZED:
                        block.dirty.add(owner)
            if call.data is not None:
                call.data.begin(group, replicas.incarnation_of(group), self._strategy.worker_groups[group].devices[0])
            function = call.functions[-1]
            if synchronizes:
                function = call.functions[self._turns[group] % call.turns]
                self._turns[group] += 1
                replicas.count_push(group)
            if self._trains:
                replicas.count_examples(group, call.examples)
            self._since[owner] = call.steps + (0 if synchronizes else self._since[owner])
            return function(group, replicas.control(group, self._rates, step))
        except Exception:
            replicas.mark_lost(owner)
            raise

    def _function_for(
        self, batches: list[Any], element_spec: Any, turn: tuple[int, ...], data: WorkerInput | None
    ) -> Callable[..., Any]:
        if data is None:
            return self._function.prepare(batches, element_spec, turn)
        functions = [self._function_that_reads(group, turn, data) for group in self._strategy.worker_groups]
        return lambda group, numbers: functions[group](
            chief_device.constant(len(batches), tf.int32), numbers, data.handles[group]
        )

    def _function_that_reads(self, group: WorkerGroup, turn: tuple[int, ...], data: WorkerInput) -> Any:
        variant = self._steps.variant_of(group, turn)
        devices, spec = group.traced_devices, data.element_spec

        def run(count: Any, numbers: Any, handle: Any) -> Any:
            return self._steps.run_on(variant, devices, lambda number: next_batch(spec, handle), count, numbers)

        def trace() -> Any:
            function = tf.function(run, autograph=False)
            handle = tf.TensorSpec([], tf.resource)
            return function.get_concrete_function(tf.TensorSpec([], tf.int32), *self._steps.arguments, handle)

        return self._function.trace_for(group, devices, (variant, devices, str(spec)), trace)

    def _synchronize(self, group: int) -> None:
        """Makes a group synchronize with a call for this alone, and wait for its round."""
        blocks = self._steps.blocks
        if self._strategy.synchronization.fragments > 1:
            blocks = [blocks[self._turns[group] % len(blocks)]]
        self._turns[group] += 1
        self._since[group] = 0
        for block in blocks:
            self._replicas.synchronize_now(block, group)
            self._replicas.wait_for_round(block, group)

    def _register_weights(self) -> None:
        """Puts the model's weights into the global parameters. Frozen weights have blocks that are never synchronized."""
        if self._steps.blocks or not self._model.built:
            return
        self._replicas.release_unused()
        weights = {}
        for weight in self._model.weights:
            variable = unwrapped(weight._value)
            weights[id(variable)] = variable
            if isinstance(variable, LocalVariable):
                variable.keras_constraint = weight.constraint
        floating = [v for v in weights.values() if isinstance(v, LocalVariable) and v.dtype.is_floating]
        trained = {id(unwrapped(weight._value)) for weight in self._model.trainable_weights}
        active = [v for v in floating if id(v) in trained or not v.trainable]
        self._replicas.register(active, Kind.SYNCHRONIZED, self._strategy.synchronization.fragments)
        self._replicas.register(floating, Kind.SYNCHRONIZED)
        self._steps.blocks = list(dict.fromkeys(v.block for v in active))
        for block in self._steps.blocks:
            block.rates = self._rates
        self._add_used(floating)

    def _add_used(self, variables: list[LocalVariable]) -> None:
        self._replicas.register(variables)
        blocks = dict.fromkeys(v.block for v in variables if v.block is not None)
        self._blocks.update(blocks)
        self._replicas.use(self._model, blocks)
        if self._trains:
            self.counters.add_others(variables)


def can_be_split(batches: list[Any]) -> bool:
    """Returns whether one traced function takes any number of these batches."""
    return isinstance(batches[0], WorkerBatch) or can_pack(tf.nest.flatten(batches[0]))
