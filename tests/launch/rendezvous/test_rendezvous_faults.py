"""Faults at the rendezvous: every process that is present reports them in one line, within its timeout."""

import socket
import sys
import time
from urllib.parse import quote

import pytest
from rendezvous_here import PASSWORD, SHORT_WAITS, is_listening, messages, met, needs_redis
from reserved import free_port
from waits import wait_until

from tfdist import ClusterError
from tfdist.errors import Source
from tfdist.launch.rendezvous import leader
from tfdist.launch.rendezvous.meet import meet
from tfdist.launch.rendezvous.stores.interface import run_key
from tfdist.launch.rendezvous.stores.redis import RedisStore
from tfdist.rank_info import RankInfo, Store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

LINGERING = {**SHORT_WAITS, (leader, "LINGER_SECONDS"): 3.0}
"""Waits for a busy machine, where a process may come a second after the others have found an error."""


def test_every_present_rank_names_a_missing_rank(start_ranks, store):
    where, remaining = store
    for message in messages(start_ranks(where, (0, 4), (3, 4), (1, 4), limit=3), "StartTimeoutError"):
        assert "rank 0 gave up after 3 s: rank 2 of 4 ranks did not come" in message
    assert not remaining()


def test_the_others_report_a_missing_rank_0(start_ranks, store):
    where, _ = store
    (message,) = messages(start_ranks(where, (1, 3), limit=2), "StartTimeoutError")
    if where.kind == "tcp":
        assert "rank 1 gave up after 2 s: no store at" in message
        assert "the process that serves the store did not start" in message
    else:
        assert "rank 1 gave up after 2 s: rank 0 and rank 2 of 3 ranks did not come" in message


def test_every_process_reports_a_rank_that_comes_twice(start_ranks, store):
    # Another rank is missing, so that no process can leave before all are present.
    ranks = start_ranks(store[0], (0, 3), (1, 3), (1, 3), limit=20, waits=LINGERING)
    for message in messages(ranks, "ClusterError"):
        assert "rank 1 (at " in message and "came more than once; give every process a different rank" in message


def test_every_process_reports_two_runs_at_once_with_one_run_id(start_ranks, store):
    # Each has a rank that the other does not have: only rank 0 is there twice.
    ranks = start_ranks(store[0], (1, 4), (2, 4), (0, 4), (0, 4), run_id="again", limit=20, waits=LINGERING)
    for message in messages(ranks, "ClusterError"):
        assert "rank 0 (at " in message and "more than once" in message and "every run a different run id" in message


def test_every_process_reports_a_rank_that_comes_again_just_after_the_last(start_ranks, tmp_path):
    store = Store("file", path=str(tmp_path))
    waits = {(leader, "SETTLE_SECONDS"): 3.0}  # Else a second, of which a busy machine may need most here.
    (double,) = start_ranks(store, (1, 2), waits=waits, go=False)
    ranks = start_ranks(store, (0, 2), (1, 2), waits=waits)
    time.sleep(0.3)
    double.go()
    for message in messages([*ranks, double], "ClusterError"):
        assert "rank 1 (at " in message and "came more than once" in message


def test_a_second_process_of_a_rank_that_comes_late_times_out_alone(start_ranks, tmp_path):
    store = Store("file", path=str(tmp_path))
    met(start_ranks(store, (0, 2), (1, 2)))
    (message,) = messages(start_ranks(store, (1, 2), limit=2), "StartTimeoutError")
    assert "rank 1 gave up after 2 s: rank 0 of 2 ranks did not come" in message


def test_a_process_that_comes_after_an_error_reports_it_too(start_ranks):
    store = Store("tcp", "127.0.0.1", free_port())
    (late,) = start_ranks(store, (2, 4), limit=20, go=False)
    ranks = start_ranks(store, (0, 4), (1, 4), (1, 4), limit=20, waits=LINGERING)
    time.sleep(1.5)  # Both have renewed their entries, so they live.
    late.go()
    for message in messages([*ranks, late], "ClusterError"):
        assert "rank 1 (at " in message and "came more than once" in message


def test_ranks_that_disagree_about_their_number_report_what_each_says(start_ranks, store):
    for message in messages(start_ranks(store[0], (0, 2), (1, 3)), "ClusterError"):
        assert "the processes disagree about the number of ranks: rank 0 says 2 and rank 1 says 3" in message


def test_a_folder_that_does_not_exist_is_named(start_ranks, tmp_path):
    ranks = start_ranks(Store("file", path=str(tmp_path / "no")), (0, 2), (1, 2), limit=2)
    for message in messages(ranks, "StartTimeoutError"):
        assert f"gave up after 2 s: the folder {tmp_path}/no does not exist" in message


def test_when_rank_0_dies_the_others_end_within_the_timeout(start_ranks):
    store = Store("tcp", "127.0.0.1", free_port())
    first, second = start_ranks(store, (0, 3), (1, 3), limit=4)
    wait_until(lambda: is_listening(store.port))
    time.sleep(1.0)
    first.process.kill()
    (message,) = messages([second], "StartTimeoutError")
    assert "rank 1 gave up after 4 s: no store at 127.0.0.1" in message and "or has ended" in message


@needs_redis
def test_when_the_redis_server_dies_all_end_within_the_timeout(start_ranks, redis_server):
    server = redis_server(PASSWORD)
    server.start()
    ranks = start_ranks(server.store, (0, 3), (1, 3), limit=4)
    wait_until(lambda: len(server.keys()) >= 2)
    server.end()
    for message in messages(ranks, "StartTimeoutError"):
        assert f"no answer from the Redis server at 127.0.0.1:{server.store.port}" in message and PASSWORD not in message


@needs_redis
@pytest.mark.parametrize("password", [None, "another-Secret"])
def test_a_missing_or_wrong_password_is_an_immediate_error_that_never_shows_it(start_ranks, redis_server, password):
    server = redis_server(PASSWORD)
    server.start()
    wrong = Store("redis", "127.0.0.1", server.store.port, password=password)
    for message in messages(start_ranks(wrong, (0, 2), (1, 2), limit=30), "ClusterError"):
        assert ("refuses this password" if password else "wants a password") in message
        assert "TFDIST_REDIS_PASSWORD" in message
        assert PASSWORD not in message and "another-Secret" not in message
    assert "another-Secret" not in repr(Store("redis", "h", 1, password="another-Secret"))


@pytest.mark.parametrize("password", [PASSWORD, "p@ss/w:rd' \"\n", "hunter2" * 40])
def test_no_message_has_a_part_of_the_password(password):
    import redis

    store = RedisStore(RankInfo(2, 0, Source("test", "t"), Store("redis", "h", 1, password=password)), 1, 1)
    for text in (f"{'x' * 190}{password}", f"AUTH {password!r}", f"redis://:{password}@h", f"redis://:{quote(password)}@h"):

        def fail(text=text):
            raise redis.exceptions.ResponseError(text)

        with pytest.raises(ClusterError) as caught:
            store._call(fail)
        assert password[:7] not in str(caught.value) and str(caught.value).isprintable()
    store.close()


@needs_redis
@pytest.mark.parametrize(
    ("refuse", "accept", "answer"),
    [
        (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE"), "You can't write against a read only replica."),
        (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0"), "command not allowed when used memory > "),
        (
            ("CONFIG", "SET", "min-replicas-to-write", "1"),
            ("CONFIG", "SET", "min-replicas-to-write", "0"),
            "NOREPLICAS Not enough good replicas to write.",
        ),
    ],
    ids=["a replica", "its memory is full", "without replicas"],
)
def test_a_redis_server_that_takes_no_entries_is_waited_for_and_named_at_the_limit(
    start_ranks, redis_server, refuse, accept, answer
):
    server = redis_server()
    server.start()
    with server.client() as client:
        client.execute_command(*refuse)
        (message,) = messages(start_ranks(server.store, (0, 2), limit=2), "StartTimeoutError")
        assert f"rank 0 gave up after 2 s: the Redis server at 127.0.0.1:{server.store.port} answers {answer}" in message
        ranks = start_ranks(server.store, (0, 2), (1, 2))
        time.sleep(0.5)
        client.execute_command(*accept)
        met(ranks)


@needs_redis
def test_a_server_that_will_never_take_the_entries_is_an_immediate_error_with_its_answer(start_ranks, redis_server):
    server = redis_server()
    server.start()
    with server.client() as client:
        client.set(f"tfdist:{run_key(RankInfo(2, 0, Source('test', 't')))}:leaders", "what another program has written")
    (message,) = messages(start_ranks(server.store, (0, 2), limit=30), "ClusterError")
    said = "answers WRONGTYPE Operation against a key holding the wrong kind of value"
    assert message.endswith(f"the Redis server at 127.0.0.1:{server.store.port} {said}")


@needs_redis
def test_entries_of_a_dead_run_expire_in_redis(start_ranks, redis_server):
    server = redis_server()
    server.start()
    (rank,) = start_ranks(server.store, (0, 2), limit=20)
    wait_until(server.keys)
    rank.end()
    assert server.ttls() and all(0 < ttl <= 31 for ttl in server.ttls())


def test_a_port_of_another_run_is_reported(start_ranks):
    store = Store("tcp", "127.0.0.1", free_port())
    start_ranks(store, (0, 2), run_id="another run", limit=20)
    wait_until(lambda: is_listening(store.port))
    for message in messages(start_ranks(store, (0, 2), (1, 2), run_id="this", limit=2), "StartTimeoutError"):
        assert "this is the store of another run" in message


def test_a_port_of_another_program_is_reported(start_ranks):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        store = Store("tcp", "127.0.0.1", other.getsockname()[1])
        for message in messages(start_ranks(store, (0, 2), (1, 2), limit=3), "StartTimeoutError"):
            assert f"gave up after 3 s: no store at 127.0.0.1, port {store.port}: " in message


def test_ranks_at_a_loopback_address_and_ranks_elsewhere_are_an_error(start_ranks, tmp_path):
    store = Store("file", path=str(tmp_path))
    ranks = [*start_ranks(store, (0, 2), host="localhost"), *start_ranks(store, (1, 2), host="10.0.0.7")]
    for message in messages(ranks, "ClusterError"):
        assert "rank 0 can be reached at localhost only, and others are at 10.0.0.7:" in message


def test_several_ranks_need_a_store():
    with pytest.raises(ClusterError, match="rank 0 of 2, but nothing says where the others are; name the hosts"):
        meet(RankInfo(2, 0, Source("test", "the test")))


def test_a_missing_client_library_of_redis_is_an_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ClusterError, match=r"pip install 'redis>="):
        meet(RankInfo(2, 0, Source("test", "the test"), Store("redis", "127.0.0.1", 1)))
