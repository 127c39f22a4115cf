"""Restarts of a whole job: how often, and after which delay."""

import pytest

from tfdist.launch.jobs.job_status import JobStatus, State
from tfdist.launch.supervision.failure import Failure
from tfdist.launch.supervision.job_restarts import JobRestarts
from tfdist.launch.supervision.supervisor import Outcome

FAILED = Failure("worker:0 was killed", 137, may_pass=True)


def ended(failure=FAILED, seconds=1.0, reached=(0, 0)):
    return Outcome(failure, JobStatus(State.FAILED), cluster=None, seconds=seconds, trained_seconds=seconds, reached=reached)


@pytest.mark.parametrize("failure", [None, Failure("ended by SIGINT", 130)])
def test_a_job_that_succeeded_or_cannot_do_so_does_not_start_again(failure):
    restarts = JobRestarts(limit=3, window=600)
    assert restarts.after(ended(failure)) is None
    assert restarts.count == 0


def test_a_job_starts_again_as_often_as_it_may():
    restarts = JobRestarts(limit=2, window=600)
    assert [restarts.after(ended()) is None for _ in range(3)] == [False, False, True]
    assert (restarts.count, restarts.used) == (2, 2)


def test_an_attempt_that_trained_for_the_window_has_all_restarts_again():
    restarts = JobRestarts(limit=1, window=600)
    assert restarts.after(ended()) is not None
    assert restarts.after(ended(seconds=600)) is not None
    assert (restarts.count, restarts.used) == (2, 1)
    assert restarts.after(ended(seconds=599)) is None


def test_the_delay_doubles_while_attempts_end_quickly_at_the_same_place():
    restarts = JobRestarts(limit=99, window=600)
    assert restarts.after(ended(reached=(1, 5))) == 0
    assert [restarts.after(ended(reached=(1, 5))) for _ in range(3)] == [1, 2, 4]
    assert restarts.after(ended(reached=(1, 6))) == 0  # It got farther.
    assert restarts.after(ended(reached=(1, 3))) == 1
    assert restarts.after(ended(seconds=10, reached=(1, 3))) == 0  # It ran for a while.


def test_attempts_do_not_count_for_which_a_host_that_was_used_before_is_away():
    now = [0.0]
    away = ended(Failure("h2 cannot be used", 1, may_pass=True, is_host_away=True), seconds=0.0)
    restarts = JobRestarts(limit=1, window=600, patience=300, clock=lambda: now[0])
    assert restarts.after(ended()) is not None
    delays = []
    for now[0] in range(10, 100, 10):
        delays.append(restarts.after(away))
    assert delays == [1, 2, 4, 8, 15, 15, 15, 15, 15]
    assert (restarts.count, restarts.used) == (10, 1)
    now[0] = 301.0
    assert restarts.after(away) is None


@pytest.mark.parametrize("limit", [0, 1])
def test_a_host_that_never_answered_is_not_waited_for(limit):
    restarts = JobRestarts(limit=limit, window=600, patience=300)
    away = ended(Failure("h2 cannot be used", 1, may_pass=True, is_host_away=True), seconds=0.0)
    assert [restarts.after(away) is None for _ in range(2)] == [limit == 0, True]
    if limit == 0:
        assert restarts.after(ended()) is None and restarts.after(away) is None
