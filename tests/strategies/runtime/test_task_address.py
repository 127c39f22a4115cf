"""Tasks whose names have several addresses: the one that answers counts, whatever becomes of the others."""

import contextlib
import socket
import threading

import pytest

from tfdist.cluster import Task
from tfdist.strategies.data_parallel.lost_tasks import Reach, reach
from tfdist.strategies.runtime import task_address
from tfdist.strategies.runtime.deadline import Deadline
from tfdist.strategies.runtime.task_address import connect

pytestmark = pytest.mark.slow

SERVES, SILENT, CLOSED = "127.0.0.1", "127.0.0.2", "127.0.0.3"
"""At one port: a server, nothing that answers, and a machine without a server."""


@pytest.fixture
def task(monkeypatch):
    """A function that returns a task whose name has these addresses."""
    with contextlib.ExitStack() as opened:
        server = opened.enter_context(socket.create_server((SERVES, 0)))
        port = server.getsockname()[1]
        silent = opened.enter_context(socket.create_server((SILENT, port), backlog=0))
        for _ in range(3):  # They fill its queue; the kernel drops what comes then, as a cut link does.
            waiting = opened.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(silent.getsockname())

        def named(*addresses):
            found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in addresses]
            monkeypatch.setattr(task_address.socket, "getaddrinfo", lambda *args, **kwargs: found)
            return Task("worker", 0, "name", port)

        yield named


def test_an_address_that_does_not_answer_does_not_hide_the_next(task):
    deadline = Deadline.after(60.0)
    with connect(task(SILENT, SILENT, SILENT, SERVES), deadline) as connection:
        assert connection.getpeername()[0] == SERVES and connection.gettimeout() is None
    assert not deadline.expired()


def test_an_address_that_refuses_does_not_hide_the_next(task):
    connect(task(CLOSED, SERVES), Deadline.after(5.0)).close()


def test_the_deadline_holds_for_all_addresses_together(task, monkeypatch):
    monkeypatch.setattr(task_address, "STAGGER_SECONDS", 0.01)
    tried, begin = [], task_address._begin
    monkeypatch.setattr(task_address, "_begin", lambda *arguments: tried.append(arguments) or begin(*arguments))
    with pytest.raises(TimeoutError):
        connect(task(*[SILENT] * 30), Deadline(4.5, lambda: len(tried)))  # Its clock goes on with each address.
    assert len(tried) == 5


def test_a_machine_that_refuses_is_there(task):
    with pytest.raises(ConnectionRefusedError):
        connect(task(CLOSED, SILENT), Deadline.after(0.5))
    assert reach(task(CLOSED, SILENT), Deadline.after(0.5)) is Reach.CLOSED
    assert reach(task(SILENT), Deadline.after(0.5)) is Reach.SILENT
    assert reach(task(SILENT, SILENT, SERVES), Deadline.after(3.0)) is Reach.MUTE  # It accepts and says nothing.


@pytest.mark.parametrize("hangs", [False, True])
def test_a_task_is_reached_where_it_was_while_the_name_server_gives_no_answer(task, monkeypatch, hangs):
    known, answers = task(SERVES), threading.Event()
    connect(known, Deadline.after(5.0)).close()

    def fails(*_, **__):
        if hangs:
            answers.wait(60)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(task_address.socket, "getaddrinfo", fails)
    deadline = Deadline.after(60.0)
    connect(known, deadline).close()
    assert not deadline.expired()
    answers.set()
    with pytest.raises(socket.gaierror, match="Temporary"):
        connect(Task("worker", 1, "another", 1), Deadline.after(1.0))

    def has_none(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(task_address.socket, "getaddrinfo", has_none)
    monkeypatch.setattr(task_address, "LOOK_UP_SECONDS", 30.0)  # It answers.
    with pytest.raises(socket.gaierror, match="not known"):
        connect(known, Deadline.after(5.0))
