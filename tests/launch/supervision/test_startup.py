"""The start of the tasks: who is waited for, and a task that ends too early with success."""

import types

import pytest

from tfdist.choice import choose, prepared
from tfdist.dialects import read
from tfdist.launch.jobs.events import Exited
from tfdist.launch.jobs.job import Job, Program
from tfdist.launch.jobs.running_time import RunningTime
from tfdist.launch.supervision import startup
from tfdist.launch.supervision.failure import FirstFailure
from tfdist.strategies.runtime.server import EXIT_CHIEF_FAILED


@pytest.fixture
def begun():
    """Returns a function that begins the start of a cluster; its clock is `begun.clock`."""
    clock = types.SimpleNamespace(now=100.0)

    def begin(description):
        cluster = prepared(read(description))
        started = startup.Startup(Job(cluster, choose(cluster), Program("train.py")), 300.0, print, lambda: clock.now)
        started.ready(cluster.addressed())
        return started

    begin.clock = clock
    return begin


def test_a_task_that_ends_with_0_before_it_listens_is_named_while_another_waits_for_it(begun):
    started = begun({"worker": 3})
    started.listening("worker:0")
    exits = {"worker:1": 0}
    assert started.check(exits) is None
    begun.clock.now += 9
    assert started.check(exits) is None
    begun.clock.now += 2
    failure = started.check(exits)
    assert failure.task == "worker:1" and failure.exit_code == 1
    assert "worker:1 ended with exit code 0 before it took part in the training, and worker:0 goes on" in failure.reason


@pytest.mark.parametrize("exits", [{"worker:1": 0, "worker:0": 0}, {"worker:1": 0, "worker:0": 3}, {"worker:1": 1}])
def test_no_task_is_too_early_if_none_waits_or_it_failed(begun, exits):
    started = begun({"worker": 2})
    started.listening("worker:0")
    started.check(exits)
    begun.clock.now += 100
    assert started.check(exits) is None


def test_programs_that_never_listen_may_end_one_after_the_other(begun):
    started = begun({"worker": 2})
    started.check({"worker:1": 0})
    begun.clock.now += 100
    assert started.check({"worker:1": 0}) is None


def test_servers_that_end_before_the_chief_without_having_listened_have_not_served(begun):
    started = begun({"chief": 1, "worker": 1, "ps": 1})
    exits = {"worker:0": 0, "ps:0": 0}
    started.check(exits)
    assert started.no_task_served
    started.listening("chief:0")
    assert started.no_task_served
    started.listening("ps:0")
    assert not started.no_task_served


def test_a_task_that_has_listened_may_end_before_the_others(begun):
    started = begun({"worker": 2})
    started.listening("worker:0")
    started.listening("worker:1")
    started.check({"worker:1": 0})
    begun.clock.now += 100
    assert started.check({"worker:1": 0}) is None


def test_a_launcher_that_was_stopped_first_hears_what_happened_meanwhile(begun):
    begun.clock.now = 0.0
    cluster = prepared(read({"chief": 1, "worker": 1, "ps": 1}))
    job, time = Job(cluster, choose(cluster), Program("train.py")), RunningTime(lambda: begun.clock.now)
    started, exits = startup.Startup(job, 10.0, print, time), {}
    first = FirstFailure(job, exits, time)
    started.ready(cluster.addressed())
    begun.clock.now += 1000  # Ctrl-Z, and `fg` when all tasks have long been there.
    assert started.check(exits) is None
    for task in cluster.tasks:
        started.listening(task.name)
    exits["ps:0"] = 0
    first.exited(Exited("ps:0", 0), {"ps:0", "worker:0"}, False)
    begun.clock.now += 1000  # The chief has ended all servers, and its own end is not read yet.
    assert first.get() is None
    exits["worker:0"] = 0
    first.exited(Exited("worker:0", 0), {"ps:0", "worker:0"}, False)
    for _ in range(20):
        begun.clock.now += 1
        assert first.get() is None


@pytest.mark.parametrize("task", ["ps:0", "chief:0"])
def test_a_task_that_is_lost_after_the_end_of_the_program_counts_if_the_chief_does_not_end_with_0(begun, task):
    begun.clock.now = 0.0
    cluster = prepared(read({"chief": 1, "worker": 1, "ps": 1}))
    job, time = Job(cluster, choose(cluster), Program("train.py")), RunningTime(lambda: begun.clock.now)
    for has_ended in (False, True):
        first = FirstFailure(job, {task: -9}, time, has_ended.__bool__)
        first.exited(Exited(task, -9), {"ps:0", "worker:0"}, False)
        seconds = 0
        while (failure := first.get()) is None and seconds < 60:
            begun.clock.now += 0.9
            seconds += 0.9
        assert failure.task == task and failure.exit_code == 137
        assert bool(seconds) == (has_ended and task == "ps:0")


@pytest.mark.parametrize(("code", "named"), [(EXIT_CHIEF_FAILED, "chief:0"), (0, "ps:0")])
def test_the_chief_is_named_whose_failure_has_ended_a_server_also_if_its_process_ends_much_later(begun, code, named):
    begun.clock.now = 0.0
    cluster = prepared(read({"chief": 1, "worker": 1, "ps": 1}))
    job, time = Job(cluster, choose(cluster), Program("train.py")), RunningTime(lambda: begun.clock.now)
    exits = {"ps:0": code}
    first = FirstFailure(job, exits, time)
    first.exited(Exited("ps:0", code), {"ps:0", "worker:0"}, False)
    for _ in range(12):
        begun.clock.now += 0.9
        failure = first.get()
    assert failure.task == named and failure.may_pass and failure.reason.count(named)
