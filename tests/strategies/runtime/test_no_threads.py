"""Where no threads are left (`ulimit -u`, the limit of a container) a process still looks for tasks."""

import socket
import threading

import pytest

from tfdist.cluster import Task
from tfdist.strategies.coordinator.members import probe
from tfdist.strategies.runtime.deadline import Deadline
from tfdist.strategies.runtime.peers import in_parallel
from tfdist.strategies.runtime.task_address import connect

TASKS = [Task("worker", index, "localhost", 1) for index in range(3)]


@pytest.fixture
def no_threads(monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    return lambda: monkeypatch.setattr(threading.Thread, "start", start)


def test_a_name_that_was_found_before_leads_to_the_same_task(no_threads):
    with socket.create_server(("localhost", 0)) as listener:
        task = Task("worker", 0, "localhost", listener.getsockname()[1])
        connect(task, Deadline.after(60.0)).close()
        no_threads()
        connect(task, Deadline.after(60.0)).close()


def test_tasks_are_asked_one_after_the_other(no_threads, monkeypatch):
    monkeypatch.setattr(probe, "_answers", lambda task, deadline: task.index != 1)
    no_threads()
    assert probe.answering(TASKS, Deadline.after(60.0)) == {TASKS[0], TASKS[2]}


def test_calls_are_made_one_after_the_other(no_threads):
    called = []
    no_threads()
    in_parallel(called.append, TASKS, Deadline.after(60.0))
    assert called == TASKS
