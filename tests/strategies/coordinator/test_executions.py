"""Executions have owners and states: nobody takes the results of others, and what is cancelled does not run."""

import json
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from support_paths import PROGRAMS

from tfdist.cluster import Task
from tfdist.strategies.coordinator import executions as module
from tfdist.strategies.coordinator.executions import Executions, State
from tfdist.strategies.coordinator.membership import Membership


class Coordinator:
    """Stands for TensorFlow's coordinator: keeps scheduled functions until `run` calls one as a group would."""

    def __init__(self, groups=2):
        self.strategy = SimpleNamespace(worker_groups=[SimpleNamespace(tasks=(number,)) for number in range(groups)])
        self._cluster = self
        self.queue = []
        self.error = None
        self.group = 0  # The group that calls the next function.

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
    monkeypatch.setattr(module, "dispatch_context", lambda: SimpleNamespace(worker_index=coordinator.group))
    monkeypatch.setattr(module.chief_device, "fetched", lambda value: value)
    monkeypatch.setattr(module, "is_listening", lambda task: True)
    return coordinator


@pytest.fixture
def executions(coordinator):
    groups = [SimpleNamespace(number=number, tasks=(number,)) for number in range(2)]
    coordinator.clock = 0.0
    return Executions(coordinator, (Task("worker", 0), Task("worker", 1)), Membership(groups), lambda: coordinator.clock)


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
    execution.state, execution.running = State.RUNNING, {0: 0.0}
    executions.gives_up, coordinator.clock = True, 1.0
    coordinator.error = ValueError("of a step")
    executions.back_up()
    with pytest.raises(ValueError, match="of a step"):
        executions.wait_for_any("fit")


def test_a_group_is_not_lost_because_the_main_thread_is_busy(coordinator, executions):
    executions.gives_up = True
    executions.schedule(lambda group: 1, "fit")
    coordinator.queue[0]()
    coordinator.clock += 1e6  # A callback runs meanwhile.
    executions.back_up()
    assert executions._membership.live == {0, 1} and len(coordinator.queue) == 1
    assert executions.wait_for_any("fit").result == 1


def test_a_group_that_does_not_answer_is_lost_and_another_does_its_execution(coordinator, executions):
    executions.gives_up = True
    execution = executions.schedule(lambda group: group, "fit")
    execution.state, execution.running = State.RUNNING, {0: 0.0}
    coordinator.clock = module.WORKERS_GONE_SECONDS - 1
    executions.back_up()
    assert executions._membership.live == {0, 1}
    coordinator.clock = module.WORKERS_GONE_SECONDS + 1
    executions.back_up()
    assert executions._membership.live == {1} and execution.state is State.QUEUED
    coordinator.group = 1
    coordinator.queue[1]()
    assert executions.wait_for_any("fit").group == 1
    coordinator.queue[0]()  # Nothing is left to do.
    assert execution.group == 1


def test_an_execution_is_in_flight_as_long_as_a_live_group_runs_it(coordinator, executions):
    executions.gives_up = True
    execution = executions.schedule(lambda group: group, "fit")

    execution.state, execution.running = State.FINISHED, {1: 0.0}  # Group 0 was slow, and finished during its backup on 1.
    executions._events.put(execution)
    threading.Timer(0.2, lambda: (executions._membership.lose(1), executions._events.put(execution))).start()
    began = time.monotonic()
    executions.wait_until_idle()
    assert time.monotonic() - began > 0.15 and executions.wait_for_any("fit") is execution


@pytest.mark.cluster
@pytest.mark.parametrize("strategy", ["parameter_server", "hogwild"])
def test_a_slow_callback_lets_no_batch_be_trained_twice(strategy, tmp_path):
    program = [sys.executable, str(PROGRAMS / "slow_callback.py"), strategy]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "does not answer" not in done.stderr
    found = json.loads(done.stdout.partition("FOUND ")[2])
    assert found["seen"] == [found["expected"]] * 2
    assert (found["batches"], found["iterations"]) == (48, 48)


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
