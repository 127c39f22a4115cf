"""A pytest plugin for the tests of the rendezvous: processes of a job, and real stores for them.

The processes are forked from one that has imported tfdist, so that a test waits for the rendezvous and not for Python.
"""

import importlib
import multiprocessing
import socket
import subprocess
from contextlib import closing

import pytest
from reserved import free_port
from tools import needs
from waits import wait_until

from tfdist import ClusterError
from tfdist.errors import Source, StartTimeoutError
from tfdist.launch.rendezvous import leader, member
from tfdist.launch.rendezvous.meet import meet
from tfdist.launch.rendezvous.stores import tcp
from tfdist.rank_info import RankInfo, Store

needs_redis = needs("redis")
PASSWORD = "a-Secret_of-some-length"

SHORT_WAITS = {
    (leader, "SETTLE_SECONDS"): 0.1,
    (leader, "LINGER_SECONDS"): 1.0,
    (leader, "REPEAT_SECONDS"): 0.5,
    (member, "REPEAT_SECONDS"): 0.5,
    (member, "GRACE_SECONDS"): 1.0,
    (tcp, "PROBE_SECONDS"): 0.5,
}
"""(module, constant) -> seconds, for processes on one machine."""

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["pytest", "redis", "tfdist.launch.rendezvous.meet"])


def listeners_side_by_side():
    """Returns two sockets that listen at a port and at the next one. Another program may have the next one: then others."""
    for _ in range(100):
        first, second = socket.socket(), socket.socket()
        first.bind(("127.0.0.1", 0))
        try:
            second.bind(("127.0.0.1", first.getsockname()[1] + 1))
        except (OSError, OverflowError):
            first.close()
            second.close()
            continue
        first.listen()
        second.listen()
        return first, second
    raise OSError("no two free ports side by side in 100 tries")


def is_listening(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


def take_part(pipe, rank_info, timeout, waits):
    """Runs a process of a job: reports that it started, meets the others on request, and sends the outcome."""
    for (module, name), seconds in waits.items():
        setattr(importlib.import_module(module), name, seconds)
    pipe.send("started")
    pipe.recv()
    try:
        cluster = meet(rank_info, timeout)
        outcome = {"tasks": [f"{task.name} {task.address}" for task in cluster.tasks], "task": cluster.task}
        outcome["groups"] = cluster.worker_groups
    except (ClusterError, StartTimeoutError) as error:
        outcome = {"error": type(error).__name__, "message": str(error)}
    pipe.send(outcome)
    try:
        pipe.recv()  # The process holds its port until the test has ended.
    except EOFError:
        pass


class RankProcess:
    """A started process of a job."""

    def __init__(self, rank_info, timeout, waits):
        self.pipe, theirs = _processes.Pipe()
        names = {(module.__name__, name): seconds for (module, name), seconds in waits.items()}
        self.process = _processes.Process(target=take_part, args=(theirs, rank_info, timeout, names), daemon=True)
        with theirs:
            self.process.start()

    def go(self):
        """Lets the process meet the others."""
        self.pipe.send("go")

    def outcome(self):
        assert self.pipe.poll(40)
        return self.pipe.recv()

    def end(self):
        self.process.kill()
        self.process.join(10)
        self.pipe.close()


@pytest.fixture
def start_ranks():
    """Starts the processes of ranks, `(rank, size)` each, with a store; ends them after the test.

    With `go=False` they wait for `RankProcess.go` before they meet.
    """
    ranks = []

    def start(store, *ranks_and_sizes, limit=20.0, waits=SHORT_WAITS, go=True, **fields):
        source = Source("test", "the test")
        new = [RankProcess(RankInfo(size, rank, source, store, **fields), limit, waits) for rank, size in ranks_and_sizes]
        ranks.extend(new)
        assert all(rank.outcome() == "started" for rank in new)
        for rank in new if go else ():  # All at the same time, however busy the machine is.
            rank.go()
        return new

    yield start
    for rank in ranks:
        rank.end()


def outcomes(ranks):
    return [rank.outcome() for rank in ranks]


def met(ranks):
    """Returns the outcomes of ranks that must have met."""
    found = outcomes(ranks)
    assert all("tasks" in outcome for outcome in found), found
    return found


def messages(ranks, error):
    """Returns the messages of ranks that must have failed with `error`: one line each."""
    found = outcomes(ranks)
    assert [outcome.get("error") for outcome in found] == [error] * len(ranks), found
    assert all("\n" not in outcome["message"] for outcome in found)
    return [outcome["message"] for outcome in found]


class Redis:
    """A real Redis server. A test may start it late and kill it early."""

    def __init__(self, folder, password=None):
        self.folder = folder
        self.store = Store("redis", "127.0.0.1", free_port(), password=password)
        self.process = None

    def start(self):
        words = ["--port", str(self.store.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        words += ["--dir", str(self.folder), *(["--requirepass", self.store.password] if self.store.password else [])]
        self.process = subprocess.Popen(["redis-server", *words], stdout=subprocess.DEVNULL)
        wait_until(lambda: is_listening(self.store.port))

    def client(self):
        import redis

        return closing(redis.Redis(port=self.store.port, password=self.store.password))

    def keys(self):
        with self.client() as client:
            return client.keys("*")

    def ttls(self):
        with self.client() as client:
            return [client.ttl(key) for key in client.keys("*")]

    def end(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait(60)


@pytest.fixture
def redis_server(tmp_path):
    servers = []

    def make(password=None):
        servers.append(Redis(tmp_path, password))
        return servers[-1]

    yield make
    for server in servers:
        server.end()


@pytest.fixture(params=["file", "tcp", pytest.param("redis", marks=needs_redis)])
def store(request, tmp_path, redis_server):
    """A store of each kind, and a function that returns what remains in it."""
    if request.param == "file":
        return Store("file", path=str(tmp_path)), lambda: list(tmp_path.iterdir())
    if request.param == "tcp":
        port = free_port()
        return Store("tcp", "127.0.0.1", port), lambda: is_listening(port)
    server = redis_server(PASSWORD)
    server.start()
    return server.store, server.keys
