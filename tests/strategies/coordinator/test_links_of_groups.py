"""A group with a link that is cut is left out until the link is back, and the others train on."""

import contextlib
import threading
import time
from types import SimpleNamespace

import pytest
import tensorflow as tf

from tfdist.cluster import Task
from tfdist.errors import WorkersGoneError
from tfdist.strategies.coordinator.calls.backups import Backups
from tfdist.strategies.coordinator.calls.execution import State
from tfdist.strategies.coordinator.calls.executions import Executions
from tfdist.strategies.coordinator.members import cut_links
from tfdist.strategies.coordinator.members.call_gate import CallGate
from tfdist.strategies.coordinator.members.cut_links import CutLinks
from tfdist.strategies.coordinator.members.group_answers import GroupAnswers
from tfdist.strategies.coordinator.members.membership import Membership
from tfdist.strategies.coordinator.members.recovery import Recovery

WORKERS = tuple(Task("worker", index, host=f"w{index}", port=1) for index in range(3))
PS = tuple(Task("ps", index, host=f"p{index}", port=1) for index in range(2))
GROUPS = [SimpleNamespace(number=0, tasks=(0,), devices=("a",)), SimpleNamespace(number=1, tasks=(1, 2), devices=("b",))]


def error_of(*tasks, kind=tf.errors.UnavailableError):
    """An error as TensorFlow raises it for a call that these tasks have passed on."""
    lines = [f"Additional GRPC error information from remote target /job:{t.job}/replica:0/task:{t.index} while" for t in tasks]
    return kind(None, None, "\n".join(["recvmsg:Connection timed out", *lines]))


class Cluster:
    """Stands for the tasks: which answer this one, which have been restarted, and which links are cut."""

    def __init__(self):
        self.answers, self.restarted, self.cut = {*WORKERS, *PS}, set(), []
        self.membership = Membership(GROUPS)
        self.links = CutLinks(GROUPS, WORKERS, PS, self.membership)

    def value_on(self, task):
        if task in self.restarted:
            raise tf.errors.AbortedError(None, None, "Unable to find a context_id")
        return task


@pytest.fixture
def cluster(monkeypatch):
    cluster = Cluster()
    monkeypatch.setattr(cut_links, "answering", lambda tasks, deadline: cluster.answers.intersection(tasks))
    monkeypatch.setattr(cut_links, "_value_on", cluster.value_on)
    monkeypatch.setattr(cut_links, "_reaches", lambda worker, value: {worker, value} not in cluster.cut)
    return cluster


@pytest.mark.parametrize("other", [PS[1], WORKERS[1]])
def test_a_group_that_does_not_reach_what_it_needs_is_left_out_and_named_until_it_does(cluster, other, monkeypatch, caplog):
    cluster.cut = [{WORKERS[2], other}]
    assert cluster.links.leave_out(error_of(other, WORKERS[2]), "b")
    assert cluster.links.groups == {1} and cluster.membership.live == {0}
    both = [f"{task.name} ({task.address})" for task in (*WORKERS, *PS) if task in (other, WORKERS[2])]
    sentence = f"the link between {' and '.join(both)} is cut, although they answer this task"
    assert cluster.links.sentence() == sentence
    assert f"{sentence}; worker group 1 is left out until it is back" in caplog.text
    waits = []

    def sleep(seconds):
        waits.append(seconds)
        if len(waits) == 3:
            cluster.cut = []

    monkeypatch.setattr(cut_links.time, "sleep", sleep)
    cluster.links.wait("b", lambda: False)
    assert len(waits) == 3 and not cluster.links.groups and not cluster.links.sentence()


@pytest.mark.parametrize("what", ["ps gone", "worker gone", "ps restarted", "worker restarted", "another error", "one task"])
def test_what_is_not_a_cut_link_is_for_others(cluster, what):
    gone = {"ps": PS[0], "worker": WORKERS[0]}.get(what.split()[0])
    cluster.answers -= {gone} if "gone" in what else set()
    cluster.restarted = {gone} if "restarted" in what else set()
    error = error_of(PS[0], WORKERS[0])
    if what == "another error":
        error = error_of(PS[0], WORKERS[0], kind=tf.errors.InternalError)
    elif what == "one task":
        error = error_of(WORKERS[0], WORKERS[1])  # The other one is of another group.
    assert not cluster.links.leave_out(error, "a")
    assert not cluster.links.groups and cluster.membership.live == {0, 1}


@pytest.mark.parametrize("end", ["nobody needs it", "worker gone", "worker restarted", "ps restarted"])
def test_nobody_waits_for_a_link_of_a_group_that_is_gone(cluster, end, monkeypatch):
    monkeypatch.setattr(cut_links.time, "sleep", lambda seconds: pytest.fail("waits"))
    cluster.cut = [{WORKERS[0], PS[0]}]
    assert cluster.links.leave_out(error_of(PS[0], WORKERS[0]), "a")
    cluster.answers -= {WORKERS[0]} if "gone" in end else set()
    cluster.restarted = {"worker restarted": {WORKERS[0]}, "ps restarted": {PS[0]}}.get(end, set())
    cluster.links.wait("a", lambda: end == "nobody needs it")
    assert not cluster.links.groups


def test_an_error_that_comes_again_and_again_although_the_link_is_there_is_for_others(cluster, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(cut_links.time, "monotonic", lambda: now[0])

    def leaves_out():
        if cluster.links.leave_out(error_of(PS[0], WORKERS[0]), "a"):
            cluster.links.wait("a", lambda: False)
            return True
        return False

    assert [leaves_out() for _ in range(4)] == [True, True, True, False]
    now[0] += cut_links.PASSING_SECONDS
    assert leaves_out()


@pytest.fixture
def hanging(cluster, monkeypatch):
    """Values hang over links that are cut, until `set`."""
    released = threading.Event()

    def reaches(worker, value):
        return {worker, value} not in cluster.cut or released.wait(60)

    monkeypatch.setattr(cut_links, "_reaches", reaches)
    yield released
    released.set()


def until(is_over):
    latest = time.monotonic() + 30
    while not is_over():
        assert time.monotonic() < latest
        time.sleep(0.01)


def test_a_group_whose_call_hangs_over_a_link_is_left_out_before_the_call_fails_and_until_values_pass(cluster, hanging, caplog):
    cluster.cut = [{WORKERS[2], PS[1]}]

    def is_left_out():
        cluster.links.look(1, seconds=0.2)
        return cluster.links.groups == {1}

    until(is_left_out)
    assert cluster.membership.live == {0}
    assert "the link between worker:2 (w2:1) and ps:1 (p1:1) is cut, although they answer this task" in caplog.text
    cluster.links.look(1, seconds=0.2)
    assert cluster.links.leave_out(error_of(PS[1], WORKERS[2]), "b")  # Now the call fails, too.
    assert caplog.text.count("is cut, although") == 1
    hanging.set()
    until(lambda: not cluster.links.groups)


def test_a_link_that_is_back_just_when_its_group_is_left_out_keeps_it_out_no_longer(cluster, hanging):
    cluster.cut = [{WORKERS[2], PS[1]}]

    def comes_back(owner):
        hanging.set()
        until(lambda: cluster.links._probes[1].is_over)

    cluster.membership.when_lost = comes_back

    def is_left_out():
        cluster.links.look(1, seconds=0.2)
        return cluster.membership.live == {0}

    until(is_left_out)
    until(lambda: not cluster.links.groups)


def test_the_only_group_with_a_link_that_is_cut_is_waited_for_until_the_lost_timeout_from_its_first_silence(
    cluster, hanging, monkeypatch, caplog
):
    """Its call would fail when TCP gives the link up, after twice as long, and its group would have as long again."""
    membership, moment = Membership(GROUPS[:1]), time.monotonic
    links = CutLinks(GROUPS[:1], WORKERS, PS, membership)
    executions = Executions(None, GroupAnswers(GROUPS[:1], WORKERS, membership, links), membership, CallGate())
    monkeypatch.setattr("tfdist.strategies.coordinator.calls.executions.schedule_on_coordinator", lambda *_: None)
    monkeypatch.setattr("tfdist.strategies.coordinator.calls.executions.POLL_SECONDS", 0.01)
    monkeypatch.setattr("tfdist.strategies.coordinator.members.group_answers.answering", lambda tasks, *_: set(tasks))
    execution = executions.schedule(lambda group: None, "fit")
    execution.running[0], execution.state = executions._clock() - 20.0, State.RUNNING
    backups, cluster.cut = Backups(executions, executions._answers, membership, 60.0), [{WORKERS[0], PS[1]}]
    backups.back_up()  # It asks.
    monkeypatch.setattr(cut_links.time, "monotonic", lambda: moment() + 31.0)

    def is_found():
        backups.back_up()
        return links.groups == {0}

    until(is_found)
    assert "the link between worker:0 (w0:1) and ps:1 (p1:1) is cut" in caplog.text and "training waits until" in caplog.text
    assert membership.live == {0} and not executions.wait_for("fit", 0.2)  # There is time left.
    monkeypatch.setattr(cut_links.time, "monotonic", lambda: moment() + 61.0)
    monkeypatch.setattr(executions, "cancel", lambda: None)
    with pytest.raises(WorkersGoneError, match=r"no worker group has been complete for 60 s, the link between worker:0"):
        executions.wait_for("fit", 5.0)


@pytest.mark.parametrize("why", ["values pass", "it is busy", "ps stopped"])
def test_a_call_that_takes_long_for_another_reason_goes_on(cluster, hanging, why):
    cluster.cut = [] if why == "values pass" else [{WORKERS[0], PS[0]}]
    cluster.cut += [{WORKERS[0]}] if why == "it is busy" else []  # It does not even get its own value.
    cluster.answers -= {PS[0]} if why == "ps stopped" else set()
    for _ in range(20):
        cluster.links.look(0, seconds=0.5)
        time.sleep(0.05)
    assert not cluster.links.groups and cluster.membership.live == {0, 1}


def test_the_link_to_a_ps_that_was_lost_is_not_taken_for_one_that_is_cut():
    recovery, events = Recovery.__new__(Recovery), []
    recovery._should_preemption_thread_run = True
    recovery.servers = SimpleNamespace(wait_if_lost=lambda error: events.append("waits for the ps") or True)
    recovery.links = SimpleNamespace(leave_out=lambda error, device: pytest.fail("the link is not cut"))
    recovery._is_worker_lost = lambda error, device: False
    with contextlib.ExitStack() as stack:
        stack.enter_context(recovery.wait_on_failure(lambda error: None, lambda: events.append("given back"), None, "a"))
        raise error_of(PS[0], WORKERS[0])
    assert events == ["waits for the ps", "given back"]


def test_the_call_goes_to_another_group_while_this_one_waits():
    recovery, events = Recovery.__new__(Recovery), []
    recovery._should_preemption_thread_run = True
    recovery.links = SimpleNamespace(
        leave_out=lambda error, device: events.append("left out") or True, wait=lambda device, is_over: events.append("waits")
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(recovery.wait_on_failure(lambda error: None, lambda: events.append("given back"), None, "a"))
        raise error_of(PS[0], WORKERS[0])
    assert events == ["left out", "given back", "waits"]
