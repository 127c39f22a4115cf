"""Tasks that wait for each other, without TensorFlow: threads of this test stand for them."""

import contextlib
import errno
import socket
import threading
import time

import pytest
from reserved import free_ports

from tfdist.cluster import Task
from tfdist.errors import StartTimeoutError
from tfdist.strategies.runtime import peers
from tfdist.strategies.runtime.deadline import Deadline
from tfdist.strategies.runtime.each_other import greet, wait_for_each_other, wait_for_server
from tfdist.strategies.runtime.peers import Missing

SETTINGS = b"\0\0\0\4\0\0\0\0\0"
"""What a server of gRPC says first."""


def free_tasks(count):
    return [Task("worker", index, "localhost", port) for index, port in enumerate(free_ports(count))]


class Waits:
    """A thread in which a task waits for the others."""

    def __init__(self, tasks, index, timeout=20.0):
        self.logged, self.error = [], None
        self._call = tasks[index], tasks, timeout, self.logged.append
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            wait_for_each_other(*self._call)
        except StartTimeoutError as error:
            self.error = str(error)

    def over(self, within):
        self._thread.join(within)
        return not self._thread.is_alive()


@contextlib.contextmanager
def tensorflow_server(task):
    """Stands for a TensorFlow server: it says what gRPC says first, and ends the connection after what it does not know."""
    with socket.create_server(("localhost", task.port)) as listener:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.sendall(SETTINGS)
                        connection.recv(4096)

        threading.Thread(target=serve, daemon=True).start()
        yield
        listener.shutdown(socket.SHUT_RDWR)


def test_tasks_go_on_when_all_of_them_wait():
    tasks = free_tasks(5)
    waiting = [Waits(tasks, index) for index in range(4)]
    assert not waiting[0].over(within=0.5)
    waiting.append(Waits(tasks, 4))
    assert all(each.over(within=15.0) and each.error is None for each in waiting)


def test_a_task_that_has_gone_on_into_tensorflow_counts_as_there():
    """The one that goes on first has greeted the others; its TensorFlow server answers no greeting."""
    tasks = free_tasks(2)
    slow = Waits(tasks, 0)
    while greet("worker:1", tasks[0], Deadline.after(5.0)) is not None:
        assert not slow.over(within=0.05)
    with tensorflow_server(tasks[1]):
        assert slow.over(within=15.0) and slow.error is None


def test_a_training_that_has_begun_without_this_task_is_not_joined_and_is_named():
    tasks = free_tasks(3)
    with tensorflow_server(tasks[0]):
        back = Waits(tasks, 1, timeout=3.0)
        assert back.over(within=15.0)
    assert "gave up after 3 s: " in back.error
    assert (
        f"a training that has begun without this task still answers at the address of worker:0 ({tasks[0].address}); end"
        in (back.error)
    )
    assert f"no answer from worker:2 ({tasks[2].address})" in back.error


def test_a_task_that_is_back_goes_on_when_the_earlier_training_has_ended_and_is_started_again():
    tasks = free_tasks(2)
    with tensorflow_server(tasks[0]):
        back = Waits(tasks, 1)
        assert not back.over(within=0.5)
    again = Waits(tasks, 0)
    assert all(each.over(within=15.0) and each.error is None for each in (back, again))


def test_a_task_that_has_had_too_many_open_files_answers_again(monkeypatch):
    accept, failures = socket.socket.accept, [OSError(errno.EMFILE, "Too many open files")] * 3

    def fails_first(self):
        if failures:
            raise failures.pop()
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", fails_first)
    first, second = free_tasks(2)
    waits = Waits([first, second], 0)
    deadline = Deadline.after(15)
    while (found := greet(second.name, first, Deadline.after(1))) is not None and not deadline.expired():
        time.sleep(0.05)
    assert found is None and not failures and not waits.over(0)


def test_who_does_not_greet_is_sent_away_at_once():
    """A task of the earlier training that connects to the new address would else wait for a server that is not there."""
    tasks = free_tasks(2)
    waits = Waits(tasks, 0, timeout=60.0)
    while True:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection((tasks[0].host, tasks[0].port)) as client:
            client.settimeout(30.0)
            client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS)
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(100) == b""
            break
    peers.note_failures(tasks, "the test is over")
    assert waits.over(within=10.0)
    peers.note_failures(tasks, None)


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (b"tfdist waits as worker:1\n", None),
        (b"tfdist waits as worker:7\n", Missing.OTHER_TASK),
        (b"tfdist waits as " + 400 * b"x", Missing.EARLIER),
        (SETTINGS, Missing.EARLIER),
        (b"", Missing.EARLIER),
    ],
)
def test_answers_to_a_greeting(answer, found):
    with socket.create_server(("localhost", 0)) as listener:

        def serve():
            connection, _ = listener.accept()
            with connection:
                connection.recv(100)
                connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        assert greet("worker:0", Task("worker", 1, "localhost", listener.getsockname()[1]), Deadline.after(5.0)) is found


def test_a_task_that_is_stopped_accepts_connections_and_says_nothing():
    with socket.create_server(("localhost", 0)) as listener:
        task = Task("worker", 1, "localhost", listener.getsockname()[1])
        assert greet("worker:0", task, Deadline.after(0.2)) is Missing.MUTE


def test_a_task_that_still_waits_for_others_is_no_server_yet():
    tasks = free_tasks(3)
    waiting, deadline = Waits(tasks, 0), Deadline.after(0.5)
    wait_for_server(tasks[1], tasks[0], deadline)
    assert deadline.expired() and not waiting.over(within=0)


def test_a_server_is_found_as_soon_as_it_listens():
    me, leader = free_tasks(2)
    found, deadline = threading.Event(), Deadline.after(20.0)

    def wait():
        wait_for_server(me, leader, deadline)
        found.set()

    threading.Thread(target=wait, daemon=True).start()
    assert not found.wait(0.3)
    with tensorflow_server(leader):
        assert found.wait(10.0) and not deadline.expired()
