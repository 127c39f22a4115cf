"""What goes wrong at the rendezvous is told in one line, by every process that is there, and within the limit."""

import socket
import sys
import time

import pytest
from rendezvous_here import PASSWORD, free_port, is_listening, messages, met, needs_redis, wait_until

from tfdist import ClusterError
from tfdist.errors import Source
from tfdist.launch.rendezvous.meet import meet
from tfdist.rank_info import RankInfo, Store

pytestmark = pytest.mark.timeout(60)


def test_a_missing_rank_is_named_to_all_who_came(start_ranks, store):
    where, what_is_left = store
    for message in messages(start_ranks(where, (0, 4), (3, 4), (1, 4), limit=1.5), "StartTimeoutError"):
        assert "rank 0 gave up after 2 s: rank 2 of 4 ranks did not come" in message
    assert not what_is_left()


def test_without_rank_0_the_others_say_so(start_ranks, store):
    where, _ = store
    (message,) = messages(start_ranks(where, (1, 3), limit=0.6), "StartTimeoutError")
    if where.kind == "tcp":
        assert "rank 1 gave up after 1 s: no store at" in message
        assert "the process that serves the store did not start" in message
    else:
        assert "rank 1 gave up after 1 s: rank 0 and rank 2 of 3 ranks did not come" in message


def test_a_rank_that_comes_twice_is_named_to_all(start_ranks, store):
    # Another rank is missing, so that nobody can leave before all are there.
    for message in messages(start_ranks(store[0], (0, 3), (1, 3), (1, 3), limit=20), "ClusterError"):
        assert "rank 1 (at " in message and "came more than once; give every process a rank of its own" in message


def test_two_runs_at_once_with_one_run_id_are_told_so(start_ranks, store):
    # Each has a rank that the other does not have: only rank 0 is there twice.
    members = start_ranks(store[0], (1, 4), (2, 4), run_id="again", limit=20)
    leaders = start_ranks(store[0], (0, 4), (0, 4), run_id="again", limit=20)
    for message in messages([*members, *leaders], "ClusterError"):
        assert "rank 0 (at " in message and "more than once" in message and "every run a run id of its own" in message


def test_a_rank_that_comes_again_within_a_second_of_the_last_is_named_to_all(start_ranks, tmp_path):
    store = Store("file", path=str(tmp_path))
    (double,) = start_ranks(store, (1, 2), waits={}, go=False)  # With the waits of a cluster.
    ranks = start_ranks(store, (0, 2), (1, 2), waits={})
    time.sleep(0.3)
    double.go()
    for message in messages([*ranks, double], "ClusterError"):
        assert "rank 1 (at " in message and "came more than once" in message


def test_a_rank_that_comes_twice_but_late_does_not_disturb_the_others_and_learns_of_it(start_ranks, tmp_path):
    store = Store("file", path=str(tmp_path))
    met(start_ranks(store, (0, 2), (1, 2)))
    (message,) = messages(start_ranks(store, (1, 2), limit=0.6), "StartTimeoutError")
    assert "rank 1 gave up after 1 s: rank 0 of 2 ranks did not come" in message


def test_who_comes_after_a_refusal_is_told_it_too(start_ranks):
    store = Store("tcp", "127.0.0.1", free_port())
    (late,) = start_ranks(store, (2, 4), limit=20, go=False)
    ranks = start_ranks(store, (0, 4), (1, 4), (1, 4), limit=20)
    time.sleep(0.4)
    late.go()
    for message in messages([*ranks, late], "ClusterError"):
        assert "rank 1 (at " in message and "came more than once" in message


def test_ranks_that_disagree_about_their_number_are_told_who_says_what(start_ranks, store):
    for message in messages(start_ranks(store[0], (0, 2), (1, 3)), "ClusterError"):
        assert "the processes disagree about the number of ranks: rank 0 says 2 and rank 1 says 3" in message


def test_a_folder_that_is_not_there_is_named(start_ranks, tmp_path):
    ranks = start_ranks(Store("file", path=str(tmp_path / "no")), (0, 2), (1, 2), limit=0.6)
    for message in messages(ranks, "StartTimeoutError"):
        assert f"gave up after 1 s: the folder {tmp_path}/no is not there" in message


def test_rank_0_that_dies_ends_the_others_within_the_limit(start_ranks):
    store = Store("tcp", "127.0.0.1", free_port())
    first, second = start_ranks(store, (0, 3), (1, 3), limit=1.5)
    wait_until(lambda: is_listening(store.port))
    time.sleep(0.3)
    first.process.kill()
    (message,) = messages([second], "StartTimeoutError")
    assert "rank 1 gave up after 2 s: no store at 127.0.0.1" in message and "or has ended" in message


@needs_redis
def test_a_redis_server_that_dies_ends_all_within_the_limit(start_ranks, redis_server):
    server = redis_server(PASSWORD)
    server.start()
    ranks = start_ranks(server.store, (0, 3), (1, 3), limit=1.5)
    wait_until(lambda: len(server.keys()) >= 2)
    server.end()
    for message in messages(ranks, "StartTimeoutError"):
        assert f"no answer from the Redis server at 127.0.0.1:{server.store.port}" in message and PASSWORD not in message


@needs_redis
@pytest.mark.parametrize("password", [None, "another-Secret"])
def test_a_password_that_is_missing_or_wrong_ends_at_once_and_is_never_shown(start_ranks, redis_server, password):
    server = redis_server(PASSWORD)
    server.start()
    wrong = Store("redis", "127.0.0.1", server.store.port, password=password)
    for message in messages(start_ranks(wrong, (0, 2), (1, 2), limit=30), "ClusterError"):
        assert "wants a" in message and "TFDIST_REDIS_PASSWORD" in message
        assert PASSWORD not in message and "another-Secret" not in message
    assert "another-Secret" not in repr(Store("redis", "h", 1, password="another-Secret"))


@needs_redis
def test_what_a_dead_run_leaves_in_redis_expires(start_ranks, redis_server):
    server = redis_server()
    server.start()
    (rank,) = start_ranks(server.store, (0, 2), limit=20)
    wait_until(server.keys)
    rank.end()
    assert server.ttls() and all(0 < ttl <= 31 for ttl in server.ttls())


def test_a_port_that_another_run_has_is_told(start_ranks):
    store = Store("tcp", "127.0.0.1", free_port())
    start_ranks(store, (0, 2), run_id="another run", limit=20)
    wait_until(lambda: is_listening(store.port))
    for message in messages(start_ranks(store, (0, 2), (1, 2), run_id="this", limit=0.6), "StartTimeoutError"):
        assert "that is the store of another run" in message


def test_a_port_that_no_run_has_is_told(start_ranks):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        store = Store("tcp", "127.0.0.1", other.getsockname()[1])
        for message in messages(start_ranks(store, (0, 2), (1, 2), limit=1.2), "StartTimeoutError"):
            assert f"gave up after 1 s: no store at 127.0.0.1, port {store.port}: " in message


def test_a_rank_that_only_its_own_machine_can_reach_is_refused_beside_others(start_ranks, tmp_path):
    store = Store("file", path=str(tmp_path))
    ranks = [*start_ranks(store, (0, 2), host="localhost"), *start_ranks(store, (1, 2), host="10.0.0.7")]
    for message in messages(ranks, "ClusterError"):
        assert "rank 0 can be reached at localhost only, and others are at 10.0.0.7:" in message


def test_several_ranks_need_a_store():
    with pytest.raises(ClusterError, match="rank 0 of 2, but nothing says where the others are; name the hosts"):
        meet(RankInfo(2, 0, Source("test", "the test")))


def test_the_client_library_of_redis_is_asked_for_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ClusterError, match=r"pip install 'tfdist\[redis\]'"):
        meet(RankInfo(2, 0, Source("test", "the test"), Store("redis", "127.0.0.1", 1)))
