"""Executions: calls of functions on worker groups, from the moment when they are scheduled until the chief has their results.

Every execution has an owner, such as an epoch, and only its owner takes its result: a `predict` inside a callback of `fit`
waits for its own. Every wait ends: with a result, with the error of a function, or because no worker group answers.
"""

import logging
import math
import queue
import statistics
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.errors import ServersGoneError, WorkersGoneError
from tfdist.strategies.coordinator.calls.execution import Execution, State
from tfdist.strategies.coordinator.calls.tracing import tracing_lock
from tfdist.strategies.coordinator.members.call_gate import CallGate
from tfdist.strategies.coordinator.members.group_answers import GroupAnswers
from tfdist.strategies.coordinator.members.membership import Membership
from tfdist.strategies.coordinator.members.queue_readers import GroupCall
from tfdist.strategies.coordinator.members.server_watch import ServerWatch
from tfdist.strategies.private_api.coordinator import dispatch_context, schedule_for_reader, schedule_on_coordinator
from tfdist.strategies.runtime import chief_device
from tfdist.strategies.runtime.deadline import Deadline
from tfdist.strategies.runtime.lost_timeout import DEFAULT_SECONDS

STALLED_SECONDS = 300.0
"""After this long in which no worker group has run anything training fails, although workers answer."""

IN_FLIGHT_PER_GROUP = 2
"""One execution that a group runs and one that waits for it. More would delay the end of training when it is stopped."""

ASK_SECONDS = 0.5
ASK_TIMES = 2.0
"""A worker is asked for an answer if an execution takes longer than ASK_SECONDS and than ASK_TIMES the median of the last ones.
Without an answer its group is lost, and the execution gets a backup on another group.

A worker that is stopped or cut off does not answer, not even with an error. A worker that is only slower is still useful.
"""

LONGEST_SECONDS = 10.0
LONGEST_TIMES = 10.0
"""After an error others may take LONGEST_SECONDS, or LONGEST_TIMES the median of the last ones. Then nobody waits."""

POLL_SECONDS = 5.0
"""How often the chief asks for answers while it waits."""

_log = logging.getLogger("tfdist")


class Executions:
    """The executions in flight of one strategy.

    An execution is in flight from `schedule` until the chief has its result and no live group runs it any more. The thread of
    the group notes that it has finished, so that a group is idle although the chief's main thread is busy, in a callback.

    A group that does not answer is lost, and another group does its execution too (see `Backups`).

    Args:
        coordinator: TensorFlow's ClusterCoordinator.
        answers: asks groups for an answer.
        membership: the groups that are live. Executions note which join and which are lost.
        gate: what every call to a worker passes.
        watch: asks the ps for an answer; None for none.
        lost_seconds: after this long without a complete worker group training fails.
        clock: returns the current moment in seconds. The default does not count the time of tracing.

    Attributes:
        is_exact: whether one execution is in flight at a time, so that callbacks have seen a step before the next one starts.
        taken: how many results of executions their owners have taken.
        when_draining: is called when nothing more will be scheduled before all that is in flight has finished.
    """

    def __init__(
        self,
        coordinator: "tf.distribute.coordinator.ClusterCoordinator",
        answers: GroupAnswers,
        membership: Membership,
        gate: CallGate,
        watch: ServerWatch | None = None,
        lost_seconds: float = DEFAULT_SECONDS,
        clock: Callable[[], float] = tracing_lock.now,
    ) -> None:
        self._coordinator = coordinator
        self._answers = answers
        self._membership = membership
        self._gate = gate
        self._watch = watch
        self._lost_seconds = lost_seconds
        self._clock = clock
        self._lock = threading.RLock()  # Of the states of executions.
        self._events: queue.SimpleQueue[Execution | None] = queue.SimpleQueue()  # Whose state has changed; None: a ps is gone.
        self._may_have_missed = False  # Whether Ctrl-C may have come between an event and what follows from it.
        self._in_flight: set[Execution] = set()
        self._finished: dict[Any, deque[Execution]] = {}  # Those that their owners have not taken, by owner.
        self._durations: deque[float] = deque(maxlen=99)  # Of the last calls, in seconds.
        self._order = 0  # How many have finished.
        self.is_exact = len(membership.owners) == 1
        self.taken = 0
        self.when_draining: Callable[[], None] = lambda: None
        if watch is not None:
            watch.when_gone = lambda: self._events.put(None)

    def __len__(self) -> int:
        return len(self._in_flight)

    @property
    def limit(self) -> int:
        """How many executions should be in flight at most. It follows the groups that train."""
        return 1 if self.is_exact else IN_FLIGHT_PER_GROUP * max(1, len(self._membership.live_groups))

    def pending(self, owner: Any) -> int:
        """Returns how many executions of `owner` are in flight, or finished and not taken yet."""
        return sum(execution.owner is owner for execution in self._in_flight) + len(self._finished.get(owner, ()))

    def schedule(self, function: Callable[[int], Any], owner: Any = None, group: int | None = None) -> Execution:
        """Makes the next free group call `function`; another group if that one is lost.

        Args:
            function: takes the number of the group and returns nested tensors. Called in the thread of the group.
            owner: hashable; see `Execution`.
            group: the number of the group that takes it, unless that group fails. Pass `start_seconds` to `result_of`, because
                the group may be gone already.
        """
        execution = Execution(function, owner)
        try:
            self._in_flight.add(execution)
            self._schedule(execution, group)
        except BaseException:  # Ctrl-C may come at any moment.
            self._cancel_queued(execution)
            raise
        return execution

    def _schedule(self, execution: Execution, group: int | None = None) -> None:
        call = GroupCall(
            lambda: self.run(execution, dispatch_context().worker_index), lambda error: self.fail(execution, error)
        )
        if group is None:
            schedule_on_coordinator(self._coordinator, call)
        else:
            schedule_for_reader(self._coordinator, group, call)

    def _cancel_queued(self, execution: Execution) -> bool:
        """Cancels an execution unless a group runs it or has finished it, and returns whether it did."""
        with self._lock:
            if is_queued := execution.state is State.QUEUED:
                execution.state = State.CANCELLED
                self._in_flight.discard(execution)
        return is_queued

    # In the thread of a group.

    def run(self, execution: Execution, group: int) -> None:
        """Runs an execution that has been scheduled, unless it is done or another group runs it."""
        with self._gate.call():
            with self._lock:
                if execution.state in (State.FINISHED, State.CANCELLED) or self._is_running(execution):
                    return
                started = self._clock()
                execution.running[group], execution.state = started, State.RUNNING
            self._membership.join(group)
            try:
                # Copied to the chief, where the result stays if the worker is gone.
                result = tf.nest.map_structure(chief_device.fetched, execution.function(group), expand_composites=True)
            except BaseException:
                self._membership.fail(group)
                with self._lock:
                    del execution.running[group]
                    if execution.state is State.RUNNING and not execution.running:
                        execution.state = State.QUEUED
                self._events.put(execution)
                raise
            self._membership.end(group)
            with self._lock:
                del execution.running[group]
                seconds = self._clock() - started
                self._durations.append(seconds)
                if execution.state in (State.QUEUED, State.RUNNING):
                    self._order += 1
                    execution.state, execution.group, execution.result = State.FINISHED, group, result
                    execution.seconds, execution.order = seconds, self._order
                    execution.counting = self._membership.counting(group)
                else:  # Another group has finished it before: its metrics have counted these steps.
                    self._membership.count_anew(group)
            self._events.put(execution)

    def fail(self, execution: Execution, error: Exception) -> None:
        """Notes the error of a function, for the chief's next wait."""
        execution.error = error
        self._events.put(execution)

    def _is_running(self, execution: Execution) -> bool:
        return any(map(self._membership.is_live, list(execution.running)))

    # In the chief's main thread.

    def wait_for_any(self, owner: Any) -> Execution | None:
        """Waits until one more execution of `owner` has finished and returns it. Returns None if none is pending.

        Raises:
            WorkersGoneError: if no worker group has been complete for `lost_seconds`, or none has run anything for
                `STALLED_SECONDS`.
            ServersGoneError: if a ps has not answered for as long.
            Exception: what a function raised on a worker.
        """
        self.await_any(owner)
        finished = self._finished.get(owner)
        if not finished:
            return None
        execution = finished.popleft()
        self.taken += 1
        if not finished:
            del self._finished[owner]
        return execution

    def await_any(self, owner: Any) -> None:
        """Waits until `wait_for_any` returns at once, or raises as it does."""
        self._wait_until(lambda: owner in self._finished or not self.pending(owner))

    def wait_for(self, owner: Any, seconds: float) -> bool:
        """Waits until no execution of `owner` is in flight, or for that many seconds. Raises as `wait_for_any` does.

        Returns:
            Whether none is in flight. Their results stay with the owner.
        """
        self.drain()
        self._wait_until(lambda: not self._has_in_flight(owner), seconds)
        return not self._has_in_flight(owner)

    def _has_in_flight(self, owner: Any) -> bool:
        return any(execution.owner is owner for execution in self._in_flight)

    def _wait_until(self, is_over: Callable[[], bool], seconds: float = math.inf) -> None:
        """Gives finished executions to their owners until `is_over`, until nothing is in flight, or for that many seconds."""
        latest = Deadline.after(seconds)
        gone = Deadline.after(self._lost_seconds)
        stalled = Deadline.after(STALLED_SECONDS, self._clock)
        if self._may_have_missed:
            self._take_all()
        while self._in_flight and not is_over():
            try:
                event = self._events.get(timeout=min(gone.within(POLL_SECONDS).remaining(), latest.remaining()))
                if event is None:
                    self._check_servers()
                    continue
                self._take(event)
                stalled = Deadline.after(STALLED_SECONDS, self._clock)
                continue
            except queue.Empty:
                if latest.expired():
                    return
                self._take_all()
                self._check_servers()
                silent = self._answers.silent()
            except BaseException:
                self._may_have_missed = True
                raise
            if self._answers.is_any_complete(silent):
                gone = Deadline.after(self._lost_seconds)
            elif gone.expired() or self._answers.links.seconds_cut() >= self._lost_seconds:
                self._fail(
                    f"no worker group has been complete for {self._lost_seconds:.0f} s, "
                    f"{self._answers.why_incomplete(silent)}; training cannot go on without one"
                )
            if any(map(self._is_running, self._in_flight)):
                stalled = Deadline.after(STALLED_SECONDS, self._clock)
            elif stalled.expired():
                self._fail(
                    f"no worker group has run anything for {STALLED_SECONDS:.0f} s, although workers answer; start the job "
                    "again, it goes on from its last checkpoint if it has one"
                )

    def _take_all(self) -> None:
        """Gives all that have finished to their owners."""
        for execution in sorted(self._in_flight, key=lambda each: each.order):
            self._take(execution)
        self._may_have_missed = False

    def _take(self, execution: Execution) -> None:
        if execution not in self._in_flight:
            _log.debug("an execution that is over has changed", exc_info=execution.error)
        elif execution.error is not None and execution.state is not State.FINISHED:  # As its backup may have.
            self._check_servers()  # The error may be that of a call that has waited for it.
            self.cancel()
            raise execution.error
        elif self._is_over(execution):
            self._in_flight.remove(execution)
            if execution.owner is not None:
                self._finished.setdefault(execution.owner, deque()).append(execution)

    def _is_over(self, execution: Execution) -> bool:
        """Returns whether an execution has finished, and no live group still runs its backup or what it is the backup of."""
        with self._lock:
            return execution.state is State.FINISHED and not self._is_running(execution)

    def _check_servers(self) -> None:
        try:
            if self._watch is not None:
                self._watch.check()
        except ServersGoneError:
            self.cancel()
            raise

    def _fail(self, message: str) -> None:
        self.cancel()
        raise WorkersGoneError(message)

    def result_of(self, execution: Execution, start_seconds: float | None = None) -> Any:
        """Waits for `execution` and returns its result. Raises as `wait_for_any` does.

        Args:
            execution: the execution.
            start_seconds: how long a group may take to start it. Then it is cancelled, and the result is None.
        """
        if start_seconds is not None:
            self._wait_until(lambda: execution not in self._in_flight, start_seconds)
            if self._cancel_queued(execution):
                return None
        self._wait_until(lambda: execution not in self._in_flight)
        if execution.state is not State.FINISHED:
            raise RuntimeError("a step was cancelled after the error of another")
        return execution.result

    def drain(self) -> None:
        """Notes that nothing more will be scheduled before all that is in flight has finished."""
        if self._in_flight:
            self.when_draining()

    def wait_until_idle(self) -> None:
        """Waits until nothing is in flight. The results stay with their owners. Raises as `wait_for_any` does."""
        self.drain()
        self._wait_until(lambda: False)

    def cancel(self) -> None:
        """Cancels what has not finished, after an error: another `fit` starts clean. What has finished stays with its owners.

        Waits for what live groups run, as long as a group may take. Does not wait for groups that do not answer.
        """
        left = [execution for execution in self.in_flight() if not self._cancel_queued(execution)]
        median = statistics.median(list(self._durations) or [DEFAULT_SECONDS / LONGEST_TIMES])
        deadline = Deadline.after(max(LONGEST_SECONDS, LONGEST_TIMES * median), self._clock)
        while any(map(self._is_running, left)) and not deadline.expired():
            try:
                self._events.get(timeout=deadline.within(POLL_SECONDS).remaining())
            except queue.Empty:
                self._answers.give_up([group for each in left for group in list(each.running)], even_if_cut_off=True)
            left = [execution for execution in left if not self._cancel_queued(execution)]
        with self._lock:
            for execution in sorted(left, key=lambda each: each.order):
                if execution.state is not State.FINISHED:
                    execution.state = State.CANCELLED
                elif execution.owner is not None:  # Its steps are in the weights.
                    self._finished.setdefault(execution.owner, deque()).append(execution)
        self._in_flight.clear()

    # For `Backups`.

    def in_flight(self) -> list[Execution]:
        """Returns the executions in flight."""
        return list(self._in_flight)

    def running_groups(self) -> set[int] | None:
        """Returns the groups that run an execution; None if one waits for a group."""
        with self._lock:
            in_flight = self.in_flight()
            if any(execution.state is State.QUEUED for execution in in_flight):
                return None
            return {group for execution in in_flight for group in execution.running}

    def late(self, share: float = 1.0, seconds: float = ASK_SECONDS, times: float = ASK_TIMES) -> list[Execution]:
        """Returns the executions that take so long, on each group that runs them, that these are asked for an answer.

        Args:
            share: of that time, above 0.
            seconds: the least that counts as long.
            times: the least multiple of the usual duration that does.
        """
        latest = self._clock() - share * max(seconds, times * statistics.median(list(self._durations) or [0.0]))
        running = [(execution, list(execution.running.values())) for execution in self.in_flight()]
        return [execution for execution, since in running if since and max(since) < latest]

    def back_up(self, execution: Execution) -> None:
        """Schedules an execution again if all groups that run it are lost."""
        with self._lock:
            if needs_backup := execution.state is State.RUNNING and not self._is_running(execution):
                execution.state = State.QUEUED
        if needs_backup:
            self._schedule(execution)
        self._events.put(execution)  # It may be over.
