"""Strangers at the TCP store, in one process over real sockets: they know the protocol, but not the run id or the secret."""

import contextlib
import json
import logging
import socket
import threading
import time

import pytest
from reserved import free_port

from tfdist.errors import ClusterError, Source
from tfdist.launch.rendezvous.stores import tcp, tcp_server
from tfdist.launch.rendezvous.stores.authentication import SECRET_VARIABLE, Seal, nonce, proof, run_secret
from tfdist.launch.rendezvous.stores.interface import StoreUnavailableError, run_key
from tfdist.launch.rendezvous.stores.tables import FullError, Limits, Tables
from tfdist.launch.rendezvous.stores.tcp import TcpStore
from tfdist.launch.rendezvous.stores.tcp_channel import Channel
from tfdist.launch.rendezvous.stores.tcp_server import TcpServer, listening_addresses
from tfdist.rank_info import RankInfo, Store

pytestmark = pytest.mark.timeout(120)

RUN_ID, SECRET = "a-run-id-that-nobody-guesses", "0123456789abcdef"
LIMITS = Limits(fields=20, stored_bytes=20_000, members=4, strangers=8, proof_seconds=1.0, idle_seconds=1.0)


def info(port=1, run_id=RUN_ID, host="127.0.0.1"):
    return RankInfo(2, 0, Source("test", "the test"), Store("tcp", host, port), run_id=run_id)


KEY = run_secret(info(), SECRET)


@pytest.fixture
def server():
    made = TcpServer(KEY, [(socket.AF_INET, ("127.0.0.1", 0))], LIMITS)
    made.tables.put("verdicts", "a", "roster", is_own=True)
    yield made
    made.close()


@pytest.fixture
def port(server):
    return server.port


class Stranger:
    """A raw connection."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), 5)
        self.file = self.socket.makefile("rb")
        self.heard = b""

    def say(self, line):
        with contextlib.suppress(OSError):
            self.socket.sendall(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")

    def hear(self):
        line = b""
        with contextlib.suppress(OSError):
            line = self.file.readline()
        self.heard += line
        return line

    def prove(self, key):
        theirs, mine = json.loads(self.hear())["nonce"], nonce()
        self.say({"nonce": mine, "proof": proof(key, "client", theirs, mine)})
        return Seal(key, "client", theirs, mine), json.loads(self.hear())

    def is_closed(self):
        """Returns whether the server has closed the connection: one that is only silent has not."""
        try:
            return self.file.readline() == b""
        except ConnectionError:
            return True
        except OSError:
            return False

    def close(self):
        self.file.close()
        self.socket.close()


@pytest.fixture
def stranger(port):
    made = []

    def connect():
        made.append(Stranger(port))
        return made[-1]

    yield connect
    for each in made:
        each.close()


def roster(server):
    return server.tables.get("verdicts")


@pytest.mark.parametrize(
    "key",
    [run_secret(info(), ""), run_secret(info(run_id=""), SECRET), run_secret(info(run_id="x"), "x" * 16), b""],
    ids=["no secret", "another run", "another secret", "nothing"],
)
def test_who_does_not_know_the_run_is_told_nothing_and_changes_nothing(server, stranger, key, caplog):
    client = stranger()
    seal, answer = client.prove(key)
    assert answer == {"refused": True}
    for request in (
        {"do": "put", "table": "verdicts", "field": "a", "text": "evil"},
        {"do": "clear"},
        {"run": run_key(info())},
    ):
        client.say(seal.line(json.dumps(request).encode()))
        client.say(request)
    assert client.is_closed() and roster(server) == {"a": "roster"}
    for text in (RUN_ID, run_key(info()), SECRET, KEY.hex()):
        assert text.encode() not in client.heard
    assert "the rendezvous refused a process at 127.0.0.1: its run id or TFDIST_RENDEZVOUS_SECRET is another" in caplog.text


def test_refused_connections_do_not_fill_the_log(stranger, caplog):
    for _ in range(8):
        stranger().prove(b"wrong")
    assert caplog.text.count("the rendezvous refused") == tcp_server.MAX_WARNINGS


@pytest.mark.parametrize(
    "line",
    [
        *(
            b"GET / HTTP/1.1\r\n",
            b"\xff" * 100 + b"\n",
            b"[" * 10_000 + b"\n",
            b"{}\n",
            b'{"nonce": [], "proof": ""}\n',
            b"null\n",
        ),
        b'{"nonce": "' + b"a" * 32 + b'", "proof": "\\ud800"}\n',
        b'{"nonce": "' + b"a" * 32 + b'", "proof": 1}\n',
        b"x" * 200_000,
    ],
)
def test_who_does_not_speak_the_protocol_is_disconnected(server, stranger, line):
    client = stranger()
    client.hear()
    client.say(line)
    client.socket.settimeout(5)
    assert client.hear() in (b"", b'{"refused": true}\n') and client.is_closed()
    assert roster(server) == {"a": "roster"}


def test_lines_that_were_altered_repeated_or_added_on_the_way_are_refused(server, stranger):
    put = json.dumps({"do": "put", "table": "members", "field": "b", "text": "x"}).encode()
    for spoil in (
        lambda seal: put + b"\n",
        lambda seal: seal.line(put).replace(b'"x"', b'"y"'),
        lambda seal: b"0" * 64 + put + b"\n",
        lambda seal: (seal.line(b"skipped"), seal.line(put))[1],
    ):
        client = stranger()
        seal, answer = client.prove(KEY)
        assert "proof" in answer
        client.say(spoil(seal))
        assert client.is_closed() and server.tables.get("members") == {}
    client = stranger()
    seal, _ = client.prove(KEY)
    line = seal.line(put)
    client.say(line)
    assert b'{"table": {}}' in client.hear()
    server.tables.clear()
    client.say(line)
    assert client.is_closed() and server.tables.get("members") == {}


@pytest.mark.parametrize(
    "request_",
    [
        {"do": "clear"},
        {"do": "clear", "table": "verdicts"},
        {"do": "put", "table": "verdicts", "field": "a", "text": "evil"},
        {"do": "remove", "table": "verdicts", "field": "a"},
        {"do": "put", "table": "other", "field": "a", "text": ""},
        {"do": "put", "table": "members", "field": "../a", "text": ""},
        {"do": "put", "table": "members", "field": "a" * 65, "text": ""},
        {"do": "put", "table": "members", "field": "a", "text": 1},
        {"do": "put", "table": [], "field": "a", "text": ""},
        [],
    ],
)
def test_even_a_process_of_the_run_cannot_change_what_the_leader_wrote(server, port, request_):
    channel = Channel(("127.0.0.1", port), KEY, 5)
    with contextlib.closing(channel), pytest.raises((OSError, StoreUnavailableError)):
        channel.ask(request_, 5)
    assert roster(server) == {"a": "roster"} and not server.tables.get("members")


def test_what_others_write_is_bounded_in_bytes_and_fields(server, port):
    with contextlib.closing(Channel(("127.0.0.1", port), KEY, 5)) as channel:
        put = {"do": "put", "table": "members", "text": "x" * 6000}
        written = 0
        with pytest.raises(StoreUnavailableError, match="the store is full"):
            for number in range(10):
                channel.ask({**put, "field": f"{number:x}"}, 5)
                written += 1
        assert written == 3
    tables = Tables(LIMITS)
    for number in range(LIMITS.fields):
        tables.put("read", f"{number:x}", "", is_own=False)
    with pytest.raises(FullError):
        tables.put("members", "a", "", is_own=False)
    tables.put("read", "0", "again", is_own=False)
    tables.put("verdicts", "a", "x" * 10**6, is_own=True)  # The leader's roster is not among them.
    tables.remove("read", "0", is_own=False)
    tables.put("members", "a", "", is_own=False)


def test_the_limits_hold_a_large_job_and_stay_small():
    entry = 900  # Bytes of a member info that names many leaders.
    for processes in (1, 2, 100, 100_000):
        limits = Limits.of(processes)
        assert limits.stored_bytes > processes * 3 * entry and limits.fields >= 3 * processes
        assert limits.stored_bytes <= (1 << 20) + processes * 4096


def test_a_line_that_is_too_long_is_not_read(server, port):
    with contextlib.closing(Channel(("127.0.0.1", port), KEY, 5)) as channel, pytest.raises((OSError, StoreUnavailableError)):
        channel.ask({"do": "put", "table": "members", "field": "a", "text": "x" * 20_000}, 5)
    assert not server.tables.get("members")


def test_a_flood_of_connections_is_bounded_and_locks_nobody_out(server, port, stranger):
    flood = [stranger() for _ in range(60)]
    with contextlib.closing(Channel(("127.0.0.1", port), KEY, 5)) as channel:
        assert channel.ask({"do": "get", "table": "verdicts"}, 5) == {"a": "roster"}
        assert len(server._strangers) <= LIMITS.strangers
        members = [Channel(("127.0.0.1", port), KEY, 5) for _ in range(12)]
        assert len(server._members) <= LIMITS.members
        assert members[-1].ask({"do": "get", "table": "verdicts"}, 5) == {"a": "roster"}
        for member in members:
            member.close()
    closed = 0
    for each in flood:
        each.socket.settimeout(30)
        each.hear()
        closed += each.is_closed()
    assert closed == 60


def test_who_says_nothing_or_one_byte_at_a_time_is_disconnected(server, stranger):
    silent, slow = stranger(), stranger()
    slow.hear()
    with pytest.raises(OSError):
        for _ in range(600):
            slow.socket.sendall(b"{")
            time.sleep(0.05)
    silent.hear()
    assert silent.is_closed()
    member = stranger()
    member.prove(KEY)
    assert member.is_closed()


@contextlib.contextmanager
def impostor(behave):
    """A server that is not tfdist's. `behave` gets each of its connections."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    connected, _ = listener.accept()
                    with connected, contextlib.suppress(OSError):
                        behave(connected)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def drip(connected):
    while True:
        connected.sendall(b"{")
        time.sleep(0.02)


def claims(connected):
    connected.sendall(json.dumps({"tfdist": 1, "nonce": nonce()}).encode() + b"\n")
    connected.recv(1000)
    connected.sendall(b'{"proof": "%s"}\n' % (b"0" * 64))


@pytest.mark.parametrize(
    ("behave", "message"),
    [
        (drip, "timed out"),
        (lambda connected: connected.sendall(b"x" * 10**7), "is not the store of a tfdist run"),
        (lambda connected: connected.sendall(b'{"nonce": "short"}\n'), "is not the store of a tfdist run"),
        (lambda connected: connected.sendall(b"[" * 900 + b"\n"), "is not the store of a tfdist run"),
        (claims, "is not the store of a tfdist run"),
    ],
)
def test_an_impostor_of_the_store_gets_no_address(behave, message, monkeypatch):
    monkeypatch.setattr(tcp, "PROBE_SECONDS", 0.4)
    with impostor(behave) as port:
        store = TcpStore(info(port), 10, serve=False)
        with pytest.raises(StoreUnavailableError, match=message):
            store.put("members", "a", "10.0.0.1:2222")


def test_processes_with_one_secret_meet_and_others_are_refused(monkeypatch):
    port = free_port()
    monkeypatch.setenv(SECRET_VARIABLE, SECRET)
    leader, member = TcpStore(info(port), 10, serve=True), TcpStore(info(port), 10, serve=False)
    monkeypatch.delenv(SECRET_VARIABLE)
    without = TcpStore(info(port), 10, serve=False)
    with contextlib.closing(leader), contextlib.closing(member), contextlib.closing(without):
        leader.put("leaders", "a", "x")
        assert member.get("leaders") == {"a": "x"} and member.own_host() == "127.0.0.1"
        member.put("members", "b", "y")
        member.clear()  # Only the process that serves clears.
        assert leader.get("members") == {"b": "y"}
        with pytest.raises(StoreUnavailableError, match="another run, or TFDIST_RENDEZVOUS_SECRET differs") as caught:
            without.get("leaders")
        assert RUN_ID not in str(caught.value) and run_key(info()) not in str(caught.value)


def test_a_short_secret_is_an_error_that_does_not_show_it(monkeypatch):
    monkeypatch.setenv(SECRET_VARIABLE, "hunter2")
    with pytest.raises(ClusterError, match="it has 7 characters; give all processes the same random 16 or more") as caught:
        TcpStore(info(), 10, serve=True)
    assert "hunter2" not in str(caught.value)


def test_a_store_that_listens_on_all_interfaces_says_so(monkeypatch, caplog):
    assert listening_addresses("127.0.0.1", 7) == ([(socket.AF_INET, ("127.0.0.1", 7))], "")
    ((_, everywhere),), why = listening_addresses("192.0.2.1", 7)
    assert (everywhere, why) == (("", 7), "192.0.2.1 is no address of this machine")
    port = free_port()
    for secret, hint in ((None, f"; set {SECRET_VARIABLE} if others can reach this machine"), (SECRET, "")):
        monkeypatch.setenv(SECRET_VARIABLE, secret) if secret else monkeypatch.delenv(SECRET_VARIABLE, raising=False)
        caplog.clear()
        store = TcpStore(info(port, host="192.0.2.1"), 10, serve=True)
        with contextlib.closing(store), caplog.at_level(logging.WARNING):
            store.put("leaders", "a", "x")
        expected = f"the rendezvous listens on all interfaces, port {port}, because 192.0.2.1 is no address of this machine"
        assert caplog.messages == [expected + hint]


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("where", ["127.0.1.1", "192.0.2.1"])
def test_a_store_that_listens_on_all_interfaces_is_reached_over_ipv6_too(monkeypatch, where):
    """The machines that have only IPv6 know another address of the name than this one, which has Debian's /etc/hosts."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (where, 0))]
    monkeypatch.setattr(tcp_server.socket, "getaddrinfo", lambda *_, **__: found)
    addresses, why = listening_addresses("h1", 0)
    monkeypatch.undo()
    assert why
    with contextlib.closing(TcpServer(KEY, addresses, LIMITS)) as server:
        for host in ("::1", "127.0.0.1"):
            Channel((host, server.port), KEY, 5.0).close()


def test_a_store_is_reached_at_every_address_of_its_name_that_is_one_of_this_machine(monkeypatch):
    """As at the IPv4 and the IPv6 address of a machine: other machines may have only one of the two."""
    port = free_port()
    hosts = ("127.0.0.2", "192.0.2.1", "127.0.0.3")
    found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port)) for host in hosts]
    monkeypatch.setattr(tcp_server.socket, "getaddrinfo", lambda *_, **__: found)
    addresses, why = listening_addresses("localhost", port)
    monkeypatch.undo()
    assert not why
    with contextlib.closing(TcpServer(KEY, addresses, LIMITS)):
        for host in ("127.0.0.2", "127.0.0.3"):
            Channel((host, port), KEY, 5.0).close()
        with pytest.raises(OSError):
            Channel(("127.0.0.4", port), KEY, 5.0)
