"""Executions have owners and states: nobody takes the results of others, and what is cancelled does not run."""

import threading
from types import SimpleNamespace

import pytest

from tfdist.cluster import Task
from tfdist.errors import ServersGoneError, WorkersGoneError
from tfdist.strategies.coordinator.calls import executions as module
from tfdist.strategies.coordinator.calls.backups import Backups
from tfdist.strategies.coordinator.calls.execution import State
from tfdist.strategies.coordinator.calls.executions import Executions
from tfdist.strategies.coordinator.members import group_answers
from tfdist.strategies.coordinator.members.call_gate import CallGate
from tfdist.strategies.coordinator.members.group_answers import GroupAnswers
from tfdist.strategies.coordinator.members.membership import Membership

PS = 9


class Coordinator:
    """Stands for TensorFlow's coordinator: keeps scheduled functions until `call` calls one as a group would."""

    def __init__(self):
        self.strategy = SimpleNamespace(worker_groups=[SimpleNamespace(number=number, tasks=(number,)) for number in range(2)])
        self.queue = []
        self.group = 0  # The group that calls the next function.
        self.clock = 0.0
        self.disconnected = []
        self.answers = {0, 1, PS}  # The tasks that answer.
        self.looked = []  # The groups whose links are looked at.
        look = lambda group, seconds: self.looked.append((group, seconds))  # noqa: E731
        self.links = SimpleNamespace(groups=frozenset(), seconds_cut=float, sentence=str, look=look)

    def call(self, number, group=0):
        """Calls a scheduled function on a group. An error goes to the function, as from a queue reader."""
        self.group = group
        try:
            self.queue[number]()
        except Exception as error:
            self.queue[number].fail(error)


@pytest.fixture
def coordinator(monkeypatch):
    coordinator = Coordinator()
    monkeypatch.setattr(module, "schedule_on_coordinator", lambda coordinator, call: coordinator.queue.append(call))
    monkeypatch.setattr(module, "dispatch_context", lambda: SimpleNamespace(worker_index=coordinator.group))
    monkeypatch.setattr(module.chief_device, "fetched", lambda value: value)
    monkeypatch.setattr(
        group_answers, "answering", lambda tasks, *_, **__: {task for task in tasks if task.index in coordinator.answers}
    )
    monkeypatch.setattr(group_answers, "disconnect", lambda task: coordinator.disconnected.append(task.index))
    monkeypatch.setattr(module, "POLL_SECONDS", 0.01)
    return coordinator


@pytest.fixture
def executions(coordinator):
    membership = Membership(coordinator.strategy.worker_groups)
    workers = tuple(Task("worker", index, host=f"w{index}", port=1) for index in range(2))
    servers = (Task("ps", PS, host="p", port=1),)
    answers = GroupAnswers(coordinator.strategy.worker_groups, workers, membership, coordinator.links, servers)
    executions = Executions(coordinator, answers, membership, CallGate(), clock=lambda: coordinator.clock)
    coordinator.backups = Backups(executions, answers, membership, 60.0)
    return executions


def test_an_owner_takes_only_its_own_results(coordinator, executions):
    fit, other = object(), object()
    first = executions.schedule(lambda group: 1, fit)
    second = executions.schedule(lambda group: 2, other)
    alone = executions.schedule(lambda group: 3)
    for number in range(3):
        coordinator.call(number)
    assert executions.result_of(alone) == 3
    assert executions.pending(fit) == executions.pending(other) == 1 and not len(executions)
    assert executions.wait_for_any(other) is second and executions.wait_for_any(other) is None
    assert executions.wait_for_any(fit) is first and first.result == 1 and first.state is State.FINISHED


def test_waiting_until_nothing_is_in_flight_leaves_results_with_their_owners(coordinator, executions):
    fit = object()
    scheduled = [executions.schedule(lambda group, number=number: number, fit) for number in range(3)]
    for number in range(3):
        coordinator.call(number)
    executions.wait_until_idle()
    assert executions.pending(fit) == 3
    assert [executions.wait_for_any(fit) for _ in range(4)] == [*scheduled, None]


def test_it_is_told_when_nothing_more_is_scheduled_before_all_in_flight_has_finished(coordinator, executions):
    told = []
    executions.when_draining = lambda: told.append(len(executions))
    executions.drain()
    executions.wait_until_idle()
    assert told == []
    executions.schedule(lambda group: None, "fit")
    coordinator.call(0)
    executions.wait_until_idle()
    assert told == [1]


def fails(group):
    raise ValueError("of a step")


def test_what_a_group_does_not_start_in_time_is_cancelled_and_does_not_run_later(coordinator, executions, monkeypatch):
    for_group, ran = [], []
    monkeypatch.setattr(module, "schedule_for_reader", lambda _, group, function: for_group.append((group, function)))
    late = executions.schedule(ran.append, group=1)
    assert executions.result_of(late, start_seconds=0.01) is None and not len(executions)
    (group, function) = for_group.pop()
    function()
    assert group == 1 and not ran and not coordinator.queue
    in_time = executions.schedule(lambda group: "done", group=1)
    for_group.pop()[1]()
    assert executions.result_of(in_time, start_seconds=0.01) == "done"


def test_what_is_cancelled_after_an_error_does_not_run_later(coordinator, executions):
    ran = []
    executions.schedule(fails, "fit")
    late = executions.schedule(lambda group: ran.append("late"), "fit")
    coordinator.call(0)
    with pytest.raises(ValueError, match="of a step"):
        executions.wait_until_idle()
    assert late.state is State.CANCELLED
    coordinator.call(1)
    assert ran == [] and not executions.pending("fit")


def test_what_has_finished_before_an_error_stays_with_its_owner(coordinator, executions):
    """Its steps are in the weights: without its result, counters of updates would lack them."""
    first, second = (executions.schedule(lambda group: 7, "fit") for _ in range(2))
    executions.schedule(lambda group: 1, "other")
    executions.schedule(fails, "fit")
    for number in (0, 2):
        coordinator.call(number)
    assert executions.wait_for_any("other") and executions._finished.keys() == {"fit"}
    for number in (1, 3):
        coordinator.call(number)
    with pytest.raises(ValueError, match="of a step"):
        executions.wait_until_idle()
    assert [executions.wait_for_any("fit") for _ in range(3)] == [first, second, None] and second.result == 7


def test_what_finishes_while_an_error_waits_for_it_stays_with_its_owner(coordinator, executions):
    runs, error = threading.Event(), threading.Event()
    slow = executions.schedule(lambda group: (runs.set(), error.wait(60), 7)[-1], "fit")
    thread = threading.Thread(target=coordinator.call, args=(0,))
    thread.start()
    assert runs.wait(10)
    executions.schedule(fails, "fit")
    coordinator.call(1, group=1)
    threading.Timer(0.2, error.set).start()
    with pytest.raises(ValueError, match="of a step"):
        executions.wait_until_idle()
    assert executions.wait_for_any("fit") is slow and slow.result == 7


def test_a_second_error_is_not_raised_in_the_next_fit(coordinator, executions):
    for _ in range(2):
        executions.schedule(fails, "fit")
    coordinator.call(0)
    coordinator.call(1)
    with pytest.raises(ValueError, match="of a step"):
        executions.wait_for_any("fit")
    again = executions.schedule(lambda group: 1, "fit")
    coordinator.call(2)
    assert executions.wait_for_any("fit") is again


def test_an_error_does_not_wait_for_a_group_that_does_not_answer(coordinator, executions, monkeypatch):
    stopped = executions.schedule(lambda group: 1, "fit")
    stopped.state, stopped.running = State.RUNNING, {1: 0.0}
    coordinator.answers = {0}
    executions.schedule(fails, "fit")
    coordinator.call(1)
    with pytest.raises(ValueError, match="of a step"):
        executions.wait_for_any("fit")
    assert executions._membership.live == set() and stopped.state is State.CANCELLED  # Group 0 is live with its next step.


def test_an_error_waits_for_what_live_groups_run(coordinator, executions):
    slow = executions.schedule(lambda group: 1, "fit")
    slow.state, slow.running = State.RUNNING, {1: 0.0}
    executions.schedule(fails, "fit")
    coordinator.call(1)
    ended = threading.Event()
    threading.Timer(0.2, lambda: (ended.set(), slow.running.clear())).start()
    with pytest.raises(ValueError, match="of a step"):
        executions.wait_for_any("fit")
    assert ended.is_set() and executions._membership.is_live(1)


def test_a_group_is_not_lost_because_the_main_thread_is_busy(coordinator, executions):
    coordinator.answers = set()
    executions.schedule(lambda group: 1, "fit")
    coordinator.call(0)
    coordinator.clock += 1e6  # A callback runs meanwhile.
    coordinator.backups.back_up()
    assert executions._membership.live == {0, 1} and len(coordinator.queue) == 1
    assert executions.wait_for_any("fit").result == 1


def running(executions):
    """Returns an execution that group 0 runs."""
    execution = executions.schedule(lambda group: group, "fit")
    execution.state, execution.running = State.RUNNING, {0: 0.0}
    return execution


def test_a_group_that_does_not_answer_is_lost_and_another_does_its_execution(coordinator, executions, caplog):
    execution = running(executions)
    coordinator.answers = {1, PS}
    coordinator.clock = module.ASK_SECONDS - 0.1
    coordinator.backups.back_up()
    assert executions._membership.live == {0, 1}
    coordinator.clock = module.ASK_SECONDS + 0.1
    coordinator.backups.back_up()
    assert executions._membership.live == {1} and execution.state is State.QUEUED
    assert coordinator.disconnected == [0]
    assert "no answer from worker:0 (w0:1): worker group 0 is left out" in caplog.text and "counts twice" in caplog.text
    coordinator.call(1, group=1)
    assert executions.wait_for_any("fit").group == 1
    coordinator.call(0)  # Nothing is left to do.
    assert execution.group == 1


def test_groups_that_stop_at_about_the_same_time_are_lost_together(coordinator, executions):
    for group, begin in ((0, 0.0), (1, 0.2)):
        execution = executions.schedule(lambda group: group, "fit")
        execution.state, execution.running = State.RUNNING, {group: begin}
    coordinator.answers, coordinator.clock = {PS}, module.ASK_SECONDS + 0.1
    coordinator.backups.back_up()
    assert executions._membership.live == set() and coordinator.disconnected == [0, 1]
    assert [execution.state for execution in executions.in_flight()] == [State.QUEUED] * 2


def test_a_group_that_does_not_answer_may_be_back_as_long_as_other_work_is_left(coordinator, executions):
    execution = running(executions)
    other = executions.schedule(lambda group: group, "fit")
    coordinator.answers, coordinator.clock = {1, PS}, 1.0
    coordinator.backups.back_up()
    assert executions._membership.live == {0, 1} and other.state is State.QUEUED
    coordinator.call(1, group=1)
    coordinator.backups.back_up()  # Now all wait for it.
    assert executions._membership.live == {1} and execution.state is State.QUEUED


def test_how_long_is_long_follows_what_executions_take(coordinator, executions):
    executions._durations.extend([3.0] * 5)
    execution = running(executions)
    for coordinator.clock, expected in ((5.9, []), (6.1, [execution])):
        assert executions.late() == expected


def test_a_group_that_is_slow_and_answers_is_not_lost(coordinator, executions):
    execution = running(executions)
    for coordinator.clock in (9.0, 1e6):
        assert not coordinator.looked  # Not yet after 9 s.
        coordinator.backups.back_up()
    assert executions._membership.live == {0, 1} and execution.state is State.RUNNING and len(coordinator.queue) == 1
    assert coordinator.looked == [(0, 30.0)]


def test_an_idle_group_that_does_not_answer_is_lost_without_a_backup(coordinator, executions):
    execution = running(executions)
    coordinator.answers = {PS}
    coordinator.backups.give_up_idle()
    assert executions._membership.live == {0} and coordinator.disconnected == [1]
    assert execution.running == {0: 0.0} and len(coordinator.queue) == 1


def test_a_chief_that_is_cut_off_itself_gives_up_no_group(coordinator, executions):
    execution = running(executions)
    coordinator.answers, coordinator.clock = set(), 1e6
    coordinator.backups.back_up()
    coordinator.backups.give_up_idle()
    assert executions._membership.live == {0, 1} and execution.running == {0: 0.0} and coordinator.disconnected == []


def test_a_ps_that_does_not_answer_ends_the_training_whatever_its_calls_raise(coordinator, executions):
    def check():
        raise ServersGoneError("no answer from ps:0")

    executions._watch = SimpleNamespace(check=check)
    for error in (None, ValueError("a call that has waited for it was ended")):
        execution = executions.schedule(lambda group: 1, "fit")
        if error:
            executions.fail(execution, error)
        with pytest.raises(ServersGoneError, match="ps:0"):
            executions.wait_for_any("fit")
        assert len(executions) == 0


def test_an_interrupt_between_an_event_and_what_follows_from_it_loses_nothing(coordinator, executions, monkeypatch):
    def interrupted(execution):
        monkeypatch.setattr(executions, "_take", take)
        raise KeyboardInterrupt

    take, scheduled = executions._take, [executions.schedule(lambda group: 1, owner) for owner in ("fit", "evaluate")]
    coordinator.call(0)
    monkeypatch.setattr(executions, "_take", interrupted)
    monkeypatch.setattr(module, "POLL_SECONDS", 60.0)
    with pytest.raises(KeyboardInterrupt):
        executions.wait_until_idle()
    coordinator.call(1)
    executions.wait_until_idle()
    assert [executions.wait_for_any(owner) for owner in ("fit", "evaluate")] == scheduled


def test_an_error_whose_event_an_interrupt_has_lost_is_raised_by_the_next_wait(coordinator, executions):
    execution = executions.schedule(lambda group: 1 / 0, "fit")
    coordinator.call(0)
    assert executions._events.get() is execution  # And lost.
    with pytest.raises(ZeroDivisionError):
        executions.wait_until_idle()


def test_an_execution_whose_scheduling_is_interrupted_is_not_in_flight(coordinator, executions, monkeypatch):
    def interrupted(coordinator_, call):
        coordinator.queue.append(call)
        raise KeyboardInterrupt

    called = []
    monkeypatch.setattr(module, "schedule_on_coordinator", interrupted)
    with pytest.raises(KeyboardInterrupt):
        executions.schedule(called.append, "fit")
    coordinator.call(0)
    assert len(executions) == 0 and not called


def test_two_live_groups_do_not_run_one_execution(coordinator, executions):
    execution = running(executions)
    coordinator.call(0, group=1)
    assert execution.running == {0: 0.0} and execution.state is State.RUNNING


def test_after_a_call_that_has_failed_a_group_counts_anew(coordinator, executions):
    """A ps was lost. The steps that were done before are made again, and must not count twice."""

    def fail(group):
        raise RuntimeError

    execution = executions.schedule(fail, "fit")
    with pytest.raises(RuntimeError):
        executions.run(execution, 0)
    execution.function = lambda group: 1
    executions.run(execution, 0)
    assert (execution.state, execution.counting) == (State.FINISHED, (0, 1))


def test_an_execution_is_in_flight_as_long_as_a_live_group_runs_it(coordinator, executions):
    execution = running(executions)  # Group 1 was lost, and has finished it during its backup on group 0.
    execution.state, execution.group = State.FINISHED, 1
    executions.fail(execution, None)
    ended = threading.Event()
    threading.Timer(0.2, lambda: (ended.set(), executions._membership.lose(0), executions.fail(execution, None))).start()
    executions.wait_until_idle()
    assert ended.is_set() and executions.wait_for_any("fit") is execution


def test_a_group_counts_anew_after_a_call_that_another_has_made_meanwhile(coordinator, executions):
    """Group 0 answers again, and has finished its call before the backup of it: group 1 must not count the same steps."""
    first = executions.schedule(lambda group: group, "fit")

    def run_meanwhile(group):
        executions.run(first, 0) if group else None
        return group

    first.function = run_meanwhile
    executions._membership.lose(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executions, "_is_running", lambda execution: False)  # Group 1 was lost while group 0 began.
        executions.run(first, 1)
    assert (first.group, first.order, first.counting) == (0, 1, (0, 0))
    later = [executions.schedule(lambda group: group, "fit") for _ in range(2)]
    for group, execution in enumerate(later):
        executions.run(execution, group)
    assert [(each.order, each.counting) for each in later] == [(2, (0, 0)), (3, (0, 1))]


def test_without_a_complete_group_the_workers_are_named(coordinator, executions):
    executions._lost_seconds = 0.1
    running(executions)
    coordinator.answers = set()
    with pytest.raises(WorkersGoneError, match=r"no answer from worker:0 \(w0:1\), worker:1 \(w1:1\); training"):
        executions.wait_for_any("fit")


def test_training_fails_if_no_group_runs_anything_although_workers_answer(coordinator, executions):
    executions.schedule(lambda group: 1, "fit")
    threading.Timer(0.1, lambda: setattr(coordinator, "clock", module.STALLED_SECONDS + 1)).start()
    with pytest.raises(WorkersGoneError, match=r"no worker group has run anything for 300 s, although workers answer"):
        executions.wait_for_any("fit")
