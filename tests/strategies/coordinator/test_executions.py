"""Executions have owners and states: nobody takes the results of others, and what is cancelled does not run."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
from support_paths import PROGRAMS

from tfdist.cluster import Task
from tfdist.strategies.coordinator import executions as module
from tfdist.strategies.coordinator.executions import Executions, State


class Coordinator:
    """Stands for TensorFlow's coordinator: keeps scheduled functions until `run` calls one as a group would."""

    def __init__(self, groups=2):
        self.strategy = SimpleNamespace(worker_groups=[SimpleNamespace(tasks=(number,)) for number in range(groups)])
        self._cluster = self
        self.queue = []
        self.error = None

    def schedule(self, function, args, kwargs):
        del args, kwargs
        self._raise()
        self.queue.append(function)

    def done(self):
        self._raise()

    def _raise(self):
        if self.error is not None:
            error, self.error = self.error, None
            raise error


@pytest.fixture
def coordinator(monkeypatch):
    coordinator = Coordinator()
    monkeypatch.setattr(module, "dispatch_context", lambda: SimpleNamespace(worker_index=0))
    monkeypatch.setattr(module.chief_device, "fetched", lambda value: value)
    monkeypatch.setattr(module, "is_listening", lambda task: True)
    return coordinator


@pytest.fixture
def executions(coordinator):
    return Executions(coordinator, (Task("worker", 0), Task("worker", 1)))


def test_an_owner_takes_only_its_own_results(coordinator, executions):
    fit, other = object(), object()
    first = executions.schedule(lambda group: 1, fit)
    second = executions.schedule(lambda group: 2, other)
    alone = executions.schedule(lambda group: 3)
    for function in coordinator.queue:
        function()
    assert executions.result_of(alone) == 3
    assert executions.pending(fit) == executions.pending(other) == 1 and not len(executions)
    assert executions.wait_for_any(other) is second and executions.wait_for_any(other) is None
    assert executions.wait_for_any(fit) is first and first.result == 1 and first.state is State.FINISHED


def test_waiting_until_nothing_is_in_flight_leaves_results_with_their_owners(coordinator, executions):
    fit = object()
    scheduled = [executions.schedule(lambda group, number=number: number, fit) for number in range(3)]
    for function in coordinator.queue:
        function()
    executions.wait_until_idle()
    assert executions.pending(fit) == 3
    assert [executions.wait_for_any(fit) for _ in range(4)] == [*scheduled, None]


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
    executions.schedule(lambda group: ran.append("first"), "fit")
    late = executions.schedule(lambda group: ran.append("late"), "fit")
    coordinator.queue[0]()
    coordinator.error = ValueError("of a step")
    executions._events.put(None)
    with pytest.raises(ValueError, match="of a step"):
        executions.wait_until_idle()
    assert late.state is State.CANCELLED
    coordinator.queue[1]()
    assert ran == ["first"] and not executions.pending("fit")


def test_an_error_that_the_watcher_meets_is_raised_in_the_next_wait(coordinator, executions, monkeypatch):
    monkeypatch.setattr(module, "BACKUP_SECONDS", 0.0)
    monkeypatch.setattr(module, "BACKUP_TIMES", 1e-9)
    execution = executions.schedule(lambda group: 1, "fit")
    execution.state, execution.started = State.RUNNING, {0: 0.0}
    executions.give_up = lambda group: None
    coordinator.error = ValueError("of a step")
    executions.back_up()
    with pytest.raises(ValueError, match="of a step"):
        executions.wait_for_any("fit")


@pytest.mark.cluster
@pytest.mark.parametrize("strategy", ["parameter_server", "hogwild"])
def test_calls_inside_fit_lose_no_steps(strategy, tmp_path):
    program = [sys.executable, str(PROGRAMS / "nested_calls.py"), strategy]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "ran out of data" not in done.stderr
    found = json.loads(done.stdout.partition("FOUND ")[2])
    for name, seen in found.items():
        assert (seen["batches"], seen["iterations"]) == (80, 80), name
        assert len(seen["inside"]) == (0 if name == "none" else 4), name
        # They see the progress of all groups: it is later in the training, so the loss is lower.
        assert sorted(seen["inside"], reverse=True) == seen["inside"], name
        # The epoch's loss is that of its own steps, and the training is as good as without.
        assert seen["loss"][0] == pytest.approx(found["none"]["loss"][0], rel=0.2), name
        assert seen["final"] == pytest.approx(found["none"]["final"], rel=0.2), name
