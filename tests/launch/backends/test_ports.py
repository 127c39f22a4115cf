"""Held ports: reserved from the moment they are chosen until a task listens."""

import socket

import pytest
from reserved import free_port

from tfdist import Cluster, ClusterError, Task
from tfdist.errors import StartTimeoutError
from tfdist.launch.backends.local.ports import HeldPorts, is_local
from tfdist.strategies.runtime.each_other import wait_for_each_other


@pytest.fixture
def ports():
    held = HeldPorts()
    yield held
    held.close()


def bound(port=0, reuse=False):
    s = socket.socket()
    if reuse:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    s.bind(("", port))
    return s


def test_only_a_task_can_bind_a_held_port(ports):
    cluster = ports.hold(Cluster((Task("chief", 0),)), {"chief:0"})
    port = cluster.tasks[0].port
    with pytest.raises(OSError):
        bound(port)
    with bound(port, reuse=True) as task:
        task.listen()
        socket.create_connection(("localhost", port), 1).close()


def test_two_launchers_never_hold_the_same_port(ports):
    other = HeldPorts()
    one = Cluster((Task("worker", 0), Task("worker", 1)))
    names = {"worker:0", "worker:1"}
    first = {task.port for task in ports.hold(one, names).tasks}
    second = {task.port for task in other.hold(one, names).tasks}
    other.close()
    assert not first & second


def test_open_ports_become_the_usual_ones_where_these_are_free(ports, monkeypatch):
    usual = free_port()
    monkeypatch.setattr(Cluster.addressed, "__defaults__", (usual,))  # Another job may have the real one.
    assert ports.hold(Cluster((Task("worker", 0),)), {"worker:0"}).tasks[0].address == f"localhost:{usual}"


def test_a_described_port_that_is_taken_is_an_error(ports):
    with bound() as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ClusterError, match=f"port {port} of ps:0 is in use"):
            ports.hold(Cluster((Task("ps", 0, "localhost", port), Task("worker", 0))), {"ps:0"})


def test_connections_of_a_server_that_has_ended_do_not_take_its_port(ports):
    port = free_port()
    with socket.create_server(("localhost", port)) as server, socket.create_connection(("localhost", port)):
        server.accept()[0].close()  # The side that closes first keeps the port: TIME_WAIT.
    cluster = Cluster((Task("ps", 0, "localhost", port), Task("worker", 0)))
    ports.hold(cluster, {"ps:0"})
    with pytest.raises(ClusterError, match=f"port {port} of ps:0 is in use"):
        HeldPorts().hold(cluster, {"ps:0"})
    with socket.socket() as task:  # As TensorFlow binds it.
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            task.setsockopt(socket.SOL_SOCKET, option, 1)
        task.bind(("", port))
        task.listen()
        with pytest.raises(ClusterError, match=f"port {port} of ps:0 is in use"):
            HeldPorts().hold(cluster, {"ps:0"})


def test_only_one_of_two_launchers_holds_a_port_that_both_bind_at_the_same_moment(ports, monkeypatch):
    port = free_port()
    with socket.create_server(("localhost", port)) as server, socket.create_connection(("localhost", port)):
        server.accept()[0].close()
    cluster = Cluster((Task("worker", 0),))
    monkeypatch.setattr(Cluster.addressed, "__defaults__", (port,))
    other, held = HeldPorts(), []

    class Socket(socket.socket):
        def bind(self, address):
            super().bind(address)
            if address == ("", port) and not held:
                held.append(None)
                held[0] = other.hold(cluster, {"worker:0"}).tasks[0].port

    monkeypatch.setattr(socket, "socket", Socket)
    mine = ports.hold(cluster, {"worker:0"}).tasks[0].port
    other.close()
    assert held[0] is not None and port in (mine, held[0]) and mine != held[0]


def test_closing_frees_the_ports():
    port = free_port()  # Connections of earlier jobs may keep the usual one for a minute (TIME_WAIT).
    held = HeldPorts()
    held.hold(Cluster((Task("chief", 0, "localhost", port),)), {"chief:0"})
    with pytest.raises(OSError):
        bound(port)
    held.close()
    bound(port).close()


def test_a_task_shares_a_port_with_its_launcher_and_reports_one_that_another_job_holds(ports, monkeypatch):
    me = Task("worker", 0, "localhost", ports.hold(Cluster((Task("worker", 0),)), {"worker:0"}).tasks[0].port)
    monkeypatch.delenv("TF_GRPC_REUSE_PORT", raising=False)
    with pytest.raises(StartTimeoutError, match=f"worker:0 cannot listen at localhost:{me.port}: Address already in use; free"):
        wait_for_each_other(me, [me], 1.0, print)
    monkeypatch.setenv("TF_GRPC_REUSE_PORT", "1")
    wait_for_each_other(me, [me], 1.0, print)


@pytest.mark.parametrize(
    ("host", "local"),
    [
        (None, True),
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.0.1.1", True),
        ("192.0.2.1", False),
        ("no.such.host.invalid", False),
    ],
)
def test_which_hosts_are_this_machine(host, local):
    assert is_local(host) is local
    assert is_local(socket.gethostname())
