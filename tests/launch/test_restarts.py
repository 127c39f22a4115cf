"""Tasks that are started again: how often, and when one that a signal has stopped is given up."""

import types

import pytest

from tfdist.cluster import Task
from tfdist.launch import restarts

NAME = "worker:1"


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


def test_a_task_is_started_again_three_times_each_time_after_twice_as_long(watched):
    task, _, done, passes = watched
    for count, delay in enumerate([1, 2, 4], start=1):
        task.exited(NAME, -9, "it was killed by SIGKILL")
        passes(delay - 0.3)
        assert len(done.started) == count - 1
        passes(0.6)
        assert len(done.started) == count
        assert task.counts == {NAME: count}
    task.exited(NAME, -9, "it was killed by SIGKILL")
    passes(60)
    assert len(done.started) == 3 and not task.running
    assert done.said[-1] == f"{NAME} has failed 4 times, at last it was killed by SIGKILL; the training goes on without it"


def test_a_stopped_task_is_killed_after_a_minute_and_one_that_goes_on_is_not(watched):
    task, _, done, passes = watched
    task.stopped(NAME, True)
    passes(50)
    task.stopped(NAME, False)
    passes(50)
    assert not done.killed
    task.stopped(NAME, True)
    passes(61)
    assert [each.name for each in done.killed] == [NAME]
    assert done.said[-1:] == [f"{NAME} has been stopped for 60 s; it is killed, so that nobody waits for it"]


def test_time_in_which_the_launcher_was_stopped_too_does_not_count(watched):
    task, clock, done, passes = watched
    task.stopped(NAME, True)
    passes(5)
    clock.now += 3600.0  # `scontrol suspend`: the whole job, for an hour.
    passes(5)
    task.stopped(NAME, False)
    assert not done.killed


def test_when_the_job_is_over_nothing_is_started_or_killed(watched):
    task, _, done, passes = watched
    task.exited(NAME, -9, "it was killed by SIGKILL")
    task.stop()
    passes(5)
    task.stopped(NAME, True)
    passes(61)
    assert not done.started and not done.killed
