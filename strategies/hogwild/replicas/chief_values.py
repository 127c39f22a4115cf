"""The values of local variables on the chief: when they are read from the cluster, and when the groups get what is assigned."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tfdist.strategies.coordinator.calls.tracing import tracing_lock
from tfdist.strategies.hogwild.replicas import checkpoint_state
from tfdist.strategies.hogwild.synchronization.global_parameters import ParameterBlock
from tfdist.strategies.hogwild.synchronization.local_variable import Kind, LocalVariable
from tfdist.strategies.keras_hooks import calls


def _references(values: Sequence[Any]) -> list[int]:
    """Returns how many references each of the values has."""
    return [sys.getrefcount(value) for value in values]


(_UNUSED,) = _references([object()])
"""References to an object that only a list holds."""


class ChiefValues:
    """Keeps the chief's variables and the blocks in step.

    Args:
        replicas: the local replicas of the groups (`LocalReplicas`).
    """

    def __init__(self, replicas: Any) -> None:
        self._replicas = replicas
        self._executions_done = 0
        self._fetched: dict[ParameterBlock, int] = {}  # Executions that were done when the block was last fetched.

    def refresh(self, variable: LocalVariable) -> None:
        """Assigns the current value to the chief's variable.

        While executions are in flight, or a step is traced, that is the value of the global parameters. Otherwise groups flush
        first. What is not synchronized only groups have: the program waits for the executions in flight when it reads it.
        """
        self._note_read(variable)
        self._refresh(variable)

    def _note_read(self, variable: LocalVariable) -> None:
        if self._is_trained(variable) and not tracing_lock.is_held:
            self._replicas.edits.before_read()

    def _refresh(self, variable: LocalVariable) -> None:
        block = variable.block
        if block is None or variable.kind in (Kind.FROM_CHIEF, Kind.COUNTER):
            return
        self._update(block)
        block.update_on_chief(variable)

    def newer(self, variable: LocalVariable) -> Any:
        """Returns the current value as a numpy array if the chief's variable does not have it, else None. Assigns nothing."""
        block = variable.block
        if block is None or variable.kind in (Kind.FROM_CHIEF, Kind.COUNTER):
            return None
        self._note_read(variable)
        self._update(block)
        return block.cut(block.values, variable).copy() if block.is_newer_than(variable) else None

    def _update(self, block: ParameterBlock) -> None:
        if block.is_ahead and not block.assigned:
            if block.kind is not Kind.SYNCHRONIZED and not tracing_lock.is_held_here and calls.is_in_this_thread():
                self._replicas.wait_until_idle()  # What was collected last may be zeros: a callback would scale these.
            # Groups that flush trace functions: a step that reads a variable while it is traced must not wait for them.
            if not self._replicas.in_flight() and not tracing_lock.is_held:
                self._replicas.collect(self._beside(block))
            elif block.kind is Kind.SYNCHRONIZED and self._fetched.get(block) != self._executions_done:
                self._fetched[block] = self._executions_done  # Once for all variables that are read between two steps.
                block.set_values(block.fetch())

    def _beside(self, block: ParameterBlock) -> list[ParameterBlock]:
        """Returns the blocks that are collected with a block: if it is synchronized, all that are.

        Groups push several of them together. One that is collected alone would have no progress in their next push, which makes
        a round because of the others: the outer momentum alone would move it.
        """
        is_shared = block.kind is Kind.SYNCHRONIZED
        return [each for each in self._replicas.blocks if each.kind is block.kind] if is_shared else [block]

    def release(self, block: ParameterBlock) -> None:
        """Gives the last values of a block to its variables, which then belong to no block.

        If nothing else holds the variables, the values are lost with them: collecting would take longer than a small training.
        """
        if any(count > _UNUSED for count in _references(block.variables)):
            self._replicas.collect([block])
        for variable in block.variables:
            if variable.kind not in (Kind.FROM_CHIEF, Kind.COUNTER) and block.values is not None:
                block.update_on_chief(variable)
            variable.block = None
            variable.version = 0
        self._replicas.blocks.remove(block)
        self._fetched.pop(block, None)

    @contextlib.contextmanager
    def assigning(self, variable: LocalVariable) -> Iterator[None]:
        """Surrounds an assignment to the chief's variable. `publish` gives the new value to the groups."""
        if self._is_trained(variable) and not variable.block.assigned:
            self._replicas.edits.before_assignment(variable.path)
        elif variable.kind is Kind.FROM_CHIEF or (variable.block is not None and not self._is_trained(variable)):
            self._replicas.edits.warn_if_late("slots of an optimizer" if variable.is_slot else variable.path)
        self._refresh(variable)
        if variable.kind is Kind.COUNTER and variable.block is not None and id(variable) not in variable.block.assigned:
            variable.count_before = int(variable.value_on_chief())
        yield
        variable.restored, variable.restored_outer = {}, {}
        if variable.block is not None:
            variable.block.assigned[id(variable)] = variable
            variable.version = variable.block.version
            variable.restored_outer = checkpoint_state.zero_outer(variable)  # That of the old value would move the new one.

    def finish_steps_on(self, variable: LocalVariable) -> None:
        """Waits for the executions in flight if they train a variable that the program is about to change by its value."""
        if self._is_trained(variable):
            self._replicas.wait_until_idle()

    @staticmethod
    def _is_trained(variable: LocalVariable) -> bool:
        """Returns whether groups train a variable, also in executions that have not begun yet, or did so before."""
        block = variable.block
        return block is not None and block.kind is Kind.SYNCHRONIZED and bool(block.dirty or block.trained_by is not None)

    def publish(self) -> None:
        """Gives what the chief has assigned to the ps. Call it before executions are scheduled.

        Groups pull the whole block, so all groups flush their progress first.
        """
        for block in self._replicas.blocks:
            if not block.assigned:
                continue
            self._replicas.wait_until_idle()  # Executions that wait for a group make progress, too.
            if block.kind in (Kind.OWN, Kind.SEED):
                self._keep_own(block)
            elif block.kind is Kind.COUNTER:
                self._keep_counts(block)
            elif block.is_ahead:
                self._replicas.collect(self._beside(block))
            block.publish()
            checkpoint_state.restore_outer(block)

    def _keep_own(self, block: ParameterBlock) -> None:
        """Keeps what each group has of the variables that are not assigned. The block has their mean, for new groups."""
        found = self._replicas.collect([block], others={block: self._replicas.current_owners(block)})
        for group, vector in found[block].items():
            for variable in block.variables:
                if id(variable) not in block.assigned:
                    variable.restored[group] = block.cut(vector, variable).copy()

    def _keep_counts(self, block: ParameterBlock) -> None:
        """Keeps what each group has counted. If the program has assigned a counter, the groups' counts change in proportion.

        Optimizers use the count to correct the bias of slots that begin with zeros. The slots of a group have had its own
        updates. Slots that were loaded or assigned before its first update have had all updates of the assigned count.
        """
        found = self._replicas.collect([], others={block: self._replicas.current_owners(block)})[block]
        for variable in block.variables:
            own = {group: int(block.cut(vector, variable)) for group, vector in found.items()}
            trained, variable.group_count = [count for count in own.values() if count], None
            is_assigned, now = id(variable) in block.assigned, int(variable.value_on_chief())
            before = variable.count_before if is_assigned else now
            if before and trained:
                mean = variable.group_count = round(sum(trained) / len(trained) * now / before)
                for group, count in own.items():
                    moved = round(count * now / before) if count or not is_assigned else mean
                    variable.restored.setdefault(group, np.int64(moved))

    def note_execution(self) -> None:
        """Notes that the chief has the results of one more execution."""
        self._executions_done += 1

    def synchronize_groups(self) -> None:
        """Lets all groups continue from global parameters with the progress of all, unless executions are in flight."""
        if not self._replicas.in_flight():
            self._replicas.collect([block for block in self._replicas.blocks if block.kind is Kind.SYNCHRONIZED])
