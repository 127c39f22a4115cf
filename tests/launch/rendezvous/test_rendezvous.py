"""The rendezvous of ranks without addresses: real processes, and real stores in a folder, at a port and in a Redis server.

Faults are in test_rendezvous_faults.py.
"""

import json
import os
import socket
import time

import pytest
from rendezvous_here import is_listening, listeners_side_by_side, met, needs_redis, outcomes
from reserved import free_port, free_ports
from waits import wait_until

from tfdist import Task
from tfdist.dialects import pytorch
from tfdist.errors import Source
from tfdist.launch.rendezvous.meet import meet
from tfdist.rank_info import RankInfo, Store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def test_all_ranks_get_the_same_cluster_in_the_order_of_ranks(start_ranks, store):
    where, remaining = store
    ranks = start_ranks(where, (2, 3), (0, 3), (1, 3))
    found = met(ranks)
    assert found[0]["tasks"] == found[1]["tasks"] == found[2]["tasks"]
    assert [outcome["task"] for outcome in found] == [("worker", 2), ("worker", 0), ("worker", 1)]
    names, addresses = zip(*(task.split() for task in found[0]["tasks"]), strict=True)
    assert names == ("worker:0", "worker:1", "worker:2") and len(set(addresses)) == 3
    for address in addresses:  # No program can take a port between the rendezvous and TensorFlow's server.
        with socket.socket() as thief, pytest.raises(OSError):
            thief.bind(("", int(address.rpartition(":")[2])))
    for rank in ranks:
        rank.pipe.close()
        rank.process.join(10)
        assert rank.process.exitcode == 0
    assert not remaining()


def test_entries_of_a_killed_run_with_the_same_run_id_are_ignored(start_ranks, store):
    where, remaining = store
    for _ in range(2):
        killed = start_ranks(where, (0, 3), (1, 3), run_id="r", limit=30)
        wait_until(remaining)
        time.sleep(0.2)
        for rank in killed:
            rank.end()
    met(start_ranks(where, (2, 3), (1, 3), (0, 3), run_id="r"))
    assert not remaining()


# A port holds one store; see the test of a port of another run.
@pytest.mark.parametrize("store", ["file", pytest.param("redis", marks=needs_redis)], indirect=True)
def test_runs_with_different_run_ids_share_a_store(start_ranks, store):
    where, _ = store
    one = start_ranks(where, (0, 2), run_id="one")
    met(start_ranks(where, (0, 2), (1, 2), run_id="two"))
    met([*start_ranks(where, (1, 2), run_id="one"), *one])


def test_ranks_wait_for_a_port_that_opens_late(start_ranks):
    store = Store("tcp", "localhost", free_port())
    ranks = start_ranks(store, (1, 3), (2, 3))
    time.sleep(0.4)
    met([*ranks, *start_ranks(store, (0, 3))])


def test_ranks_wait_for_a_folder_that_is_mounted_late(start_ranks, tmp_path):
    folder = tmp_path / "shared"
    ranks = start_ranks(Store("file", path=str(folder)), (0, 2), (1, 2))
    time.sleep(0.4)
    folder.mkdir()
    met(ranks)


@needs_redis
def test_ranks_wait_for_a_redis_server_that_starts_late_or_restarts_empty(start_ranks, redis_server):
    server = redis_server()
    ranks = start_ranks(server.store, (0, 3), (1, 3))
    time.sleep(0.4)
    server.start()
    wait_until(lambda: len(server.keys()) >= 2)
    server.end()
    server.start()
    met([*ranks, *start_ranks(server.store, (2, 3))])


def test_entries_that_tfdist_did_not_write_are_ignored(start_ranks, tmp_path):
    store = Store("file", path=str(tmp_path))
    ranks = start_ranks(store, (0, 2))
    wait_until(lambda: list(tmp_path.glob("tfdist-*/leaders/*")))
    (folder,) = tmp_path.glob("tfdist-*")
    (nonce,) = (path.name for path in folder.glob("leaders/*"))
    for table in ("members", "verdicts", "read", "leaders"):
        (folder / table).mkdir(exist_ok=True)
        (folder / table / "a").write_bytes(os.urandom(100))
        (folder / table / "b").write_text(
            json.dumps({"leaders": [nonce], "to": [nonce], "roster": {nonce: "{}"}, "job": "worker"})
        )
        (folder / table / "c").write_text("[" * 100_000)
    met([*ranks, *start_ranks(store, (1, 2))])


def test_under_torchruns_agent_the_store_is_at_the_first_free_port_beside_it(start_ranks):
    agent, neighbor = listeners_side_by_side()  # The neighbor never answers.
    with agent, neighbor:
        port = agent.getsockname()[1]
        variables = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        store = pytorch.from_environ({**variables, "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "none"}).store
        assert (store.port, store.ports) == (port + 1, 8)
        met(start_ranks(store, (0, 2), (1, 2), limit=20))


def test_two_torchruns_on_a_machine_do_not_meet(start_ranks):
    """Their run id is `none`, and each looks for its store at the eight ports after the one of its agent."""
    port = free_port()
    one = start_ranks(Store("tcp", "127.0.0.1", port, ports=8), (0, 2), run_id="none#0")
    wait_until(lambda: is_listening(port))
    met(start_ranks(Store("tcp", "127.0.0.1", port - 1, ports=8), (0, 2), (1, 2), run_id="none#0"))
    met([*start_ranks(Store("tcp", "127.0.0.1", port, ports=8), (1, 2), run_id="none#0"), *one])


def test_servers_with_described_addresses_learn_the_addresses_of_the_ranks(start_ranks):
    ports = free_ports(2)
    store = Store("tcp", "127.0.0.1", ports[0])
    described = tuple(Task("ps", index, "127.0.0.1", port) for index, port in enumerate(ports))
    more = {"servers": described, "synchronous": True}
    servers = [start_ranks(store, (None, 2), server_task=("ps", index), **more)[0] for index in range(2)]
    found = met([*servers, *start_ranks(store, (0, 2), (1, 2), **more)])
    assert len({tuple(outcome["tasks"]) for outcome in found}) == 1
    assert [task.split()[0] for task in found[0]["tasks"]] == ["worker:0", "worker:1", "ps:0", "ps:1"]
    assert found[0]["tasks"][2:] == [f"ps:{index} 127.0.0.1:{port}" for index, port in enumerate(ports)]
    assert [outcome["task"] for outcome in found] == [("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1)]
    assert found[0]["groups"] == ((0, 1),)


def test_the_slots_of_each_rank_are_exchanged(start_ranks, tmp_path):
    store = Store("file", path=str(tmp_path))
    found = outcomes([*start_ranks(store, (0, 2), slots=2), *start_ranks(store, (1, 2), slots=3)])
    assert found[0]["groups"] == found[1]["groups"] == ((0, 1, 2, 3, 4),)


def test_one_rank_needs_no_store():
    alone = meet(RankInfo(1, 0, Source("test", "the test"), slots=2))
    assert [(task.name, task.slots) for task in alone.tasks] == [("worker:0", 2)] and alone.task == ("worker", 0)
