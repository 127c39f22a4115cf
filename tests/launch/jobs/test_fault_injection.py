"""Faults that `--fail_at` makes happen: their descriptions, and when they come."""

import signal
import types

import pytest

from tfdist.launch.errors import UsageError
from tfdist.launch.jobs.fault_injection import Fault, FaultInjector, fault

TASKS = ["chief:0", "worker:0", "worker:1", "ps:0"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("worker:1,step=30", Fault(("worker:1",), step=30)),
        ("worker:0+worker:1,step=3,how=kill", Fault(("worker:0", "worker:1"), step=3)),
        ("ps:0,after=1.5,how=stop:20", Fault(("ps:0",), "stop", after=1.5, seconds=20)),
        ("random,every=15,of=worker,seed=4,how=term", Fault(("worker:0", "worker:1"), "term", every=15, seed=4)),
        ("random,every=9", Fault(tuple(TASKS), every=9)),
        ("ps:0,step=0", Fault(("ps:0",), step=0)),
        ("ps:0,after=0", Fault(("ps:0",), after=0.0)),
    ],
)
def test_descriptions(text, expected):
    assert fault(text, TASKS) == expected


@pytest.mark.parametrize(
    "text",
    ["", "worker:1", "worker:1,step=x", "worker:1,step=1,after=2", "worker:1,step=1,how=stop", "worker:1,step=1,how=kill:3",
     "worker:1,step=1,how=faint", "worker:1,step=1,else=2", "random", "random,every=3,step=2", "random,every=3,of=tpu",
     "random,every=0", "random,every=-3", "random,every=nan", "ps:0,after=-1", "ps:0,after=inf", "ps:0,step=-1",
     "ps:0,step=1,how=stop:-4", "ps:0,step=1,how=stop:nan", "ps:0,step=1,step=2"],
)  # fmt: skip
def test_other_texts_are_refused_with_the_form(text):
    with pytest.raises(UsageError, match=r"^--fail_at .*: expected TASK\[\+TASK\.\.\.\],step=N"):
        fault(text, TASKS)


def test_an_unknown_task_is_refused_with_the_nearest_name():
    with pytest.raises(UsageError, match="there is no task worker:7; did you mean worker:"):
        fault("worker:7,step=1", TASKS)


@pytest.fixture
def job(tmp_path):
    """A clock, the steps of the job, what was sent, and `passes(seconds)`."""
    job = types.SimpleNamespace(now=100.0, sent=[], said=[], alive=list(TASKS))

    def steps(count):
        (tmp_path / "report.json.steps").write_text(str(count))

    def passes(fault_injector, seconds):
        for _ in range(round(seconds * 10)):
            job.now += 0.1
            fault_injector.tick(
                tmp_path / "report.json", job.alive, lambda names, number: job.sent.append((names, number)), job.said.append
            )

    job.steps, job.passes = steps, passes
    return job


def test_a_fault_comes_once_after_its_step_and_a_stopped_task_goes_on(job):
    fault_injector = FaultInjector(
        [fault("worker:0+worker:1,step=30,how=stop:2", TASKS), fault("ps:0,after=5", TASKS)], lambda: job.now
    )
    job.passes(fault_injector, 9)
    job.steps(29)
    job.passes(fault_injector, 1)
    assert not job.sent
    job.steps(30)
    job.passes(fault_injector, 0.1)
    assert job.sent == [(["worker:0", "worker:1"], signal.SIGSTOP)]
    assert job.said == ["--fail_at sends SIGSTOP to worker:0, worker:1 for 2 s"]
    job.passes(fault_injector, 2.2)
    assert job.sent[1:] == [(["worker:0"], signal.SIGCONT), (["worker:1"], signal.SIGCONT)]
    job.passes(fault_injector, 5)
    assert job.sent[3:] == [(["ps:0"], signal.SIGKILL)]


def test_a_fault_is_due_from_its_second_on():
    due = Fault(("ps:0",), after=9.0)
    assert (due.is_due(99, 8.9), due.is_due(1, 9.0)) == (False, True)


def test_random_faults_are_those_of_their_seed_and_meet_only_tasks_that_run(job):
    drawn = []
    for _ in range(2):
        job.sent.clear()
        job.steps(1)
        fault_injector = FaultInjector([fault("random,every=15,of=worker,seed=3", TASKS)], lambda: job.now)
        job.passes(fault_injector, 100)
        drawn.append([*job.sent])
    assert drawn[0] == drawn[1] and len(drawn[0]) == 6
    assert {names[0] for names, _ in drawn[0]} == {"worker:0", "worker:1"}
    job.sent.clear()
    job.alive = ["chief:0", "worker:1"]
    job.passes(fault_injector, 60)
    assert {names[0] for names, _ in job.sent} == {"worker:1"}


def test_random_faults_that_were_due_while_nobody_looked_do_not_happen_all_at_once(job):
    """As in the pause before a job is started again: it would never get farther."""
    job.steps(1)
    fault_injector = FaultInjector([fault("random,every=7,of=worker", TASKS)], lambda: job.now)
    job.passes(fault_injector, 1)
    job.now += 60
    job.passes(fault_injector, 3)
    assert len(job.sent) == 1
    job.passes(fault_injector, 7)
    assert len(job.sent) == 2


def test_faults_that_have_not_happened_are_named(job):
    fault_injector = FaultInjector(
        [fault(text, TASKS) for text in ("worker:1,step=30", "worker:0+ps:0,after=2.5", "random,every=9")], lambda: job.now
    )
    fault_injector.say_pending(job.said.append)
    assert job.said == [
        f"--fail_at {each} has not happened: no step of a `fit` was seen"
        for each in ("worker:1,step=30", "worker:0+ps:0,after=2.5", "random,every=9")
    ]
    job.steps(7)
    job.passes(fault_injector, 3)
    job.said.clear()
    fault_injector.say_pending(job.said.append)
    assert job.said == ["--fail_at worker:1,step=30 has not happened"]
