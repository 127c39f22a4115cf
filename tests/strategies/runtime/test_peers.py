"""Waits for tasks, without TensorFlow: sockets of this test stand for them."""

import contextlib
import socket
import threading
from types import SimpleNamespace

import pytest

from tfdist.cluster import Task
from tfdist.errors import StartTimeoutError
from tfdist.strategies.runtime import peers, task_address
from tfdist.strategies.runtime.deadline import Deadline
from tfdist.strategies.runtime.each_other import greet
from tfdist.strategies.runtime.peers import Missing, port_error, wait_for_tasks
from tfdist.strategies.runtime.server_identity import why_missing


@contextlib.contextmanager
def task(answer=None, job="worker", index=0):
    """A task at a port that accepts connections. What a client sends is answered with `answer`; with None by nobody."""
    with socket.create_server(("localhost", 0)) as listener:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        received = connection.recv(4096)
                        if answer is not None:
                            connection.sendall(answer(received))
                        connection.recv(4096)  # Until the client goes.

        threading.Thread(target=serve, daemon=True).start()
        yield Task(job, index, "localhost", listener.getsockname()[1])


@contextlib.contextmanager
def closed_task(job="ps"):
    """A task at a port that nobody listens at, nor can."""
    with socket.socket() as bound:
        bound.bind(("localhost", 0))
        yield Task(job, 0, "localhost", bound.getsockname()[1])


def test_tasks_are_asked_at_the_same_time(monkeypatch):
    asked, all_asked = set(), threading.Event()

    def waits_until_all_are_asked(task, deadline):
        asked.add(task.index)
        if len(asked) == 20:
            all_asked.set()
        assert all_asked.wait(30)
        if task.index:
            raise TimeoutError
        return socket.socket()

    monkeypatch.setattr(peers, "connect", waits_until_all_are_asked)
    tasks = [Task("worker", index, "192.0.2.1", 1) for index in range(20)]
    with pytest.raises(StartTimeoutError, match=r"gave up after 2 s: no answer from worker:1 .* and 9 more; start these tasks"):
        wait_for_tasks(tasks, 2.0, print)


@pytest.mark.parametrize("why", [None, why_missing, lambda task, deadline: greet("worker:0", task, deadline)])
def test_a_name_without_an_address_is_said(why, monkeypatch):
    real = socket.getaddrinfo

    def look_up(host, *arguments, **more):  # The name servers of some networks take seconds to find out.
        if host == "h.invalid":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(host, *arguments, **more)

    monkeypatch.setattr(task_address.socket, "getaddrinfo", look_up)
    monkeypatch.setattr(peers, "LOG_SECONDS", 0.3)
    said = []
    words = r"this machine finds no address for the name of worker:0 \(h\.invalid:1\); correct that name"
    tasks = [Task("worker", 0, "h.invalid", 1), Task("worker", 1, "localhost", 1)]
    with pytest.raises(StartTimeoutError, match=words):
        wait_for_tasks(tasks, 2.0, said.append, *([why] if why else []))
    assert said[-1].endswith("; this machine finds no address for the name of worker:0 (h.invalid:1)")


def test_a_task_that_starts_later_is_found_after_short_pauses_at_first(monkeypatch):
    pauses, now = [], [0.0]

    class Event(threading.Event):
        def wait(self, timeout=None):
            pauses.append(timeout)
            now[0] += timeout
            return self.is_set()

    monkeypatch.setattr(peers, "threading", SimpleNamespace(**{**vars(threading), "Event": Event}))
    monkeypatch.setattr(peers, "time", SimpleNamespace(monotonic=lambda: now[0]))
    worker = Task("worker", 0, "localhost", 1)
    wait_for_tasks([worker], 30.0, print, lambda *_: None if now[0] > 2.0 else Missing.SILENT)
    assert pauses == sorted(pauses) and pauses[0] < 0.05 and pauses[-1] == 0.1


def test_a_tensorflow_server_is_known_by_the_names_of_its_devices():
    reply = b"\0\0\0\4\0\0\0\0\0 framed: \x0a$/job:worker/replica:0/task:1/device:CPU:0"
    with task(lambda _: reply, index=1) as worker:
        assert why_missing(worker, Deadline.after(5.0)) is None
        wait_for_tasks([worker], 5.0, print, why_missing)
    with task(lambda _: reply, job="ps", index=1) as ps:
        assert why_missing(ps, Deadline.after(5.0)) is Missing.OTHER_TASK


def test_other_programs_at_the_port_of_a_task_are_named():
    with (
        task(lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n") as http,
        task(index=1) as mute,
        closed_task() as closed,
        pytest.raises(StartTimeoutError) as error,
    ):
        wait_for_tasks([http, mute, closed], 3.0, print, why_missing)
    for sentence in (
        f"something else than a TensorFlow server answers at the address of worker:0 ({http.address}); end that program",
        f"no TensorFlow server answers, at the address of worker:1 ({mute.address}); end the program that has this port",
        f"no answer from ps:0 ({closed.address}); start these tasks",
    ):
        assert sentence in str(error.value)


def test_the_reason_why_a_port_cannot_be_used():
    with socket.create_server(("localhost", 0)) as listener:
        task = Task("ps", 0, "localhost", listener.getsockname()[1])
        assert port_error(task) == "Address already in use"
    assert port_error(task) is None


def test_a_wait_ends_when_a_task_that_it_needs_will_not_start():
    with closed_task() as ps, closed_task("worker") as worker, task(index=1) as present:
        peers.note_failures([worker], "its parent is gone")
        wait_for_tasks([present, worker], 600.0, print, is_enough=lambda missing: set(missing) <= {worker})
        threading.Timer(0.2, peers.note_failures, ([ps], "it exited with 1")).start()
        with pytest.raises(StartTimeoutError, match=rf"^gave up on ps:0 \({ps.address}\): it exited with 1$"):
            wait_for_tasks([ps, present, worker], 600.0, print, is_enough=lambda missing: set(missing) <= {worker})
        peers.note_failures([ps, worker], None)
        with pytest.raises(StartTimeoutError, match="gave up after 0 s: no answer from ps:0"):
            wait_for_tasks([ps, present], 0.3, print)
