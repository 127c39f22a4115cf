"""Which task the others have lost: what one task finds at the addresses of the others decides, not TensorFlow's error."""

import contextlib
import socket

import pytest
import tensorflow as tf
from reserved import free_port

from tfdist.cluster import Task
from tfdist.strategies.data_parallel import lost_tasks
from tfdist.strategies.data_parallel.lost_tasks import LostTasks, Reach, TaskLostError, lost, reach
from tfdist.strategies.runtime.deadline import Deadline

TASKS = [Task("worker", index, f"w{index}", 1) for index in range(4)]
SERVES, CLOSED, MUTE, SILENT = Reach.SERVES, Reach.CLOSED, Reach.MUTE, Reach.SILENT
UNHEALTHY = (
    "Error reported from /job:worker/task:1: The following tasks are unhealthy (stopped sending heartbeats):\n"
    "/job:worker/replica:0/task:1\n/job:worker/replica:0/task:2\n/job:worker/replica:0/task:3"
)
NO_HEARTBEAT = "Collective ops is aborted by: Deadline Exceeded\n\nRPC: /tensorflow.CoordinationService/Heartbeat"
RESET = (
    "Collective ops is aborted by: recvmsg:Connection reset by peer\nAdditional GRPC error information from remote target "
    "/job:worker/replica:0/task:2 while calling /tensorflow.WorkerService/RecvBuf:\nAdditional GRPC error information from "
    "remote target /job:worker/replica:0/task:3 while calling"
)


def sentence(me, others, text=""):
    """`others` has what is found at the other tasks, in their order."""
    return lost(TASKS[me], dict(zip([task for task in TASKS if task is not TASKS[me]], others, strict=True)), text)


@pytest.mark.parametrize(
    ("me", "others", "text", "begins"),
    [
        (0, [SILENT] * 3, UNHEALTHY, "worker:0 (w0:1), this task, reaches none of the 3 others: its own link is cut"),
        (1, [SILENT, SERVES, SERVES], NO_HEARTBEAT, "no answer from worker:0 (w0:1): cut off, or switched off"),
        (2, [SILENT, CLOSED, CLOSED], NO_HEARTBEAT, "no answer from worker:0 (w0:1): cut off"),
        (3, [SILENT, SILENT, SERVES], NO_HEARTBEAT, "no answer from worker:0 (w0:1), worker:1 (w1:1): cut off"),
        (0, [SERVES, MUTE, CLOSED], RESET, "no answer from worker:2 (w2:1): stopped by a signal, or too busy"),
        (0, [SERVES, CLOSED, CLOSED], RESET, "lost worker:2 (w2:1): ended, or started again"),
        (0, [SERVES, SERVES, CLOSED], "", "lost worker:3 (w3:1): ended"),
        (0, [SERVES, CLOSED, CLOSED], "", "lost worker:2 (w2:1), worker:3 (w3:1): ended"),
    ],
)
def test_the_lost_task_is_the_one_that_cannot_be_reached(me, others, text, begins):
    assert sentence(me, others, text).startswith(begins)


def test_of_two_tasks_neither_can_know_whose_link_is_cut():
    two = "no answer from worker:1 (w1:1): its link is cut, or that of worker:0 (w0:1), this task"
    assert lost(TASKS[0], {TASKS[1]: SILENT}, "") == two


def test_nothing_is_said_while_all_tasks_serve():
    assert sentence(0, [SERVES] * 3, RESET) is None


def test_an_error_is_explained_by_a_task_that_ends_a_little_later(monkeypatch):
    looks = iter([SERVES, SERVES, CLOSED])
    found = LostTasks(TASKS[0], TASKS[:2], lambda *_: next(looks)).explain(tf.errors.AbortedError(None, None, "it has gone"))
    assert isinstance(found, TaskLostError) and isinstance(found, tf.errors.UnavailableError)
    assert str(found).startswith("lost worker:1 (w1:1): ended, or started again; the training cannot go on: start the")
    monkeypatch.setattr(lost_tasks, "LOOK_SECONDS", 0.1)
    assert LostTasks(TASKS[0], TASKS[:2], lambda *_: SERVES).explain(tf.errors.AbortedError(None, None, "no")) is None


def test_a_task_that_both_ends_of_a_cut_link_answer_names_them():
    told = "Collective ops is aborted by: Error reported from /job:worker/task:1: no answer for 6 s at the address of "
    error = tf.errors.UnavailableError(None, None, f"{told}/job:worker/task:2 (w2:1)")
    found = LostTasks(TASKS[0], TASKS, lambda *_: SERVES).explain(error)
    assert str(found).startswith("the link between worker:1 (w1:1) and worker:2 (w2:1) is cut, although they answer this task;")


def test_errors_of_the_program_stay_as_they_are():
    gone = LostTasks(TASKS[0], TASKS[:2], lambda *_: CLOSED)
    assert gone.explain(tf.errors.InvalidArgumentError(None, None, "a wrong shape")) is None


@pytest.mark.parametrize(
    ("looks", "again", "aborts"),
    [
        ([CLOSED, CLOSED], [True, False], 1),
        ([CLOSED, CLOSED, CLOSED], [True, False, False], 1),
        ([CLOSED, SERVES, CLOSED], [True, False, True], 0),
        ([MUTE, MUTE, SILENT, SILENT], [False] * 4, 0),
    ],
)
def test_a_long_execution_ends_if_the_next_task_is_dead_and_not_if_it_is_stopped_or_cut_off(looks, again, aborts):
    asked, said, left = [], [], iter(looks)

    def look(task, deadline):
        asked.append(task.name)
        return next(left)

    tasks = LostTasks(TASKS[3], TASKS, look, said.append)
    assert [tasks.look_around() for _ in looks] == again
    assert set(asked) == {"worker:0"}
    assert said == ["no server at the address of /job:worker/task:0 (w0:1)"] * aborts


def test_a_long_execution_ends_if_the_next_task_was_cut_off_for_the_lost_timeout_without_a_break(monkeypatch):
    monkeypatch.setenv("TFDIST_LOST_TIMEOUT", "60")
    now, said, found = [0.0], [], [SILENT]
    tasks = LostTasks(TASKS[0], TASKS, lambda *_: found[0], said.append, lambda: now[0])
    for now[0], found[0] in ((0.0, SILENT), (59.0, SERVES), (60.0, SILENT), (119.0, SILENT)):
        tasks.look_around()
        assert said == []
    for now[0] in (120.0, 200.0):
        tasks.look_around()
        assert said == ["no answer for 60 s at the address of /job:worker/task:1 (w1:1)"]


@pytest.mark.parametrize("me", [1, 2, 3])
def test_all_look_at_the_first_task_because_without_it_nobody_tells_them(monkeypatch, me):
    monkeypatch.setenv("TFDIST_LOST_TIMEOUT", "60")
    now, said = [0.0], []
    tasks = LostTasks(TASKS[me], TASKS, lambda task, _: SILENT if task is TASKS[0] else SERVES, said.append, lambda: now[0])
    for now[0] in (0.0, 60.0, 61.0):
        tasks.look_around()
    assert said == ["no answer for 60 s at the address of /job:worker/task:0 (w0:1)"]


def test_what_is_found_at_an_address():
    task = Task("worker", 1, "localhost", free_port())
    with socket.create_server((task.host, task.port)) as listener:
        assert reach(task, Deadline.after(0.2)) is MUTE
        with contextlib.closing(listener.accept()[0]):
            pass
    assert reach(task, Deadline.after(5.0)) is CLOSED
    assert reach(Task("worker", 1, "no-such-host.invalid", 1), Deadline.after(5.0)) is SILENT


@pytest.mark.parametrize(
    ("found", "seconds", "begins"),
    [
        (CLOSED, 0.0, "lost worker:1 (w1:1): ended, or started again; the training cannot go on"),
        (MUTE, 61.0, "no answer from worker:1 (w1:1): stopped by a signal, or too busy to answer"),
        (SILENT, 61.0, "no answer from worker:1 (w1:1): its link is cut, or that of worker:0"),
        (SERVES, 1000.0, None),
    ],
)
def test_a_task_that_is_waited_for_outside_of_a_step_may_be_lost(monkeypatch, found, seconds, begins):
    now, kept = [0.0], []
    monkeypatch.setattr(lost_tasks, "keep_context", lambda: kept.append(1))
    lost_ones = LostTasks(TASKS[0], TASKS, lambda *_: found, clock=lambda: now[0])
    look, look_at_one_that_may_end = lost_ones.watch("worker:1"), lost_ones.watch("worker:1", may_end=True)
    assert look() is look_at_one_that_may_end() is None
    now[0] += seconds
    if found is CLOSED:
        assert look_at_one_that_may_end() is None
    error = look()
    assert (error is None) if begins is None else error.message.startswith(begins)
    assert bool(kept) == (begins is not None)
