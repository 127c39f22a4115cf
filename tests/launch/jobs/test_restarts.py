"""Restarts of tasks: how often, after which delay, and when a task that a signal stopped is killed."""

import types

import pytest

from tfdist.choice import choose, prepared
from tfdist.cluster import Cluster, Task
from tfdist.launch.jobs import restarts
from tfdist.launch.jobs.events import Exited, Stopped, Unreachable
from tfdist.launch.jobs.job import Job, Program
from tfdist.strategies.runtime.server import EXIT_CHIEF_FAILED

NAME = "worker:1"
KILLED = Exited(NAME, -9)
STOPPED, RESUMED = Stopped(NAME, 1, 19), Stopped(NAME, 1, None)


@pytest.fixture
def watched(monkeypatch):
    """A `Restarts` of one worker, its clock, and what it has done: starts, kills, lines."""
    clock = types.SimpleNamespace(now=100.0)
    monkeypatch.setattr(restarts, "time", types.SimpleNamespace(monotonic=lambda: clock.now))
    done = types.SimpleNamespace(started=[], killed=[], said=[])
    watched = restarts.Restarts([Task("worker", 1)], start=done.started.append, kill=done.killed.append, say=done.said.append)

    def passes(seconds):
        for _ in range(round(seconds / 0.1)):
            clock.now += 0.1
            watched.tick()

    return watched, clock, done, passes


def test_a_task_is_restarted_three_times_after_doubling_delays(watched):
    task, _, done, passes = watched
    for count, delay in enumerate([1, 2, 4], start=1):
        task.exited(KILLED)
        passes(delay - 0.3)
        assert len(done.started) == count - 1
        passes(0.6)
        assert len(done.started) == count
        assert task.counts == {NAME: count}
    task.exited(KILLED)
    passes(60)
    assert len(done.started) == 3 and not task.running
    assert done.said[-1] == (
        f"{NAME} failed 4 times, most recently because it was killed by SIGKILL; the training continues without it"
    )


def test_a_task_that_has_finished_is_not_restarted_and_nothing_is_said(watched):
    task, _, done, passes = watched
    task.exited(Exited(NAME, 0))
    passes(60)
    assert (done.started, done.said, task.running) == ([], [], [])
    codes = (-9, 0, 1, EXIT_CHIEF_FAILED)
    assert [restarts.may_run_longer(Exited(NAME, code)) for code in codes] == [True, False, False, True]


def test_a_worker_that_is_not_wanted_is_set_aside_and_comes_back_with_all_its_restarts(watched):
    task, _, done, passes = watched
    task.exited(KILLED)
    task.set_aside(NAME)
    passes(60)
    assert (done.started, task.running) == ([], [])
    task.take_back(NAME)
    for name in ("ps:7", "worker:7"):
        task.set_aside(name)
        task.take_back(name)
    for _ in range(restarts.MAX_RESTARTS):
        task.exited(KILLED)
        passes(8)
    assert (len(done.started), task.running) == (restarts.MAX_RESTARTS, [NAME])


def test_a_host_that_is_not_reached_costs_no_restart_where_others_train_on(watched, monkeypatch):
    task, _, done, passes = watched
    monkeypatch.setattr(task, "_can_continue", lambda running: True)
    task.exited(Unreachable(NAME, note="h1: gone"))
    passes(1.2)
    for _ in range(10):
        task.exited(Unreachable(NAME, note="h1: no route", had_started=False))
        passes(61)
    assert len(done.started) == 11 and task.counts == {NAME: 1}
    assert done.said == [
        f"{NAME} ended early: it cannot be reached any more: h1: gone; the training continues, and the task is restarted",
        *[
            f"{NAME}: it cannot be reached any more: h1: no route; the training continues, and its host is tried again, at least "
            "once a minute"
        ]
        * 4,
    ]
    monkeypatch.setattr(task, "_can_continue", lambda running: NAME in running)
    for _ in range(3):  # Without it nobody trains: the job fails soon.
        task.exited(Unreachable(NAME, note="h1: no route", had_started=False))
        passes(61)
    assert task.counts == {NAME: 3} and not task.can_continue


def test_a_task_that_has_run_well_has_all_its_restarts_again(watched):
    task, _, done, passes = watched
    for _ in range(2):
        for count in (1, 2, 3):
            task.exited(KILLED)
            passes(2**count)
        passes(restarts.WINDOW_SECONDS)
    assert len(done.started) == 6 and task.counts == {NAME: 6} and task.running
    task.exited(KILLED)
    passes(0.1)
    assert len(done.started) == 7, "after so long it is restarted at once"


def test_messages_say_what_a_loss_means_for_the_training(watched, monkeypatch):
    task, _, done, passes = watched
    task._all[NAME].limit = 1
    monkeypatch.setattr(task, "_meanwhile", "the training waits for it")
    monkeypatch.setattr(task, "_can_continue", lambda running: NAME in running)
    task.exited(KILLED)
    assert task.can_continue
    passes(2)
    task.exited(KILLED)
    assert not task.can_continue
    assert done.said == [
        f"{NAME} ended early: it was killed by SIGKILL; the training waits for it, and the task is restarted",
        f"{NAME} failed 2 times, most recently because it was killed by SIGKILL; the training cannot go on without it",
    ]


def test_messages_after_the_training_do_not_say_that_it_continues(watched):
    task, _, done, passes = watched
    task._all[NAME].limit = 1
    task.training_is_done()
    task.exited(KILLED)
    passes(2)
    task.exited(KILLED)
    assert done.said == [
        f"{NAME} ended early: it was killed by SIGKILL; the training is done, and the task is restarted",
        f"{NAME} failed 2 times, most recently because it was killed by SIGKILL; the training is done without it",
    ]


def test_the_training_waits_for_a_ps_and_cannot_go_on_without_it(monkeypatch):
    clock, started, said = types.SimpleNamespace(now=0.0), [], []
    monkeypatch.setattr(restarts, "time", types.SimpleNamespace(monotonic=lambda: clock.now))
    tasks = [Task("worker", 0), Task("ps", 0)]
    task = restarts.Restarts(
        tasks,
        start=started.append,
        kill=started.append,
        say=said.append,
        limits={"worker": 0, "ps": 1},
        can_continue=lambda running: "ps:0" in running,
        awaited=tasks[1:],
    )
    for name in ("worker:0", "ps:0", "ps:0"):
        task.exited(Exited(name, -9))
        clock.now += 1.5
        task.tick()
    assert started == tasks[1:] and not task.running
    assert said == [
        "worker:0 ended early: it was killed by SIGKILL; the training continues without it",
        "ps:0 ended early: it was killed by SIGKILL; the training waits for it, and the task is restarted",
        "ps:0 failed 2 times, most recently because it was killed by SIGKILL; the training cannot go on without it",
    ]


def test_a_ps_is_restarted_at_once_if_the_training_has_made_steps_with_it(monkeypatch):
    clock, started = types.SimpleNamespace(now=0.0), []
    monkeypatch.setattr(restarts, "time", types.SimpleNamespace(monotonic=lambda: clock.now))
    tasks = [Task("worker", 0), Task("ps", 0)]
    watched = restarts.Restarts(
        tasks, start=lambda task: started.append(task.name), kill=started.append, say=lambda line: None, awaited=tasks[1:]
    )

    def restarted(advances):
        started.clear()
        clock.now += 2.0
        if advances:
            watched.advanced()
        for task in tasks:
            watched.exited(Exited(task.name, -9))
        watched.tick()
        at_once = list(started)
        clock.now += 1.5
        watched.tick()
        return at_once

    assert restarted(advances=True) == ["ps:0"]
    assert restarted(advances=False) == []
    assert restarted(advances=True) == ["ps:0"]


def test_that_nobody_trains_is_said_when_all_workers_end_together(monkeypatch):
    clock = types.SimpleNamespace(now=100.0)
    monkeypatch.setattr(restarts, "time", types.SimpleNamespace(monotonic=lambda: clock.now))
    tasks, said = [Task("worker", index) for index in range(3)], []
    ignore = lambda task: None  # noqa: E731
    watched = restarts.Restarts(tasks, start=ignore, kill=ignore, say=said.append, can_continue=lambda running: bool(running))
    for ended, text in (
        (tasks[:2], "the training continues"),
        (tasks, "no worker group can train now, and the training waits for one"),
    ):
        for task in ended:
            watched.exited(Exited(task.name, -9))
        clock.now += 5.0
        watched.tick()
        assert said == [
            f"{task.name} ended early: it was killed by SIGKILL; {text}, and the task is restarted" for task in ended
        ]
        said.clear()


def test_workers_are_replaceable_where_a_chief_coordinates_them_and_a_group_needs_all_of_its_tasks():
    def job(worker_groups=(), **fields):
        tasks = (Task("chief", 0), Task("worker", 0, slots=2), Task("worker", 1, slots=2), Task("ps", 0))
        tasks = tasks[1:3] if fields.get("strategy") == "multi_worker_mirrored" else tasks
        cluster = Cluster(tasks, worker_groups=worker_groups, **fields)
        return Job(cluster, choose(cluster), Program())

    workers = ["worker:0", "worker:1"]
    for strategy, servers in {"parameter_server": [], "hogwild": ["ps:0"]}.items():
        found = job(strategy=strategy)
        assert [task.name for task in found.replaceable] == workers + servers
        assert found.has_worker_group({"worker:1", "ps:0"}) and found.has_worker_group({"worker:1"}) is not bool(servers)
        assert [task.name for task in found.awaited] == servers
    without = Cluster((Task("worker", 0), Task("worker", 1)), strategy="hogwild")
    without = Job(prepared(without), choose(without), Program())  # Workers hold the parameters.
    assert [task.name for task in without.awaited] == workers and not without.has_worker_group({"worker:1"})
    assert job(strategy="multi_worker_mirrored").replaceable == ()
    asynchronous, synchronous = job(), job(worker_groups=((0, 1, 2, 3),))
    assert asynchronous.has_worker_group({"worker:1"}) and not asynchronous.has_worker_group(set())
    assert synchronous.has_worker_group({"worker:0", "worker:1"}) and not synchronous.has_worker_group({"worker:1"})
    assert asynchronous.loss_of_a_worker == "the training continues"
    assert synchronous.loss_of_a_worker.startswith("the training waits for it, and variables")


def test_delays_end_at_a_minute_and_begin_anew_after_a_steady_run_and_no_restarts_are_none(watched, monkeypatch):
    task, _, done, passes = watched
    task._all[NAME].limit = 20
    for delay in (1, 2, 4, 8, 16, 32, 60, 60):
        task.exited(KILLED)
        passes(delay - 0.3)
        before = len(done.started)
        passes(0.6)
        assert len(done.started) == before + 1
    passes(restarts.STEADY_SECONDS)  # It runs: the next failure is not one of its start.
    task.exited(KILLED)
    passes(0.1)
    assert len(done.started) == 9, "at once"
    task.exited(KILLED)
    passes(0.7)
    assert len(done.started) == 9, "the delay begins with a second again"
    passes(0.6)
    assert len(done.started) == 10
    task._all[NAME].limit = 0
    task.exited(KILLED)
    assert (
        not task.running and done.said[-1] == f"{NAME} ended early: it was killed by SIGKILL; the training continues without it"
    )


def test_a_stopped_task_is_killed_after_a_minute_unless_it_resumes(watched):
    task, _, done, passes = watched
    task.stopped(STOPPED)
    passes(50)
    task.stopped(RESUMED)
    passes(50)
    assert not done.killed
    task.stopped(STOPPED)
    passes(61)
    assert [each.name for each in done.killed] == [NAME]
    assert done.said[-1:] == [f"{NAME} was stopped for 60 s; it is killed, because other tasks may wait for it"]


def test_time_in_which_the_launcher_was_stopped_too_does_not_count(watched):
    task, clock, done, passes = watched
    task.stopped(STOPPED)
    passes(5)
    clock.now += 3600.0  # `scontrol suspend`: the whole job, for an hour.
    passes(5)
    task.stopped(RESUMED)
    assert not done.killed


def test_stops_of_other_tasks_are_ignored(watched):
    task, _, done, passes = watched
    task.stopped(Stopped("ps:0", 1, 19))
    passes(61)
    assert not done.killed and not done.said


def test_after_the_job_no_task_is_started_or_killed(watched):
    task, _, done, passes = watched
    task.exited(KILLED)
    task.stop()
    passes(5)
    task.stopped(STOPPED)
    passes(61)
    assert not done.started and not done.killed


def test_a_task_that_sigint_has_ended_was_killed_as_by_other_signals():
    assert restarts.may_run_longer(Exited(NAME, 130)) and restarts.may_run_longer(Exited(NAME, -15))
    assert not restarts.may_run_longer(Exited(NAME, 1))


def test_a_task_that_has_lost_its_chief_is_restarted_when_the_chief_is_seen_to_go_on(watched):
    task, _, done, passes = watched
    alone = Exited(NAME, EXIT_CHIEF_FAILED)
    assert restarts.may_run_longer(alone) and not restarts.may_run_longer(Exited(NAME, 1))
    passes(20)
    task.exited(alone)
    passes(restarts.CHIEF_SECONDS - 0.3)
    assert done.started == [] and done.said == []
    passes(0.6)
    assert len(done.started) == 1 and f"{NAME} ended early: it exited with 75" in done.said[0]
