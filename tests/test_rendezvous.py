"""Ranks that know no addresses meet: real processes, and real stores in a folder, at a port and in a Redis server."""

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tfdist import ClusterError
from tfdist.dialects import pytorch
from tfdist.errors import Source
from tfdist.launch.rendezvous import meet
from tfdist.membership import Membership, Store

PROGRAM = Path(__file__).parent / "programs" / "rendezvous.py"
NO_REDIS = (
    "redis-server is not installed (apt-get install redis-server)"
    if shutil.which("redis-server") is None
    else "the client library is not installed (pip install redis)"
    if importlib.util.find_spec("redis") is None
    else ""
)
needs_redis = pytest.mark.skipif(bool(NO_REDIS), reason=NO_REDIS)
STORES = ["file", "tcp", pytest.param("redis", marks=needs_redis)]
PASSWORD = "a-Secret_of-some-length"

pytestmark = pytest.mark.timeout(60)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_until(is_so, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_listening(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


class Rank:
    """A started process of a job."""

    def __init__(self, described, limit, *words):
        command = [sys.executable, str(PROGRAM), json.dumps(described), str(limit), *words]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def has_started(self):
        return self.process.stdout.readline() == b"started\n"

    def outcome(self):
        line = self.process.stdout.readline()
        return json.loads(line)

    def end(self):
        self.process.kill()
        self.process.wait(10)
        for pipe in (self.process.stdin, self.process.stdout):
            pipe.close()


@pytest.fixture
def start():
    """Starts ranks, `(rank, size)` each, with a store; ends them after the test."""
    ranks = []

    def start_ranks(store, *who, limit=10.0, words=(), **more):
        new = [Rank({"rank": rank, "size": size, "store": store, **more}, limit, *words) for rank, size in who]
        ranks.extend(new)
        assert all(rank.has_started() for rank in new)
        for rank in new:  # All together, however busy the machine is.
            rank.process.stdin.write(b"go\n")
            rank.process.stdin.flush()
        return new

    yield start_ranks
    for rank in ranks:
        rank.end()


class Redis:
    """A real server, which may be started late and killed early."""

    def __init__(self, folder, password=None):
        self.port, self.password, self.folder = free_port(), password, folder
        self.process = None

    def start(self):
        words = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(self.folder)]
        words += ["--requirepass", self.password] if self.password else []
        self.process = subprocess.Popen(["redis-server", *words], stdout=subprocess.DEVNULL)
        wait_until(lambda: is_listening(self.port))

    def keys(self):
        import redis

        with redis.Redis(port=self.port, password=self.password) as client:
            return client.keys("*")

    def ttls(self):
        import redis

        with redis.Redis(port=self.port, password=self.password) as client:
            return [client.ttl(key) for key in client.keys("*")]

    def end(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)


@pytest.fixture
def redis_server(tmp_path):
    servers = []

    def make(password=None):
        servers.append(Redis(tmp_path, password))
        return servers[-1]

    yield make
    for server in servers:
        server.end()


@pytest.fixture(params=STORES)
def store(request, tmp_path, redis_server):
    """A description of each kind of store, and what looks whether anything is left in it."""
    if request.param == "file":
        return {"kind": "file", "path": str(tmp_path)}, lambda: list(tmp_path.iterdir())
    if request.param == "tcp":
        port = free_port()
        return {"kind": "tcp", "host": "127.0.0.1", "port": port}, lambda: is_listening(port)
    server = redis_server(PASSWORD)
    server.start()
    return {"kind": "redis", "host": "127.0.0.1", "port": server.port, "password": server.password}, server.keys


def outcomes(ranks):
    return [rank.outcome() for rank in ranks]


def messages(ranks, kind):
    found = outcomes(ranks)
    assert [outcome.get("error") for outcome in found] == [kind] * len(ranks), found
    assert all("\n" not in outcome["message"] for outcome in found)
    return [outcome["message"] for outcome in found]


def test_ranks_meet_and_all_have_the_same_cluster_in_the_order_of_ranks(start, store):
    described, what_is_left = store
    ranks = start(described, (2, 3), (0, 3), (1, 3), words=["hold"])
    found = outcomes(ranks)
    assert all("tasks" in outcome for outcome in found), found
    assert found[0]["tasks"] == found[1]["tasks"] == found[2]["tasks"]
    assert [outcome["task"] for outcome in found] == [["worker", 2], ["worker", 0], ["worker", 1]]
    names, addresses = zip(*(task.split() for task in found[0]["tasks"]), strict=True)
    assert names == ("worker:0", "worker:1", "worker:2") and len(set(addresses)) == 3
    for address in addresses:  # Nobody takes a port between the meeting and TensorFlow's server.
        with socket.socket() as thief, pytest.raises(OSError):
            thief.bind(("", int(address.rpartition(":")[2])))
    for rank in ranks:
        rank.process.stdin.close()
        assert rank.process.wait(10) == 0
    assert not what_is_left()


def test_a_missing_rank_is_named_to_all_who_came(start, store):
    for message in messages(start(store[0], (0, 4), (3, 4), (1, 4), limit=4), "StartTimeoutError"):
        assert "rank 0 gave up after 4 s: rank 2 of 4 ranks did not come" in message
    assert not store[1]()


def test_without_rank_0_the_others_say_so(start, store):
    messages_ = messages(start(store[0], (1, 3), limit=1.6), "StartTimeoutError")
    served = "the process that serves the store did not start"
    expected = served if store[0]["kind"] == "tcp" else "rank 0 and rank 2 of 3 ranks did not come"
    assert all(
        f"rank 1 gave up after 2 s: {'no store at' if expected == served else expected}" in message for message in messages_
    )
    assert all(expected in message for message in messages_)


def test_a_rank_that_comes_twice_is_named_to_all(start, store):
    # Another rank is missing, so that nobody can leave before all are there.
    for message in messages(start(store[0], (0, 3), (1, 3), (1, 3), limit=20), "ClusterError"):
        assert "rank 1 (at " in message and "came more than once; give every process a rank of its own" in message


def test_two_runs_at_once_with_one_run_id_are_told_so(start, store):
    members = start(store[0], (1, 3), (1, 3), run_id="again", limit=20)
    leaders = start(store[0], (0, 3), (0, 3), run_id="again", limit=20)
    for message in messages([*members, *leaders], "ClusterError"):
        assert "rank 0 (at " in message and "more than once" in message and "every run a run id of its own" in message


def test_a_rank_that_comes_twice_but_late_does_not_disturb_the_others_and_learns_of_it(start, tmp_path):
    described = {"kind": "file", "path": str(tmp_path)}
    assert all("tasks" in outcome for outcome in outcomes(start(described, (0, 2), (1, 2))))
    (message,) = messages(start(described, (1, 2), limit=1), "StartTimeoutError")
    assert "rank 1 gave up after 1 s: rank 0 of 2 ranks did not come" in message


def test_ranks_that_disagree_about_their_number_are_told_who_says_what(start, store):
    for message in messages(start(store[0], (0, 2), (1, 3)), "ClusterError"):
        assert "the processes disagree about the number of ranks: rank 0 says 2 and rank 1 says 3" in message


def test_what_a_killed_run_has_left_under_the_same_run_id_is_told_from_this_run(start, store):
    for _ in range(2):
        killed = start(store[0], (0, 3), (1, 3), run_id="r", limit=30)
        wait_until(lambda: store[1]())
        time.sleep(0.5)
        for rank in killed:
            rank.end()
    found = outcomes(start(store[0], (2, 3), (1, 3), (0, 3), run_id="r"))
    assert all("tasks" in outcome for outcome in found), found
    assert not store[1]()


def test_runs_with_run_ids_of_their_own_share_a_store(start, store):
    if store[0]["kind"] == "tcp":
        pytest.skip("a port holds one store; see the test of a store of another run")
    one = start(store[0], (0, 2), run_id="one")
    two = start(store[0], (0, 2), (1, 2), run_id="two")
    assert all("tasks" in outcome for outcome in outcomes(two))
    assert all("tasks" in outcome for outcome in outcomes([*start(store[0], (1, 2), run_id="one"), *one]))


@needs_redis
def test_what_a_dead_run_leaves_in_redis_expires(start, redis_server):
    server = redis_server()
    server.start()
    (rank,) = start({"kind": "redis", "host": "127.0.0.1", "port": server.port}, (0, 2), limit=20)
    wait_until(server.keys)
    rank.end()
    assert server.ttls() and all(0 < ttl <= 31 for ttl in server.ttls())


def test_a_port_that_opens_late_is_waited_for(start):
    described = {"kind": "tcp", "host": "localhost", "port": free_port()}
    ranks = start(described, (1, 3), (2, 3))
    time.sleep(1)
    assert all("tasks" in outcome for outcome in outcomes([*ranks, *start(described, (0, 3))]))


def test_a_folder_that_is_mounted_late_is_waited_for(start, tmp_path):
    folder = tmp_path / "shared"
    ranks = start({"kind": "file", "path": str(folder)}, (0, 2), (1, 2))
    time.sleep(0.7)
    folder.mkdir()
    assert all("tasks" in outcome for outcome in outcomes(ranks))


@needs_redis
def test_a_redis_server_that_starts_late_or_anew_and_empty_is_waited_for(start, redis_server):
    server = redis_server()
    described = {"kind": "redis", "host": "127.0.0.1", "port": server.port}
    ranks = start(described, (0, 3), (1, 3))
    time.sleep(0.5)
    server.start()
    wait_until(lambda: len(server.keys()) >= 2)
    server.end()
    server.start()
    assert all("tasks" in outcome for outcome in outcomes([*ranks, *start(described, (2, 3))]))


def test_a_folder_that_is_not_there_is_named(start, tmp_path):
    for message in messages(
        start({"kind": "file", "path": str(tmp_path / "no")}, (0, 2), (1, 2), limit=1), "StartTimeoutError"
    ):
        assert f"gave up after 1 s: the folder {tmp_path}/no is not there" in message


def test_rank_0_that_dies_ends_the_others_within_the_limit(start):
    described = {"kind": "tcp", "host": "127.0.0.1", "port": free_port()}
    first, second = start(described, (0, 3), (1, 3), limit=2.5)
    time.sleep(0.5)
    first.process.send_signal(signal.SIGKILL)
    (message,) = messages([second], "StartTimeoutError")
    assert "rank 1 gave up after 2 s: no store at 127.0.0.1" in message and "or has ended" in message


@needs_redis
def test_a_redis_server_that_dies_ends_all_within_the_limit(start, redis_server):
    server = redis_server(PASSWORD)
    server.start()
    described = {"kind": "redis", "host": "127.0.0.1", "port": server.port, "password": PASSWORD}
    ranks = start(described, (0, 3), (1, 3), limit=2)
    wait_until(lambda: len(server.keys()) >= 2)
    server.end()
    for message in messages(ranks, "StartTimeoutError"):
        assert f"no answer from the Redis server at 127.0.0.1:{server.port}" in message and PASSWORD not in message


@needs_redis
@pytest.mark.parametrize("password", [None, "another-Secret"])
def test_a_password_that_is_missing_or_wrong_ends_at_once_and_is_never_shown(start, redis_server, password):
    server = redis_server(PASSWORD)
    server.start()
    described = {"kind": "redis", "host": "127.0.0.1", "port": server.port, "password": password}
    ranks = start(described, (0, 2), (1, 2), limit=30)
    for message in messages(ranks, "ClusterError"):
        assert "wants a" in message and "TFDIST_REDIS_PASSWORD" in message
        assert PASSWORD not in message and "another-Secret" not in message
    assert "another-Secret" not in repr(Store("redis", "h", 1, password="another-Secret"))


def test_a_port_scanner_a_browser_and_a_flood_do_not_disturb_the_meeting(start):
    port = free_port()
    described = {"kind": "tcp", "host": "127.0.0.1", "port": port}
    (first,) = start(described, (0, 2))
    wait_until(lambda: is_listening(port))
    garbage = [
        b"GET / HTTP/1.1\r\n\r\n",
        os.urandom(1000) + b"\n",
        b"x" * 1_000_000,
        b"[" * 10_000 + b"\n",
        b"{}\n",
        b'{"run": 1}\n',
    ]
    garbage += [b'{"run": "%s", "do": "drop"}\n' % b"0" * 16, b"\n", b""]
    with contextlib.ExitStack() as open_connections:
        for bytes_ in garbage:
            stranger = open_connections.enter_context(socket.create_connection(("127.0.0.1", port), 5))
            with contextlib.suppress(OSError):
                stranger.sendall(bytes_)
        found = outcomes([first, *start(described, (1, 2))])
    assert all("tasks" in outcome for outcome in found), found


def test_a_port_that_somebody_else_has_is_told(start):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        described = {"kind": "tcp", "host": "127.0.0.1", "port": other.getsockname()[1]}
        other.close()
        start(described, (0, 2), run_id="another run", limit=20)
        for message in messages(start(described, (0, 2), (1, 2), run_id="this", limit=1.5), "StartTimeoutError"):
            assert "that is the store of another run" in message


def test_under_torchruns_agent_the_store_is_at_the_first_free_port_beside_it(start, monkeypatch):
    with socket.socket() as agent, socket.socket() as neighbour:
        agent.bind(("127.0.0.1", 0))
        port = agent.getsockname()[1]
        neighbour.bind(("127.0.0.1", port + 1))
        agent.listen()
        neighbour.listen()
        variables = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        described = pytorch.from_environ(
            {**variables, "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "none"}
        ).store
        assert (described.port, described.ports) == (port + 1, 8)
        text = {"kind": "tcp", "host": "127.0.0.1", "port": described.port, "ports": described.ports}
        found = outcomes(start(text, (0, 2), (1, 2), limit=20))
        assert all("tasks" in outcome for outcome in found), found


def test_tasks_with_known_addresses_come_too_and_hear_where_the_ranks_are(start):
    ports = free_port(), free_port()
    store = {"kind": "tcp", "host": "127.0.0.1", "port": ports[0]}
    known = [["ps", index, "127.0.0.1", port] for index, port in enumerate(ports)]
    servers = [start(store, (None, 2), known=known, known_task=["ps", index], synchronous=True)[0] for index in range(2)]
    found = outcomes([*servers, *start(store, (0, 2), (1, 2), known=known, synchronous=True)])
    assert len({tuple(outcome["tasks"]) for outcome in found}) == 1
    assert [task.split()[0] for task in found[0]["tasks"]] == ["worker:0", "worker:1", "ps:0", "ps:1"]
    assert found[0]["tasks"][2:] == [f"ps:{index} 127.0.0.1:{port}" for index, port in enumerate(ports)]
    assert [outcome["task"] for outcome in found] == [["ps", 0], ["ps", 1], ["worker", 0], ["worker", 1]]
    assert found[0]["groups"] == [[0, 1]]


def test_slots_of_each_rank_go_with_it(start, tmp_path):
    store = {"kind": "file", "path": str(tmp_path)}
    found = outcomes([*start(store, (0, 2), slots=2), *start(store, (1, 2), slots=3)])
    assert found[0]["groups"] == found[1]["groups"] == [[0, 1, 2, 3, 4]]


def test_a_rank_that_only_its_own_machine_can_reach_is_refused_beside_others(start, tmp_path):
    store = {"kind": "file", "path": str(tmp_path)}
    ranks = [*start(store, (0, 2), host="localhost"), *start(store, (1, 2), host="10.0.0.7")]
    for message in messages(ranks, "ClusterError"):
        assert "rank 0 can be reached at localhost only, and others are at 10.0.0.7:" in message


def test_a_store_with_entries_that_tfdist_did_not_write_is_no_danger(start, tmp_path):
    ranks = start({"kind": "file", "path": str(tmp_path)}, (0, 2))
    wait_until(lambda: list(tmp_path.glob("tfdist-*/leaders/*")))
    (folder,) = tmp_path.glob("tfdist-*")
    (nonce,) = (path.name for path in folder.glob("leaders/*"))
    for table in ("members", "verdicts", "read", "leaders"):
        (folder / table).mkdir(exist_ok=True)
        (folder / table / "a").write_bytes(os.urandom(100))
        (folder / table / "b").write_text(
            json.dumps({"answers": [nonce], "to": [nonce], "roster": {nonce: "{}"}, "job": "worker"})
        )
        (folder / table / "c").write_text("[" * 100_000)
    found = outcomes([*ranks, *start({"kind": "file", "path": str(tmp_path)}, (1, 2))])
    assert all("tasks" in outcome for outcome in found), found


def test_one_rank_needs_no_store_and_several_do():
    source = Source("test", "the test")
    alone = meet(Membership(1, 0, source, slots=2))
    assert [(task.name, task.slots) for task in alone.tasks] == [("worker:0", 2)] and alone.task == ("worker", 0)
    with pytest.raises(ClusterError, match="rank 0 of 2, but nothing says where the others are; name the hosts"):
        meet(Membership(2, 0, source))


def test_the_client_library_of_redis_is_asked_for_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ClusterError, match=r"pip install 'tfdist\[redis\]'"):
        meet(Membership(2, 0, Source("test", "the test"), Store("redis", "127.0.0.1", 1)))
