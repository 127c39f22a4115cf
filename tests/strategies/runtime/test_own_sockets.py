"""Connections that others make to a task outlive a cut of their link."""

import os
import platform
import re
import socket
import sys

import pytest
from waits import wait_until

from tfdist.strategies.runtime.own_sockets import REPEAT_MILLISECONDS, TCP_RTO_MAX_MS, keep_connections, own_sockets


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells the sockets of a process")
def test_connections_between_tasks_are_kept_for_longer_and_no_others():
    with (
        socket.create_server(("localhost", 0)) as server,
        socket.create_server(("localhost", 0)) as other,
        socket.create_connection(server.getsockname()) as client,
        socket.create_connection(other.getsockname()) as client_of_other,
        server.accept()[0] as accepted,
        other.accept()[0] as accepted_by_other,
    ):
        assert len(list(own_sockets())) >= 6
        keep_connections({server.getsockname()[1]}, 77.0)

        def limits(name):
            both = [(accepted, client), (client_of_other, accepted_by_other)]
            return [[each.getsockopt(socket.IPPROTO_TCP, name) for each in pair] for pair in both]

        wait_until(lambda: limits(socket.TCP_USER_TIMEOUT) == [[77_000, 77_000], [0, 0]])
        if tuple(map(int, re.findall(r"\d+", platform.release())[:2])) >= (6, 15):
            wait_until(lambda: limits(TCP_RTO_MAX_MS) == [[REPEAT_MILLISECONDS] * 2, [120_000] * 2])  # Just after the other.


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells the sockets of a process")
def test_sockets_of_the_program_stay_blocking_although_it_has_set_a_default_timeout():
    """As before a download. Other libraries have sockets, too, and so do pipes of multiprocessing."""
    before = socket.getdefaulttimeout()
    both = socket.socketpair()
    try:
        socket.setdefaulttimeout(5.0)
        assert len(list(own_sockets())) >= 2
        assert [os.get_blocking(each.fileno()) for each in both] == [True, True]
    finally:
        socket.setdefaulttimeout(before)
        for each in both:
            each.close()
