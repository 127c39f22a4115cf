"""The groups' copies of all variables, as the chief manages them: who has what, who has progress, who has to begin anew."""

import contextlib
import itertools
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.strategies.coordinator import chief_device
from tfdist.strategies.coordinator.group_function import tracing_lock
from tfdist.strategies.hogwild import checkpoint_state
from tfdist.strategies.hogwild.global_parameters import ParameterBlock
from tfdist.strategies.hogwild.local_variable import Kind, LocalVariable
from tfdist.strategies.hogwild.outer_optimizers import RULES, Control
from tfdist.strategies.hogwild.push_pull import PushPull, take_over, take_round
from tfdist.strategies.hogwild.rounds import Rounds
from tfdist.strategies.private_api import dispatch_context

ANSWER_SECONDS = 15.0
SLOWEST_BYTES_PER_SECOND = 1e7
"""How long the chief waits for groups that hand over their progress: so long and, for the bytes of all of them, as long as a
shared network of 100 Mbit/s needs. A group that takes longer is lost, as one whose worker is gone, until it answers again.
"""

_MORE_THAN_ALL = 2**30
_NO_GROUP = -1

_log = logging.getLogger("tfdist")


class LocalReplicas:
    """What the worker groups have.

    Attributes:
        blocks: all variables that functions of groups have used, in blocks.
        rule: what the centre does with changes.
        owners: for each group the one whose copies it trains: itself, or where a process shares them the first there.
        trained: examples that each group has trained on since its last exchange.
        pushed: examples that went into each group's last change.
    """

    def __init__(self, strategy: Any, coordinator: Any) -> None:
        self._strategy = strategy
        self._options = strategy.synchronization
        self._groups = strategy.worker_groups
        self.rule = RULES[self._options.outer](self._options, len(self._groups))
        self.blocks: list[ParameterBlock] = []
        self._used: dict[int, LocalVariable] = {}
        self._has: dict[tuple[int, ParameterBlock], tuple[int, int]] = {}  # Generation and start of the group's copies.
        self._starts = [0] * len(self._groups)
        self.owners = _owners(self._groups, strategy.shares_replicas)
        self._live = set(self.owners)
        self.trained = [0.0] * len(self._groups)
        self.pushed = [0.0] * len(self._groups)
        self._functions: dict[Any, Callable[..., Any]] = {}
        self._periods: weakref.WeakKeyDictionary[Any, checkpoint_state.Period] = weakref.WeakKeyDictionary()
        self._locks = [threading.RLock() for _ in self._groups]
        # TensorFlow makes it anew on a worker that was started anew: that is how the chief learns of it.
        self._markers = coordinator._create_per_worker_variables(self._note_start)
        self._alone: int | None = None  # The group that trains while the others wait.
        self._done = 0  # Executions of all groups.
        self._fetched: dict[ParameterBlock, int] = {}  # How many were done when the chief has last fetched the block.
        self._rounds = Rounds()
        self.in_flight: Callable[[], int] = lambda: 0

    def _note_start(self) -> Any:
        group = dispatch_context().worker_index
        self._starts[group] += 1
        with tf.device(self._groups[group].devices[0]):
            return tf.zeros([])

    # Variables.

    def record_use(self, variable: LocalVariable) -> None:
        """Called where a function that is traced uses `variable`."""
        self._used[id(variable)] = variable

    @contextlib.contextmanager
    def recording_use(self) -> Iterator[list[LocalVariable]]:
        """Around the tracing of a function: gives, afterwards, the variables that it uses."""
        outer, self._used = self._used, {}
        used: list[LocalVariable] = []
        try:
            yield used
        finally:
            used += self._used.values()
            self._used = outer

    def register(self, variables: Sequence[LocalVariable], kind: Kind | None = None, parts: int = 1) -> None:
        """Puts variables that are in no block into blocks by kind and dtype, and gives their values to the ps.

        Args:
            variables: the variables.
            kind: what they are; None leaves each as it was made.
            parts: into how many blocks of about equal size those of one kind and dtype go.
        """
        new: dict[tuple[Kind, Any], list[LocalVariable]] = {}
        for variable in variables:
            if variable.block is None and variable.kind is not Kind.FROM_CHIEF:
                variable.kind = kind or variable.kind
                new.setdefault((variable.kind, variable.dtype), []).append(variable)
        servers = [list(devices) for devices in self._strategy.server_devices]
        for members in new.values():
            for part in _parted(members, parts):
                block = ParameterBlock(part, servers, self.rule, len(self._groups), self._options.compression is not None)
                block.begin()
                block.publish()
                checkpoint_state.restore_outer(block)
                self.blocks.append(block)

    # Before a group runs a function, in its thread.

    def refresh(self, group: int, blocks: Sequence[ParameterBlock]) -> None:
        """Lets the group take over what it has not: at its start, and when the chief has assigned variables."""
        dispatched = dispatch_context()
        if dispatched is not None:
            dispatched.maybe_get_remote_value(self._markers._values[group])
        owner = self.owners[group]
        with self._locks[owner]:
            self._live.add(owner)
            for block in blocks:
                state = (block.generation, self._starts[owner])
                if self._has.get((owner, block)) != state:
                    self._function("take_over", block, owner)(self.control(owner, block.rates))
                    checkpoint_state.give(block, owner, self._groups[owner].devices[0])
                    block.dirty.discard(owner)
                    self._has[owner, block] = state

    def position_of(self, model: Any) -> checkpoint_state.Period:
        """How far the groups are with a model."""
        groups = len(self._groups)
        return self._periods.setdefault(model, checkpoint_state.Period([0] * groups, [0] * groups))

    def incarnation_of(self, group: int) -> int:
        """How often the group's leader has been started."""
        return self._starts[group]

    def count_examples(self, group: int, examples: float) -> None:
        """Notes how many examples a group trains on with its next call."""
        self.trained[self.owners[group]] += examples

    def count_push(self, group: int) -> None:
        """Notes that a group pushes, with its next call, what it has trained so far."""
        owner = self.owners[group]
        if self.trained[owner]:  # A change goes block by block.
            self.pushed[owner], self.trained[owner] = self.trained[owner], 0.0

    def synchronize_now(self, block: ParameterBlock, group: int) -> None:
        """Lets a group exchange its progress in a call of its own."""
        self.count_push(group)
        self._function("exchange", block, group)(self.control(group, block.rates))

    def wait_for_round(self, block: ParameterBlock, group: int) -> None:
        """After `exchange_now`, where the rule works in rounds: lets the group go on from the centre with this round in it."""
        if self.rule.in_rounds and self._rounds.wait(block, group, self._training(group)):
            self._function("take_round", block, group)(self.control(group, block.rates))

    def flush(self, block: ParameterBlock, group: int) -> Any:
        """Gives the centre all progress of a group's copies, which then begin anew; of another kind of block gives the copies.

        Not compressed, because what rounding leaves out would be gone with the old copies. Completes no round, see `collect`.
        """
        self.count_push(group)
        in_round = _MORE_THAN_ALL if self.rule.in_rounds else None
        return self._function("hand_over", block, group)(self.control(group, block.rates, in_round=in_round))

    def push_pull(self, block: ParameterBlock, servers: int, control: Control) -> PushPull:
        """An exchange of `block`, to be traced into a group's function."""
        compression = self._options.compression if block.dtype == tf.float32 else None
        return PushPull(block, self.rule, servers, compression, control, self._options.topology)

    def control(self, group: int, rates: tuple[float, float], step: int = 0, in_round: int | None = None) -> Any:
        """What `Control.of` takes apart, on the chief.

        Args:
            group: the number of the group.
            rates: the outer learning rate and momentum.
            step: the number of the first step over all groups.
            in_round: how many groups complete a round, where not all that are training.
        """
        owner = self.owners[group]
        servers = self._strategy.servers_of
        beside = [other for other in self._training(owner) if servers(other) == servers(owner)]
        weight = 1.0 / len(beside)
        if self._options.weights == "examples":
            own = self.pushed[owner]
            weight = own / sum(self.pushed[other] or own for other in beside) if own else weight
        live = len(beside) if in_round is None else in_round
        return chief_device.constant([owner, weight, live, step, *rates], tf.float64)

    def _training(self, group: int) -> set[int]:
        """The groups that train now, as this one sees it."""
        return self._live | {group} if self._alone is None else {group}

    def mark_lost(self, group: int) -> None:
        """The group has failed or does not answer; it begins anew, and its share of the average is the others'."""
        owner = self.owners[group]
        self._live.discard(owner)
        for key in [key for key in list(self._has) if key[0] == owner]:
            self._has.pop(key, None)
        for block in self.blocks:
            block.dirty.discard(owner)

    def _function(self, what: str, block: ParameterBlock, group: int) -> Callable[..., Any]:
        """The function of this name, which groups that look alike share."""
        strategy, at = self._strategy, self._groups[group]
        servers = strategy.servers_of(group)
        home = strategy.home_of(group)
        key = (what, block, home, servers)
        with tracing_lock:
            if key not in self._functions:

                def run(numbers: Any) -> Any:
                    control = Control.of(numbers)
                    if what == "take_over":
                        take_over(block, servers, control.group, len(self._groups))
                        return tf.constant(0)
                    if what == "take_round":
                        take_round(block, servers, control.group)
                        return tf.constant(0)
                    if block.kind is not Kind.EXCHANGED or (what == "hand_over" and self.rule.sends_copy):
                        return block.copies()
                    handed_over = PushPull(block, self.rule, servers, None, control)
                    exchange = handed_over if what == "hand_over" else self.push_pull(block, servers, control)
                    exchange.begin()
                    exchange.end()
                    return tf.constant(0)

                with tf.device(at.devices[0]), strategy.extended.tracing([home]):
                    function = tf.function(run, autograph=False)
                    self._functions[key] = function.get_concrete_function(Control.SPEC)
            function = self._functions[key]

        def call(numbers: Any) -> Any:
            with tf.device(at.devices[0]):
                return function(numbers)

        return call

    # The chief's side.

    def refresh_chief(self, variable: LocalVariable) -> None:
        """Gives the chief's variable the value that it has in the cluster.

        While steps are under way that is the centre as it is, and for what belongs to the groups what was read last; else the
        groups first hand over their progress.
        """
        block = variable.block
        if block is None or variable.kind in (Kind.FROM_CHIEF, Kind.COUNTER):
            return
        if block.dirty and not block.changed:
            if not self.in_flight():
                self.collect([block])
            elif block.kind is Kind.EXCHANGED and self._fetched.get(block) != self._done:
                self._fetched[block] = self._done  # Once for all variables that are read between two steps.
                block.set_values(block.fetch())
        block.bring(variable)

    @contextlib.contextmanager
    def assigning(self, variable: LocalVariable) -> Iterator[None]:
        """Around an assignment on the chief."""
        self.refresh_chief(variable)
        yield
        variable.restored = {}
        if variable.block is not None:
            variable.block.changed = True
            variable.version = variable.block.version

    def synchronize_groups(self) -> None:
        """Before the groups evaluate or predict: their copies become the centre, with the progress of all."""
        if not self.in_flight():
            self.collect([block for block in self.blocks if block.kind is Kind.EXCHANGED])

    def publish(self) -> None:
        """Before steps are handed out: what the chief has assigned goes to the ps."""
        for block in self.blocks:
            if block.changed:
                block.publish()

    def count_updates(self, made: Sequence[tuple[LocalVariable, int]]) -> None:
        """Adds updates that are done to the chief's counters."""
        self._done += 1
        for variable, updates in made:
            variable.count_on_chief(updates)

    def train_alone(self, one: bool) -> None:
        """Whether from now on one group trains while the others wait: then its progress counts in full, as in one process."""
        if one != (self._alone is not None):
            self.synchronize_groups()
            self._alone = self.owners[min(self._live, default=0)] if one else None

    def has_lost_alone(self) -> bool:
        """Whether the group that trains while the others wait is lost."""
        return self._alone is not None and self._alone not in self._live

    def may_take(self, group: int, even_for_another: bool) -> bool:
        """Whether a group may take the next steps: while one trains alone only that one, or whoever does it from now on."""
        if self._alone is not None and even_for_another:
            self._alone = self.owners[group]
        return self._alone in (None, self.owners[group])

    def replicas_of(self, block: ParameterBlock) -> dict[int, Any]:
        """The copies of each group that goes on from them, vectors; of a block that is not exchanged."""
        now = {group: (block.generation, self._starts[group]) for group in self.owners if not block.changed}
        return self._ask(block, [group for group, state in now.items() if self._has.get((group, block)) == state])

    def collect(self, blocks: Sequence[ParameterBlock]) -> None:
        """Brings the groups' progress together: the chief knows it, and every group goes on from there.

        Nothing may be under way. Groups that do not answer are left out.
        """
        for block in blocks:
            if not block.dirty:
                continue
            answers = self._ask(block, sorted(block.dirty))
            block.dirty.clear()
            if block.kind is Kind.EXCHANGED:
                if self.rule.in_rounds:
                    self._complete_round(block)
                    self._rounds.begin_anew(block)
                if self.rule.sends_copy and answers:
                    # Elastic groups move a part of the way only. They meet in the mean of their copies: nothing is lost.
                    block.set_values(_one_of(list(answers.values()), None, block.dtype))
                    block.publish()
                    continue
                block.set_values(block.fetch(None if self._alone is None else self._strategy.servers_of(self._alone)))
                block.generation += 1
                if len(block.slices) > 1:
                    block.publish()  # Groups of all server groups go on from the same, and evaluate the same.
            elif answers:
                block.set_values(_one_of(list(answers.values()), answers.get(0), block.dtype))

    def _complete_round(self, block: ParameterBlock) -> None:
        """Lets what groups have pushed to a round go into the centre, though others have not; without any does nothing."""

        def run(numbers: Any) -> None:
            control = Control.of(numbers)
            for centre, state in zip(itertools.chain(*block.slices), itertools.chain(*block.state), strict=True):
                with tf.device(centre.device):
                    self.rule.received(centre, state, tf.zeros(centre.shape, centre.dtype), control)

        key = ("complete_round", block)
        with tf.device(chief_device.DEVICE):
            if key not in self._functions:
                self._functions[key] = tf.function(run, autograph=False, input_signature=[Control.SPEC])
            self._functions[key](chief_device.constant([_NO_GROUP, 0.0, 1, 0, *block.rates], tf.float64))

    def _ask(self, block: ParameterBlock, groups: Sequence[int]) -> dict[int, Any]:
        """Lets the groups push their progress, or give their copies; what those gave that answered."""
        answers: dict[int, Any] = {}

        def ask(group: int) -> None:
            try:
                with self._locks[group]:  # Should it answer late, it does not take over the centre meanwhile.
                    answer = self.flush(block, group)
                answers[group] = chief_device.fetched(answer).numpy()
            except tf.errors.OpError as error:
                _log.debug("group %d does not hand over its progress: %s", group, error)
                self.mark_lost(group)

        threads = [threading.Thread(target=ask, args=(group,), daemon=True) for group in groups]
        for thread in threads:
            thread.start()
        size = block.size * block.dtype.size * len(groups)
        latest = time.monotonic() + ANSWER_SECONDS + size / SLOWEST_BYTES_PER_SECOND
        for group, thread in zip(groups, threads, strict=True):
            thread.join(max(0.0, latest - time.monotonic()))
            if thread.is_alive():
                self.mark_lost(group)
        return dict(answers)


def _owners(groups: Sequence[Any], shared: bool) -> list[int]:
    """For each group the one whose copies it trains."""
    first: dict[Any, int] = {}
    return [first.setdefault(group.tasks if shared else group.number, group.number) for group in groups]


def _parted(variables: list[LocalVariable], parts: int) -> list[list[LocalVariable]]:
    """Neighbors together, in at most `parts` lists of about the same number of values."""
    sizes = [variable.shape.num_elements() for variable in variables]
    total, done = sum(sizes) or 1, 0
    lists: dict[int, list[LocalVariable]] = {}
    for variable, size in zip(variables, sizes, strict=True):
        lists.setdefault(min(parts - 1, (done + size // 2) * parts // total), []).append(variable)
        done += size
    return [members for members in lists.values() if members]


def _one_of(vectors: list[Any], first: Any, dtype: tf.DType) -> Any:
    """The mean where there is one, else the first group's."""
    if dtype.is_floating:
        return np.mean(vectors, axis=0, dtype=np.float64).astype(vectors[0].dtype)
    return vectors[0] if first is None else first
