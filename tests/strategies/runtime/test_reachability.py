"""Tests who reaches the TensorFlow servers of a job: only its own machine, if all of its tasks are there."""

import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading

import pytest
from reserved import free_network, free_ports
from ssh_here import namespace
from tools import needs

from tfdist.cluster import Cluster, Task
from tfdist.errors import StartTimeoutError
from tfdist.strategies.runtime import peers, reachability
from tfdist.strategies.runtime.each_other import wait_for_each_other

pytestmark = pytest.mark.slow

NUMBER = free_network()
"""Of the network between this machine and the other: 10.NUMBER.7.0/24."""

CONNECT = """
import socket, sys
for port in sys.argv[2:]:
    try:
        socket.create_connection((sys.argv[1], int(port)), 1).close()
        print(port, "reached")
    except OSError as error:
        print(port, type(error).__name__)
"""
SERVERS = """
    import time
    import tfdist
    strategy = tfdist.strategy("small.yaml")
    addresses = strategy._cluster_resolver.cluster_spec().as_dict()
    print(*[address.rpartition(":")[2] for job in ("chief", "worker", "ps") for address in addresses[job][:1]], "are the ports", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def other_machine():
    """Yields a function that connects from another machine: the words `PORT reached`, or `PORT` and an error."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    name = f"tfd{os.getpid()}{NUMBER}"

    def connect(*ports):
        command = ["ip", "netns", "exec", name, sys.executable, "-c", CONNECT, f"10.{NUMBER}.7.1", *map(str, ports)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()

    with namespace(name, NUMBER):
        yield connect


def from_here(*ports, address="127.0.0.1"):
    command = [sys.executable, "-c", CONNECT, address, *map(str, ports)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()


def cluster(*hosts):
    return Cluster(tasks=tuple(Task("worker", index, host, 2222 + index) for index, host in enumerate(hosts)))


@needs("namespaces")
@pytest.mark.parametrize("family,any_address", [(socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")])
def test_only_this_machine_reaches_a_port_with_the_filter_under_each_of_its_addresses(other_machine, family, any_address):
    with socket.socket(family) as closed, socket.socket(family) as open_to_all:
        for listener in (closed, open_to_all):
            listener.bind((any_address, 0))
            listener.listen()
        ports = [closed.getsockname()[1], open_to_all.getsockname()[1]]
        assert other_machine(*ports) == [f"{ports[0]} reached", f"{ports[1]} reached"]
        assert reachability.accept_only_this_machine({ports[0]})
        assert other_machine(*ports) == [f"{ports[0]} TimeoutError", f"{ports[1]} reached"]
        assert from_here(*ports) == from_here(*ports, address=f"10.{NUMBER}.7.1") == [f"{port} reached" for port in ports]


@needs("namespaces")
def test_other_machines_do_not_reach_tasks_that_wait_for_each_other(other_machine):
    """As those of multi_worker_mirrored do before TensorFlow listens."""
    ports = free_ports(2)
    here = [Task("worker", index, "localhost", port) for index, port in enumerate(ports)]
    apart = [Task("worker", 0, "localhost", ports[1]), Task("worker", 1, f"10.{NUMBER}.7.9", ports[1])]
    found = []

    def wait(tasks):
        with contextlib.suppress(StartTimeoutError):
            wait_for_each_other(tasks[0], tasks, 60.0, found.append)

    threads = [threading.Thread(target=wait, args=(tasks,)) for tasks in (here, apart)]
    for thread in threads:
        thread.start()
    missing = [tasks[1] for tasks in (here, apart)]
    try:
        while not all("reached" in line for line in from_here(*ports)):
            pass
        assert other_machine(*ports) == [f"{ports[0]} TimeoutError", f"{ports[1]} reached"]
    finally:
        peers.note_failures(missing, "the test is over")
        for thread in threads:
            thread.join(30)
        peers.note_failures(missing, None)


@pytest.mark.cluster
@needs("namespaces")
@pytest.mark.usefixtures("small_cluster")
def test_other_machines_do_not_reach_the_servers_of_a_job_on_this_one(other_machine, start, script):
    job = start(script(SERVERS))
    job.wait_for("are the ports")
    ports = job.output.partition(" are the ports")[0].rpartition("\n")[2].split()
    assert len(ports) == 3
    assert from_here(*ports) == [f"{port} reached" for port in ports]
    assert other_machine(*ports) == [f"{port} TimeoutError" for port in ports]


def test_a_job_on_several_machines_warns_once_that_anybody_can_use_its_servers(caplog, monkeypatch):
    monkeypatch.delenv(reachability.PRIVATE_NETWORK, raising=False)
    reachability.limit(cluster("localhost", "127.0.0.1"), warns=True)
    reachability.limit(cluster("10.0.0.1", "10.0.0.2"), warns=False)
    assert not caplog.messages
    with caplog.at_level(logging.WARNING, "tfdist"):
        reachability.limit(cluster("10.0.0.1", "10.0.0.2"), warns=True)
    (message,) = caplog.messages
    assert "10.0.0.1:2222 and 1 more" in message and "without authentication" in message and "docs/security.md" in message
    monkeypatch.setenv(reachability.PRIVATE_NETWORK, "1")
    reachability.limit(cluster("10.0.0.1", "10.0.0.2"), warns=True)
    assert len(caplog.messages) == 1
