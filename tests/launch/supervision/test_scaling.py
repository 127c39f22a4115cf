"""Workers that join and leave while a job trains: `--max_workers` and `tfdist scale`."""

import dataclasses
import os
import re
import signal
import threading
from types import SimpleNamespace

import pytest
from by_hand import configs
from test_launch_faults import COUNTS_STEPS

from tfdist.choice import choose
from tfdist.cluster import Cluster, Task
from tfdist.errors import ClusterError
from tfdist.launch.background.job_folder import JobFolder
from tfdist.launch.commands import run, scale_command
from tfdist.launch.errors import UsageError
from tfdist.launch.jobs.events import Exited, Memory, Ready, Stopped, Used
from tfdist.launch.jobs.job import Job, Program
from tfdist.launch.jobs.job_status import JobStatus, State
from tfdist.launch.jobs.restarts import Restarts
from tfdist.launch.supervision import scaling, status_board
from tfdist.launch.supervision.status_board import StatusBoard
from tfdist.planner.use import Use

TASKS = (Task("chief", 0), Task("worker", 0, slots=2), Task("ps", 0))


def job(cluster):
    return Job(cluster, choose(cluster), Program())


def test_room_is_made_for_workers_like_those_of_the_description():
    cluster = scaling.with_room(Cluster(TASKS), 3)
    assert [(task.index, task.slots) for task in cluster.job("worker")] == [(0, 2), (1, 2), (2, 2)]
    assert cluster.min_workers == 1 and cluster.worker_groups == ((0, 1), (2, 3), (4, 5))
    assert [task.name for task in job(cluster).spare] == ["worker:1", "worker:2"]
    assert scaling.with_room(Cluster(TASKS), 1) == Cluster(TASKS) and job(Cluster(TASKS)).spare == ()
    for description, most, message in (
        (Cluster(scaling.with_room(Cluster(TASKS), 2).tasks), 1, "--max_workers 1: the description has 2 workers already"),
        (Cluster(TASKS, worker_groups=((0,), (1,))), 2, "worker groups of its own"),
    ):
        with pytest.raises(UsageError, match=message):
            scaling.with_room(description, most)


def test_a_status_says_of_each_task_what_holds_now():
    cluster = scaling.with_room(Cluster(TASKS), 2).addressed()
    board = StatusBoard(job(cluster), lambda status, is_measurement: None)

    def note():
        return board.status.tasks[2].note

    board.set_aside("worker:1")
    board.add(Ready(cluster))
    assert note() == "room for a worker that joins (tfdist scale)"
    board.restarted("worker:1", counts=False)
    assert note() == cluster.find("worker", 1).address
    busy = Used("worker:1", Use(seconds=8.0, processor=0.9, waited=0.0, running=0.9, cores=2, machine=0.5))
    board.add(busy)
    assert board.status.tasks[2].use is not None
    board.add(Stopped("worker:1", 1, signal.SIGSTOP))
    board.add(busy)  # Measured before.
    assert note() == "stopped by SIGSTOP" and board.status.tasks[2].use is None
    board.restarted("worker:1")  # It was stopped for too long, and is killed.
    board.add(busy)
    assert note() == cluster.find("worker", 1).address and board.status.tasks[2].use is not None
    board.set_aside("worker:1")
    assert note() == "room for a worker that joins (tfdist scale)"


def test_measurements_of_all_tasks_are_published_together_and_twice_a_second(monkeypatch):
    """Each of hundreds of tasks has some every second, and a status of all of them takes milliseconds."""
    now, published = [100.0], []
    monkeypatch.setattr(status_board, "time", SimpleNamespace(monotonic=lambda: now[0]))
    board = StatusBoard(job(Cluster(TASKS).addressed()), lambda status, is_measurement: published.append(status))
    for _ in range(3):
        now[0] += 0.25
        for task in board.status.tasks:
            board.add(Memory(task.name, 7))
        board.tick()
    board.tick()
    assert [[task.memory for task in status.tasks] for status in published] == [[7, 7, 7]] * 2


def test_tasks_of_a_cancelled_job_are_cancelled_and_what_had_ended_before_stays():
    board = StatusBoard(job(Cluster(TASKS).addressed()), lambda status, is_measurement: None)
    names = [task.name for task in board.status.tasks]
    codes = dict(zip(names, (0, 1, -15), strict=False))
    for name in names[:2]:
        board.add(Exited(name, codes[name]))
    board.cancelled()
    states = [task.state for task in board.ended(State.CANCELLED, "ended by SIGTERM", codes).tasks]
    assert states[:3] == [State.SUCCEEDED, State.FAILED, State.CANCELLED]


@pytest.fixture
def scaled(tmp_path, monkeypatch):
    """A `Scaling` of a job with one worker and room for three, and what it has done."""
    clock, done = SimpleNamespace(now=100.0), []
    monkeypatch.setattr(scaling, "time", SimpleNamespace(monotonic=lambda: clock.now))
    planned = job(scaling.with_room(Cluster(TASKS), 3))
    tasks = SimpleNamespace(
        running={"worker:0"},
        any_started=True,
        exits={},
        start=lambda task: (done.append(f"start {task.name}"), tasks.running.add(task.name)),
        signal=lambda names, number: done.append(f"{signal.Signals(number).name} {names[0]}"),
    )
    board = SimpleNamespace(set_aside=lambda name: None, restarted=lambda name, counts: None)
    workers = Restarts(planned.replaceable, start=done.append, kill=done.append, say=done.append)

    def make(**more):
        return scaling.Scaling(planned, tmp_path, workers, tasks, board, lambda line: None, **{"is_restart": False} | more)

    def passes(each, seconds):
        clock.now += seconds
        each.tick()

    return make, tasks, workers, done, passes


def test_a_request_is_there_until_its_answer_is(scaled, tmp_path, monkeypatch):
    make, _, _, _, passes = scaled
    each, remove, answers = make(), scaling._remove, []
    monkeypatch.setattr(scaling, "_remove", lambda path: (answers.append(scaling.Room.read(tmp_path)), remove(path)))
    scaling.ask(tmp_path, 2)
    passes(each, 1)
    assert answers == [scaling.Room(2, 3)]


def test_workers_are_started_and_ended_as_asked_for_and_those_that_were_ended_are_not_restarted(scaled, tmp_path):
    make, tasks, workers, done, passes = scaled
    each = make()
    assert each.idle == {"worker:1", "worker:2"} and workers.running == ["worker:0"]
    scaling.ask(tmp_path, 3)
    passes(each, 1)
    assert done == ["start worker:1", "start worker:2"] and not scaling.is_asked(tmp_path)
    assert scaling.Room.read(tmp_path) == scaling.Room(3, 3) and workers.running == ["worker:0", "worker:1", "worker:2"]
    scaling.ask(tmp_path, 2)
    passes(each, 1)
    assert done[2:] == ["SIGTERM worker:2"] and workers.running == ["worker:0", "worker:1"]
    scaling.ask(tmp_path, 3)
    passes(each, 1)
    assert done[3:] == []  # It has not ended yet.
    passes(each, scaling.END_SECONDS)
    assert done[3:] == ["SIGKILL worker:2"]
    tasks.running.remove("worker:2")
    each.exited("worker:2")
    assert tasks.exits == {"worker:2": 0}
    passes(each, 1)
    assert done[4:] == ["start worker:2"] and each.idle == set()
    for wrong in (0, 4, "all"):
        scaling.ask(tmp_path, wrong)
        passes(each, 1)
    each.stop()
    scaling.ask(tmp_path, 1)
    passes(each, 1)
    assert len(done) == 5
    assert make(is_restart=True).idle == set(), "workers that had joined stay"
    assert make().idle == {"worker:1", "worker:2"}
    scaling.forget(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_worker_that_joins_before_the_others_are_started_is_started_with_them(scaled, tmp_path):
    make, tasks, workers, done, passes = scaled
    tasks.any_started, tasks.running = False, set()
    each = make()
    scaling.ask(tmp_path, 3)
    passes(each, 1)
    assert each.idle == set() and done == [] and workers.running == ["worker:0", "worker:1", "worker:2"]


def test_a_worker_that_left_before_its_restart_and_comes_back_is_not_killed(scaled, tmp_path):
    make, tasks, workers, done, passes = scaled
    each = make()
    scaling.ask(tmp_path, 2)
    passes(each, 1)
    tasks.running.remove("worker:1")
    workers.exited(Exited("worker:1", -signal.SIGKILL))
    for number in (1, 2):
        scaling.ask(tmp_path, number)
        passes(each, 1)
    passes(each, scaling.END_SECONDS)
    assert [line for line in done if "SIGTERM" not in line] == ["start worker:1", "start worker:1"]


def test_a_request_before_the_restart_of_all_tasks_is_heard_after_it(scaled, tmp_path):
    make, _, _, done, passes = scaled
    make()
    scaling.ask(tmp_path, 3)
    each = make(is_restart=True)
    assert scaling.is_asked(tmp_path)
    passes(each, 1)
    assert done == ["start worker:1", "start worker:2"] and not scaling.is_asked(tmp_path)


def test_what_cannot_be_scaled_is_refused_by_name(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(scale_command, "ANSWER_SECONDS", 0.1)
    folder = str(tmp_path)

    def refused(*words):
        assert run(["scale", *words]) == 2
        return capsys.readouterr().err

    assert "expected HANDLE worker=N" in refused(folder)
    assert "only workers join and leave a training" in refused(folder, "ps=2")
    assert "a whole number" in refused(folder, "worker=two")
    assert "no launcher supervises a job there" in refused(folder, "worker=2")
    assert "there is no job local://20200101-000000-abcdef" in refused("local://20200101-000000-abcdef", "worker=2")
    mirrored = Cluster((Task("worker", 0), Task("worker", 1)))
    synchronous = Cluster((*TASKS, Task("worker", 1)), worker_groups=((0, 1, 2),))
    for cluster, message in (
        (mirrored, "under multi_worker_mirrored all tasks make each step together"),
        (synchronous, "a worker group of this cluster has several tasks"),
        (dataclasses.replace(mirrored, strategy="hogwild"), "without ps the workers hold the global parameters"),
        (Cluster((Task("chief", 0),)), "no workers that could join or leave"),
    ):
        planned, aside = job(cluster), SimpleNamespace(set_aside=lambda name: None)
        scaling.Scaling(planned, tmp_path, aside, None, aside, print, is_restart=False)
        assert message in refused(folder, "worker=2")
    (tmp_path / scaling.STATE).write_text('{"now": 1, "most": 2}')
    assert "1 to 2 are" in refused(folder, "worker=3")
    assert "its launcher has not answered" in refused(folder, "worker=2") and not scaling.is_asked(tmp_path)
    monkeypatch.setattr(scale_command, "ANSWER_SECONDS", 10.0)

    def take():
        (tmp_path / scaling.STATE).write_text('{"now": 2, "most": 2}')
        (tmp_path / scaling.REQUEST).unlink()

    def asks_and_then(answer):
        timer = threading.Timer(0.05, answer)
        monkeypatch.setattr(scale_command, "ask", lambda log_dir, number: (scaling.ask(log_dir, number), timer.start()))

    asks_and_then(take)
    assert run(["scale", folder, "worker=2"]) == 0
    assert capsys.readouterr().out == f"{folder}  2 of at most 2 workers\n"
    asks_and_then(lambda: scaling.forget(tmp_path))
    assert f"{folder} has ended meanwhile" in refused(folder, "worker=1")


def test_min_workers_is_part_of_tf_config_and_refused_where_no_worker_can_join():
    import tfdist
    from tfdist import strategies

    cluster = scaling.with_room(Cluster(TASKS), 2)
    assert tfdist.read(cluster.tf_config("worker", 1)).min_workers == 1
    for wrong in (0, 3):
        with pytest.raises(ClusterError, match=f"should begin with {wrong} workers"):
            Cluster(cluster.tasks, min_workers=wrong)
    mirrored = Cluster((Task("worker", 0), Task("worker", 1)), min_workers=1)
    assert "under multi_worker_mirrored" in str(strategies.refusal(mirrored, choose(mirrored)))
    assert strategies.refusal(cluster, choose(cluster)) is None


@pytest.mark.cluster
@pytest.mark.parametrize("strategy", ["parameter_server", "hogwild"])
def test_workers_join_and_leave_while_a_job_trains(start, script, tmp_path, read_json, quick_python, strategy):
    flags = ["--cluster", '{"chief": 1, "worker": 1, "ps": 1}', "--max_workers", "2", "--strategy", strategy]
    job = start("-m", "tfdist.launch", *flags, "--log_dir", "logs", "--summary", "summary.json", script(COUNTS_STEPS))

    def scale(number):
        return quick_python.run(["-m", "tfdist", "scale", "logs", f"worker={number}"], str(tmp_path), os.environ)

    job.wait_for("training: 0\n")
    assert scale(2).stdout == "logs  2 of at most 2 workers\n"
    job.wait_for("training: 0 1\n")
    job.wait_for("has joined the training: 2 of 2 worker groups train")
    assert scale(1).returncode == 0
    job.wait_for("training: 0\n", after="training: 0 1\n")
    job.wait_for("has left the training: 1 of 2 worker groups train")
    (tmp_path / "end").touch()
    assert job.wait(60) == 0, job.output
    # A worker that leaves may have made a step that another one makes again; under hogwild that is then lost with it.
    assert re.search(r"steps 0 updates [012]$" if strategy == "parameter_server" else "steps 0 updates 0$", job.output, re.M)
    assert re.search(r"examples of each epoch: 512$", job.output, re.MULTILINE), job.output
    summary = read_json("summary.json")
    assert summary["failure"] is None and all(not task.get("restarts") for task in summary["tasks"])
    assert not (tmp_path / "logs" / scaling.STATE).exists() and job.left() == {}


@pytest.mark.cluster
def test_by_hand_a_worker_of_the_description_joins_later(start, script, tmp_path):
    environments = configs({"min_workers": 1}, chief=1, worker=2, ps=1)
    program = script(COUNTS_STEPS)
    jobs = {task: start(program, environment=environments[task]) for task in environments if task != ("worker", 0)}
    chief = jobs["chief", 0]
    chief.wait_for("training: 1\n")
    jobs["worker", 0] = start(program, environment=environments["worker", 0])
    chief.wait_for("training: 0 1\n")
    chief.wait_for("worker:0 has joined the training: 2 of 2 worker groups train")
    jobs["worker", 1].process.kill()
    chief.wait_for("training: 0\n")
    chief.wait_for("worker:1 has left the training: 1 of 2 worker groups train")
    (tmp_path / "end").touch()
    assert chief.wait(60) == 0, chief.output
    assert jobs["worker", 0].wait() == 0 and jobs["ps", 0].wait() == 0


def test_a_job_in_the_background_is_named_by_its_handle(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TFDIST_STATE_DIR", str(tmp_path / "state"))
    folder, logs = JobFolder.create("local"), tmp_path / "logs"
    logs.mkdir()
    folder.write_job({"log_dir": str(logs)})
    folder.write_status(JobStatus(State.RUNNING))
    (logs / scaling.STATE).write_text('{"now": 1, "most": 2}')
    answer = threading.Timer(0.05, (logs / scaling.REQUEST).unlink)
    monkeypatch.setattr(scale_command, "ask", lambda log_dir, number: (scaling.ask(log_dir, number), answer.start()))
    assert run(["scale", f"local://{folder.id}", "worker=2"]) == 0
    folder.write_status(JobStatus(State.SUCCEEDED))
    assert run(["scale", f"local://{folder.id}", "worker=2"]) == 2
    assert f"local://{folder.id} has ended: succeeded" in capsys.readouterr().err
