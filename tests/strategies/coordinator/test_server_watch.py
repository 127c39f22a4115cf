"""A ps that does not answer ends the training after the documented time, and is named."""

from types import SimpleNamespace

import pytest

from tfdist.cluster import Task
from tfdist.errors import ClusterError, ServersGoneError
from tfdist.strategies.coordinator.calls import executions as calls
from tfdist.strategies.coordinator.members import server_watch as module
from tfdist.strategies.coordinator.members.call_gate import CallGate
from tfdist.strategies.coordinator.members.membership import Membership
from tfdist.strategies.coordinator.members.probe import PROBE_SECONDS
from tfdist.strategies.coordinator.members.server_watch import ServerWatch
from tfdist.strategies.runtime.lost_timeout import VARIABLE, lost_seconds

PS = [Task("ps", index, host=f"p{index}", port=1) for index in range(2)]
WORKER = Task("worker", 0, host="w0", port=1)


class Cluster:
    """A watch whose clock, and the tasks that answer, a test sets."""

    def __init__(self, monkeypatch):
        self.now, self.answers, self.ended, self.limits = 0.0, {*PS, WORKER}, [], []
        monkeypatch.setattr(module, "answering", self.answering)
        monkeypatch.setattr(module, "Deadline", SimpleNamespace(after=lambda seconds: seconds))
        monkeypatch.setattr(module, "disconnect", lambda task: self.ended.append(task.name))
        self.watch = ServerWatch(PS, [WORKER], 60.0, lambda: self.now)

    def answering(self, tasks, seconds):
        self.limits.append(seconds)
        return {task for task in tasks if task in self.answers}

    def look(self, now, answers):
        self.now, self.answers = now, set(answers)
        self.watch.look()
        self.watch.check()


@pytest.fixture
def cluster(monkeypatch):
    return Cluster(monkeypatch)


def test_a_ps_that_is_silent_for_too_long_is_named_and_calls_that_wait_for_it_end(cluster, caplog):
    cluster.look(0.0, [*PS, WORKER])
    cluster.look(10.0, [PS[0], WORKER])
    cluster.look(69.0, [PS[0], WORKER])
    assert cluster.ended == []
    with pytest.raises(ServersGoneError, match=r"^no answer from ps:1 \(p1:1\) for 60 s; training cannot go on"):
        cluster.look(70.0, [PS[0], WORKER])
    assert cluster.ended == ["ps:1", "worker:0"] and "no answer from ps:1" in caplog.text


def test_a_ps_that_is_back_in_time_counts_from_zero_again(cluster):
    for now, answers in ((0.0, PS[:1]), (50.0, PS), (55.0, PS[:1]), (114.0, PS[:1])):
        cluster.look(now, answers)


def test_a_chief_without_an_answer_of_any_task_says_so(cluster):
    cluster.look(0.0, [])
    with pytest.raises(ServersGoneError, match=r"ps:0 \(p0:1\), ps:1 .*, nor from worker:0 \(w0:1\): this task is cut off, or"):
        cluster.look(60.0, [])


def test_ps_that_leave_after_the_end_of_the_program_are_not_missed(cluster, caplog):
    cluster.look(0.0, [])
    cluster.watch.stop()
    cluster.look(60.0, [])
    assert cluster.ended == [] and caplog.text == ""


def test_a_question_takes_no_longer_than_what_is_left_until_a_ps_is_gone(cluster):
    for now, answers in ((0.0, PS), (10.0, PS[:1]), (57.0, PS[:1]), (67.0, PS[:1]), (69.5, PS[:1])):
        cluster.look(now, answers)
    assert cluster.limits == [PROBE_SECONDS, PROBE_SECONDS, PROBE_SECONDS, 3.0, 1.0]


def test_at_the_end_of_the_program_calls_to_a_ps_that_is_gone_still_end_and_those_to_workers_go_on(cluster):
    cluster.look(0.0, [PS[0], WORKER])
    with pytest.raises(ServersGoneError):
        cluster.look(60.0, [PS[0], WORKER])
    cluster.watch.stop()
    del cluster.ended[:]
    cluster.watch.look()
    assert cluster.ended == ["ps:1"]


def test_a_wait_for_a_result_ends_when_a_ps_is_gone_and_not_when_it_looks_next(cluster, monkeypatch):
    monkeypatch.setattr(calls, "schedule_on_coordinator", lambda coordinator, call: None)
    groups = [SimpleNamespace(number=0, tasks=(0,))]
    executions = calls.Executions(None, None, Membership(groups), CallGate(), cluster.watch)
    monkeypatch.setattr(executions, "_take_all", lambda: pytest.fail("it has waited until it looks next"))
    monkeypatch.setattr(calls, "POLL_SECONDS", 1.0)
    executions.schedule(lambda group: None, "fit")
    cluster.look(0.0, [PS[0], WORKER])
    with pytest.raises(ServersGoneError):
        cluster.look(60.0, [PS[0], WORKER])
    with pytest.raises(ServersGoneError, match="ps:1"):
        executions.wait_for_any("fit")


def test_workers_that_hold_the_parameters_are_named_once(cluster):
    cluster.watch = ServerWatch([WORKER], [WORKER], 60.0, lambda: cluster.now)
    cluster.look(0.0, [])
    with pytest.raises(ServersGoneError, match=r"^no answer from worker:0 \(w0:1\) for 60 s: this task is cut off, or"):
        cluster.look(60.0, [])


def test_the_limit_is_a_number_of_seconds(monkeypatch):
    assert lost_seconds() == 60.0
    monkeypatch.setenv(VARIABLE, "7.5")
    assert lost_seconds() == 7.5
    for text in ("soon", "0", "nan", "-3", "1e9"):
        monkeypatch.setenv(VARIABLE, text)
        with pytest.raises(ClusterError, match=r"TFDIST_LOST_TIMEOUT=.*: expected seconds"):
            lost_seconds()
