"""Whether a task answers, and the end of the connections to one that does not."""

import os
import socket
import threading

import pytest

from tfdist.cluster import Task
from tfdist.strategies.connections import answers, cut

LOCAL = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}


@pytest.fixture(params=[socket.AF_INET, socket.AF_INET6], ids=["IPv4", "IPv6"])
def listener(request):
    """A listener whose connections the kernel accepts while nobody answers, like a process that is stopped."""
    if request.param == socket.AF_INET6 and not socket.has_dualstack_ipv6():
        pytest.skip("there is no IPv6 here")
    with socket.create_server((LOCAL[request.param], 0), family=request.param) as listener:
        yield listener


def task_at(listener):
    host, port = listener.getsockname()[:2]
    return Task("worker", 1, host=host, port=port)


def test_whoever_waits_for_an_answer_sees_the_end_and_descriptors_stay_as_they_are(listener):
    with socket.create_connection(listener.getsockname()[:2], 5) as waiting:
        waiting.settimeout(5)
        before = sorted(os.listdir("/dev/fd"))
        assert cut(task_at(listener)) == 1
        assert waiting.recv(1) == b""
        assert sorted(os.listdir("/dev/fd")) == before


def test_connections_to_others_stay(listener):
    with (
        socket.create_server((listener.getsockname()[0], 0), family=listener.family) as other,
        socket.create_connection(other.getsockname()[:2], 5) as cut_off,
        socket.create_connection(listener.getsockname()[:2], 5) as kept,
    ):
        assert cut(task_at(other)) == 1
        accepted, _ = listener.accept()
        with accepted:
            accepted.sendall(b"x")
            kept.settimeout(5)
            assert kept.recv(1) == b"x"
        cut_off.settimeout(5)
        assert cut_off.recv(1) == b""


def test_a_new_connection_can_be_made_at_once(listener):
    assert cut(task_at(listener)) == 0
    with socket.create_connection(listener.getsockname()[:2], 5):
        pass


def test_a_task_whose_server_says_something_answers(listener):
    heard = []

    def serve():
        connection, _ = listener.accept()
        with connection:
            heard.append(connection.recv(100))
            connection.sendall(b"settings")

    server = threading.Thread(target=serve)
    server.start()
    assert answers(task_at(listener), 5)
    server.join(5)
    assert heard[0].startswith(b"PRI * HTTP/2.0")


def test_a_task_that_says_nothing_does_not_answer(listener):
    assert not answers(task_at(listener), 0.2)


def test_where_nothing_listens_nothing_answers(listener):
    task = task_at(listener)
    listener.close()
    assert not answers(task, 5)
