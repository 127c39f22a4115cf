"""`LocalReplicas`: the local replicas of all worker groups, as the chief manages them.

A facade. Each part has a file: groups that train (membership.py), variables in blocks (block_registry.py), weights
of pushes (push_weights.py), functions that groups run (synchronization_functions.py), how long groups wait for each other
(grace.py), collection of all progress (collector.py), and values on the chief (chief_values.py).
"""

import concurrent.futures
import contextlib
import functools
import logging
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfdist.strategies.coordinator.calls.backups import SILENT_SECONDS
from tfdist.strategies.coordinator.edits import Edits
from tfdist.strategies.coordinator.members.membership import Membership
from tfdist.strategies.hogwild.replicas import checkpoint_state, nonnegatives, slots_of_others
from tfdist.strategies.hogwild.replicas.block_registry import BlockRegistry
from tfdist.strategies.hogwild.replicas.chief_values import ChiefValues
from tfdist.strategies.hogwild.replicas.collector import Collector
from tfdist.strategies.hogwild.replicas.momentum_buffers import AVERAGE
from tfdist.strategies.hogwild.synchronization import rounds
from tfdist.strategies.hogwild.synchronization.global_parameters import ParameterBlock
from tfdist.strategies.hogwild.synchronization.local_variable import Kind, LocalVariable
from tfdist.strategies.hogwild.synchronization.outer_optimizers import OUTER_OPTIMIZERS
from tfdist.strategies.hogwild.synchronization.push_weights import PushWeights
from tfdist.strategies.hogwild.synchronization.synchronization_functions import SynchronizationFunctions, Task
from tfdist.strategies.hogwild.timing import network
from tfdist.strategies.hogwild.timing.grace import Grace
from tfdist.strategies.hogwild.timing.last_calls import LastCalls
from tfdist.strategies.hogwild.timing.pushes_left import PushesLeft
from tfdist.strategies.named_variable import NamedVariable
from tfdist.strategies.runtime import chief_device, interrupts

_MORE_THAN_ALL = 2**30

_log = logging.getLogger("tfdist")


class LocalReplicas:
    """Manages the local replicas of all worker groups.

    Attributes:
        outer_optimizer: changes the global parameters when groups push.
        registry: the blocks, and which variables the functions of groups use.
        blocks: all variables that functions of groups use, in blocks.
        owners: for each group the group whose local replica it trains.
        functions: what groups run to synchronize.
        chief: the values on the chief.
        weights: the weights of pushes.
        grace: how long each group waits for a round.
        pushes_left: how many groups can still push to a round.
        in_flight: returns the number of executions in flight.
        wait_until_idle: waits until no execution is in flight.
        count_steps: does so, and adds the steps to the counters.
        edits: lets callbacks compute weights from what they read.
    """

    def __init__(self, strategy: Any, membership: Membership) -> None:
        self._strategy = strategy
        options, groups = strategy.synchronization, strategy.worker_groups
        self.outer_optimizer = OUTER_OPTIMIZERS[str(options.outer)](options, len(groups))
        self.weights = PushWeights(len(groups), options.weights == "examples")
        self.in_flight: Callable[[], int] = lambda: 0
        self.wait_until_idle: Callable[[], None] = lambda: None
        self.count_steps: Callable[[], None] = lambda: None
        self.registry = BlockRegistry(self._make_block)
        self.blocks, self.owners = self.registry.blocks, membership.owners
        self.edits: Edits = strategy.edits
        self._uninitialized: list[ParameterBlock] = []
        self._membership = membership
        self._membership.when_lost = self._forget
        self.functions = SynchronizationFunctions(strategy, self.outer_optimizer)
        give_up = functools.partial(strategy.answers.give_up, seconds=SILENT_SECONDS)
        self._collector = Collector(self._locked_flush, membership.lose, self._complete_round, give_up)
        self.grace, self.pushes_left = Grace(options.grace), PushesLeft(len(groups))
        self._last_calls = LastCalls(strategy.executions.running_groups, lambda: membership.live_groups, self._finish_rounds)
        self._calls_train = False  # Those that were scheduled last.
        self._locks = [threading.RLock() for _ in groups]
        self._pulled: dict[tuple[int, ParameterBlock], tuple[int, int]] = {}  # See `_current`.
        self._used_by: dict[ParameterBlock, weakref.WeakSet[Any]] = {}  # See `use`.
        self._positions: weakref.WeakKeyDictionary[Any, checkpoint_state.Period] = weakref.WeakKeyDictionary()
        self.chief = ChiefValues(self)

    # Variables.

    def register(self, variables: Sequence[LocalVariable], kind: Kind | None = None, fragments: int = 1) -> None:
        """Puts variables that are in no block into blocks, and gives their values to the ps. See `BlockRegistry.register`."""
        with interrupts.held():  # A block without values on the ps would never get them.
            self._uninitialized += self.registry.register(variables, kind, fragments)
            while self._uninitialized:  # Also those of a call that Ctrl-C has ended, because it took long.
                block = self._uninitialized[0]
                block.initialize()
                if block.kind is Kind.SYNCHRONIZED and self.outer_optimizer.in_rounds:
                    self.functions.prepare_rounds(block)
                checkpoint_state.restore_outer(block)
                self._uninitialized.pop(0)

    def use(self, owner: Any, blocks: Iterable[ParameterBlock]) -> None:
        """Notes that `owner`, a model or an optimizer, uses these blocks. They are kept as long as an owner of them exists."""
        for block in blocks:
            self._used_by.setdefault(block, weakref.WeakSet()).add(owner)

    def release_unused(self) -> None:
        """Frees the blocks whose owners are all gone. Does nothing while executions are in flight."""
        unused = [block for block, owners in self._used_by.items() if not owners]
        if not unused or self.in_flight():
            return
        devices = {self._strategy.worker_groups[owner].devices[0] for owner in self.owners}
        for block in unused:
            remote = block.remote_variables(devices)
            self.chief.release(block)
            del self._used_by[block]
            self.functions.forget(block)
            for key in [key for key in list(self._pulled) if key[1] is block]:
                self._pulled.pop(key, None)
            for device, variables in remote.items():
                self._strategy.remote_garbage.free(device, functools.partial(_destroy, variables, device))

    def _make_block(self, variables: list[LocalVariable]) -> ParameterBlock:
        strategy, groups = self._strategy, len(self._strategy.worker_groups)
        is_float32 = variables[0].kind is Kind.SYNCHRONIZED and variables[0].dtype == tf.float32
        compressed = strategy.synchronization.compresses and is_float32 and not variables[0].is_nonnegative
        if compressed and strategy.compression_is_measured:
            elements = sum(variable.shape.num_elements() for variable in variables)
            compressed = network.affords(groups * elements * tf.float32.size, len(strategy.server_devices[0]))
        optimizer = self.outer_optimizer if variables[0].trainable else self.outer_optimizer.of_averages
        if variables[0].is_nonnegative:
            optimizer = nonnegatives.optimizer_of(self.outer_optimizer)
        block = ParameterBlock(variables, strategy.server_devices, optimizer, groups, compressed)
        block.retried = strategy.server_recovery.retried
        return block

    # Groups.

    def _forget(self, owner: int) -> None:
        """Gives up the progress of a local replica that is lost. No round waits for it any more, see rounds.py.

        Its optimizer slots stay: the loss may be that of a ps, or of a single call.
        """
        for block in self.blocks:
            if block.kind is Kind.SYNCHRONIZED or owner in self._membership.away:
                block.dirty.discard(owner)
        if self.outer_optimizer.in_rounds:
            # The thread that has noticed the loss must not wait for the ps.
            threading.Thread(target=self._leave_rounds, args=(owner,), name="tfdist-leave-rounds", daemon=True).start()

    def _leave_rounds(self, owner: int) -> None:
        for block in (block for block in self.blocks if block.kind is Kind.SYNCHRONIZED):
            if self._membership.is_live(owner):
                return  # It is back already.
            if block in self._uninitialized:
                continue  # No group has pushed it, and this thread must not trace what tells the ps.
            with _grace_time_instead():
                live = len(self._membership.live)
                self.functions.change_rounds(rounds.leave, block, self._rates_now(block.rates), [owner], live)

    def _finish_rounds(self, groups: Collection[int]) -> None:
        """Tells the ps that only these groups still make a call. See rounds.py."""
        pushing = {self.owners[group] for group in groups}
        for block in (block for block in self.blocks if block.kind is Kind.SYNCHRONIZED):
            with _grace_time_instead():
                self.functions.change_rounds(rounds.finish, block, self._rates_now(block.rates), pushing)

    def begin_calls(self, train: bool) -> None:
        """Notes that calls are scheduled, and whether they train."""
        self._last_calls.end()
        self._calls_train = train

    def drain(self) -> None:
        """Notes that no more calls are scheduled before those in flight are done: no group waits for a push of another one."""
        if self._calls_train and self.outer_optimizer.in_rounds:
            self._last_calls.begin()

    def train_alone(self, one: bool) -> None:
        """Lets one group train while the others wait, so that its progress counts in full, or lets all train."""
        if one != (self._membership.alone is not None):
            self.chief.synchronize_groups()
            self._membership.train_alone(one)

    @property
    def keeps_progress(self) -> bool:
        """Whether the group that trains now pushes nothing before the chief collects: it would lose a part of its progress.

        This is a group that trains alone and pushes parameters, toward which the global parameters go only a part of the way,
        or whose server group takes the mean with others, for which nobody trains.
        """
        is_partial = self.outer_optimizer.pushes_parameters or len(self._strategy.server_devices) > 1
        return is_partial and self._membership.alone is not None

    # In the thread of a group, before it runs a function.

    def refresh(self, group: int, blocks: Sequence[ParameterBlock]) -> None:
        """Lets a group pull the blocks that are new to it: at its start, and after the chief has assigned variables."""
        owner = self.owners[group]
        with self._locks[owner]:
            self._membership.join(owner)
            device, has_slots = self._strategy.worker_groups[owner].devices[0], True
            for block in blocks:
                current, before = self._current(owner, block), self._pulled.get((owner, block))
                if before != current:
                    self.functions.call(Task.PULL_ANEW, block, owner, self.control(owner, block.rates))
                    if self._membership.replica(owner) and (before is None or before[1] != current[1]):
                        has_slots = (self._take_slots(block, owner, device) or before is None) and has_slots
                    checkpoint_state.assign_restored(block, owner, device)
                    block.dirty.discard(owner)
                    self._pulled[owner, block] = current
            if not has_slots:
                slots_of_others.warn(owner)
                for block in blocks:  # Momentum that is averaged does not fit moments that begin anew.
                    if slots_of_others.slots_in(block.variables, Kind.SYNCHRONIZED):
                        block.retried(functools.partial(slots_of_others.clear, block))
                        block.generation += 1
                        self.functions.call(Task.PULL_ANEW, block, owner, self.control(owner, block.rates))
                        self._pulled[owner, block] = self._current(owner, block)

    def _take_slots(self, block: ParameterBlock, owner: int, device: str) -> bool:
        """Gives a replica that was lost the slots, or counters, of another. Returns whether it has the slots that it needs."""
        if block.kind is Kind.SEED:
            slots_of_others.move_seeds(block.variables, device, len(self.owners) * self._membership.replica(owner))
        counters = block.variables if block.kind is Kind.COUNTER else ()
        if not (slots := counters or slots_of_others.slots_in(block.variables, Kind.OWN)):
            return True
        others = [self._strategy.worker_groups[other].devices[0] for other in self.current_owners(block) if other != owner]
        return slots_of_others.take(slots, device, dict.fromkeys(others)) or bool(counters)

    def have_pulled(self, block: ParameterBlock) -> list[int]:
        """Returns the groups that have had the parameters of a block since the chief had all, also those that are lost now.

        Empty if none has trained since: what the chief has is exact, and not rounded.
        """
        pulled = list(self._pulled.items()) if block.has_progress else []
        return [owner for (owner, each), (generation, _) in pulled if each is block and generation >= block.of_values]

    def _current(self, owner: int, block: ParameterBlock) -> tuple[int, int]:
        """Returns the generation of the values that a replica has to start from, and when it was last lost.

        What groups do not share, such as optimizer slots, is lost only with their workers.
        """
        is_shared = block.kind is Kind.SYNCHRONIZED
        return block.generation, self._membership.term(owner) if is_shared else self._membership.replica(owner)

    def position_of(self, model: Any) -> checkpoint_state.Period:
        """Returns how far each group is with a model."""
        groups = len(self.owners)
        return self._positions.setdefault(model, checkpoint_state.Period([0] * groups, [0] * groups))

    def control(self, group: int, rates: tuple[float, float], in_round: int | None = None, begins: bool = False) -> Any:
        """Returns `control_numbers` as a tensor on the chief."""
        return chief_device.constant(self.control_numbers(group, rates, in_round=in_round, begins=begins), tf.float64)

    def control_numbers(
        self,
        group: int,
        rates: tuple[float, float],
        step: int = 0,
        in_round: int | None = None,
        delay: int = 0,
        begins: bool = False,
    ) -> list[float]:
        """Returns the numbers of a group's `Control`.

        Args:
            group: number of the group.
            rates: outer learning rate and outer momentum.
            step: number of the first step, counted over all groups.
            in_round: number of groups that complete a round; None for all that train.
            delay: updates between push and pull.
            begins: whether all groups begin an epoch.
        """
        owner = self.owners[group]
        servers_of = self._strategy.servers_of
        beside = [other for other in self._membership.training(owner) if servers_of(other) == servers_of(owner)]
        live = len(beside) if in_round is None else in_round
        if in_round is None and self.outer_optimizer.in_rounds:
            live = min(live, self.pushes_left.pushing(group))
        numbers = [owner, self.weights.weight(owner, beside), live, step, *self._rates_now(rates)]
        return [*numbers, self.grace.seconds(owner), delay, begins]

    def _rates_now(self, rates: tuple[float, float]) -> tuple[float, float]:
        """Returns outer rates with which the progress of a group that trains alone counts in full, as in one process."""
        return AVERAGE if self._membership.alone is not None else rates

    def _complete_round(self, block: ParameterBlock) -> None:
        rates = self._rates_now(block.rates)
        # In a thread of its own, which traces nothing: `export` reads variables while it traces.
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            block.retried(lambda: pool.submit(self.functions.change_rounds, rounds.settle, block, rates).result())

    def synchronize_now(self, block: ParameterBlock, group: int, begins: bool) -> None:
        """Synchronizes a block of a group, in a call of its own, and waits for the round. `begins`: see `control_numbers`."""
        self.weights.count_push(self.owners[group])
        self.functions.call(Task.SYNCHRONIZE, block, group, self.control(group, block.rates, begins=begins))

    def flush(self, block: ParameterBlock, group: int) -> Any:
        """Pushes all progress of a group, whose local replica then starts anew. Does not complete a round.

        Returns:
            The local replica, [size], if the block keeps no progress on the ps, else a scalar.
        """
        self.weights.count_push(self.owners[group])
        in_round = _MORE_THAN_ALL if self.outer_optimizer.in_rounds else None
        return self.functions.call(Task.FLUSH, block, group, self.control(group, block.rates, in_round=in_round))

    def _locked_flush(self, block: ParameterBlock, group: int, is_over: Callable[[], bool]) -> Any:
        with self._strategy.call_gate.call(), self._locks[group]:  # A late answer must not mix with a pull, or a call after it.
            return None if is_over() else self.flush(block, group)

    # On the chief.

    def assigning(self, variable: LocalVariable) -> contextlib.AbstractContextManager[None]:
        """See `ChiefValues.assigning`."""
        if variable.kind is Kind.COUNTER:
            self.count_steps()  # Those in flight would be added to the new value, as to that of a file.
        return self.chief.assigning(variable)

    def collect(
        self,
        blocks: Sequence[ParameterBlock],
        meanwhile: Callable[[], None] = lambda: None,
        others: Mapping[ParameterBlock, Collection[int]] | None = None,
    ) -> dict[ParameterBlock, dict[int, Any]]:
        """See `Collector.collect`."""
        for block in blocks:
            block.dirty -= self._membership.away
        alone = self._membership.alone
        server_group = None if alone is None else self._strategy.servers_of(alone)
        return self._collector.collect(blocks, server_group, meanwhile, others)

    def current_owners(self, block: ParameterBlock) -> list[int]:
        """Returns the groups with a current local replica of a block that is not synchronized."""
        there = (owner for owner in self.owners if owner not in self._membership.away)
        return [owner for owner in there if self._pulled.get((owner, block)) == self._current(owner, block)]


@contextlib.contextmanager
def _grace_time_instead() -> Iterator[None]:
    """Surrounds what tells the ps that nobody needs to wait. If a ps does not hear it, groups wait for the grace time."""
    try:
        yield
    except tf.errors.OpError as error:
        _log.debug("a ps was not told who trains: %s", error)


def _destroy(variables: Iterable[NamedVariable], device: str) -> None:
    def destroy() -> None:
        for variable in variables:
            variable.destroy(device)

    tf.function(destroy, autograph=False)()
