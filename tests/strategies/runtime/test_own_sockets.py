"""Connections that others make to a task outlive a cut of their link."""

import socket
import sys
import time

import pytest

from tfdist.strategies.runtime.own_sockets import keep_connections, own_sockets


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells the sockets of a process")
def test_accepted_connections_are_kept_for_longer_and_no_others():
    with (
        socket.create_server(("localhost", 0)) as server,
        socket.create_server(("localhost", 0)) as other,
        socket.create_connection(server.getsockname()) as client,
        socket.create_connection(other.getsockname()) as client_of_other,
        server.accept()[0] as accepted,
        other.accept()[0] as accepted_by_other,
    ):
        assert len(list(own_sockets())) >= 6
        keep_connections(server.getsockname()[1], 77.0)

        def limit(connection):
            return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)

        latest = time.monotonic() + 10
        while limit(accepted) != 77_000 and time.monotonic() < latest:
            time.sleep(0.005)
        assert limit(accepted) == 77_000
        assert [limit(each) for each in (client, client_of_other, accepted_by_other)] == [0, 0, 0]
