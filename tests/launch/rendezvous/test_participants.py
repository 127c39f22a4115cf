"""One process of a rendezvous with a store in memory and a clock that the test moves: no process, no socket, no waiting."""

import json

import pytest

from tfdist.errors import ClusterError, Source, StartTimeoutError
from tfdist.launch.rendezvous import participant
from tfdist.launch.rendezvous.clock import Clock
from tfdist.launch.rendezvous.leader import Leader
from tfdist.launch.rendezvous.member import Member
from tfdist.launch.rendezvous.member_info import MemberInfo
from tfdist.launch.rendezvous.participant import MAX_LEADERS
from tfdist.launch.rendezvous.stores.interface import StoreUnavailableError
from tfdist.rank_info import RankInfo, Store


class MemoryStore:
    """A store in a dict."""

    def __init__(self):
        self.tables = {}
        self.is_down = False

    def put(self, table, field, text):
        self._check()
        self.tables.setdefault(table, {})[field] = text

    def get(self, table):
        self._check()
        return dict(self.tables.get(table, {}))

    def remove(self, table, field):
        self._check()
        self.tables.get(table, {}).pop(field, None)

    def clear(self):
        self.tables.clear()

    def own_host(self):
        return "10.0.0.1"

    def close(self):
        pass

    def _check(self):
        if self.is_down:
            raise StoreUnavailableError("it is down")


class Script:
    """A clock. Each sleep moves it, and then lets the others act."""

    def __init__(self, act=lambda seconds: None):
        self.seconds = 0.0
        self.act = act
        self.clock = Clock(lambda: self.seconds, self.sleep)

    def sleep(self, seconds):
        assert seconds >= 0
        self.seconds += max(seconds, 0.001)
        self.act(self.seconds)


@pytest.fixture
def held_port(monkeypatch):
    monkeypatch.setattr(participant.Participant, "_find_address", lambda self: (f"10.0.0.{self.rank_info.rank}", 2222))


def info(rank, size=2):
    return RankInfo(size, rank, Source("test", "the test"), Store("file", path="/nowhere"))


def entry(rank, beat=1, leaders=(), size=2):
    return MemberInfo("worker", rank, size, f"10.0.0.{rank}", 2222, 1, 0, beat, tuple(leaders)).text()


def dead_leaders(store, count):
    for number in range(count):  # Their names come first.
        store.put("leaders", f"{number:016x}", entry(0))


@pytest.mark.usefixtures("held_port")
@pytest.mark.parametrize("dead", [0, MAX_LEADERS - 1, MAX_LEADERS, 500])
def test_a_member_finds_the_live_leader_among_those_of_killed_starts(dead):
    store = MemoryStore()
    dead_leaders(store, dead)
    mine = "f" * 16

    def leader(seconds):
        store.put("leaders", mine, entry(0, beat=int(seconds / 2)))
        for nonce, text in store.get("members").items():
            if mine in json.loads(text)["leaders"]:
                store.put("verdicts", mine, json.dumps({"roster": {mine: entry(0), nonce: text}}))

    script = Script(leader)
    cluster = Member(info(1), store, 300, script.clock).run()
    assert [task.host for task in cluster.tasks] == ["10.0.0.0", "10.0.0.1"]
    assert script.seconds < 5


@pytest.mark.usefixtures("held_port")
def test_a_leader_meets_a_member_that_saw_many_killed_starts():
    store = MemoryStore()
    dead_leaders(store, 500)

    def member(seconds):
        live = [nonce for nonce in store.get("leaders") if int(nonce, 16) >= 500]
        store.put("members", "e" * 16, entry(1, beat=int(seconds), leaders=live))
        if store.get("verdicts"):
            store.put("read", "e" * 16, "{}")

    script = Script(member)
    cluster = Leader(info(0), store, 300, script.clock).run()
    assert len(cluster.tasks) == 2 and script.seconds < 5
    assert not any(store.tables.values())


@pytest.mark.usefixtures("held_port")
@pytest.mark.parametrize("seconds_away", [0.0, 30.0])
def test_a_leader_writes_its_verdict_again_for_a_store_that_has_restarted_empty(seconds_away):
    store, heard, back_at = MemoryStore(), [], []

    def member(seconds):
        if store.tables.get("verdicts") and not back_at:
            store.clear()  # Before the member has read it.
            back_at.append(seconds + seconds_away)
        store.is_down = bool(back_at) and seconds < back_at[0]
        if store.is_down:
            return
        live = list(store.get("leaders")) or live_before
        live_before[:] = live
        store.put("members", "e" * 16, entry(1, beat=int(seconds), leaders=live))
        if verdicts := store.get("verdicts"):
            heard.extend(verdicts.values())
            store.put("read", "e" * 16, "{}")

    live_before: list[str] = []
    script = Script(member)
    assert len(Leader(info(0), store, 300, script.clock).run().tasks) == 2
    assert heard and script.seconds < seconds_away + 6


def answering(store, seconds):
    """Does what a member does that answers the leader of the store and reads its verdict."""
    if live := list(store.get("leaders")):
        store.put("members", "e" * 16, entry(1, beat=int(seconds), leaders=live))
    if store.get("verdicts"):
        store.put("read", "e" * 16, "{}")


@pytest.mark.usefixtures("held_port")
def test_a_leader_waits_again_for_a_member_whose_entry_is_gone_in_the_last_second():
    """As after a restart of the store: the leader has seen all, and trained without them."""
    store, lost_at = MemoryStore(), []

    def member(seconds):
        if store.get("members") and not lost_at:
            store.clear()
            lost_at.append(seconds)
        elif not lost_at or seconds > lost_at[0] + 3:
            answering(store, seconds)

    script = Script(member)
    assert len(Leader(info(0), store, 300, script.clock).run().tasks) == 2
    assert lost_at and script.seconds < 10


@pytest.mark.usefixtures("held_port")
def test_a_leader_whose_members_come_in_the_last_second_of_its_limit_does_not_give_up():
    store = MemoryStore()
    script = Script(lambda seconds: answering(store, seconds) if seconds > 19.6 else None)
    assert len(Leader(info(0), store, 20, script.clock).run().tasks) == 2


@pytest.mark.usefixtures("held_port")
def test_a_rank_that_is_started_again_while_others_are_waited_for_takes_the_place_of_its_dead_process():
    store, rosters = MemoryStore(), []

    def ranks(seconds):
        live = list(store.get("leaders"))
        for nonce, rank, lives in (("d", 1, seconds < 3), ("e", 1, seconds > 4), ("f", 2, seconds > 15)):
            if lives:
                store.put("members", nonce * 16, entry(rank, int(seconds), live, size=3))
        for text in store.get("verdicts").values():
            rosters.append(json.loads(text)["roster"].keys() & {"d" * 16, "e" * 16, "f" * 16})
            for nonce in "ef":
                store.put("read", nonce * 16, "{}")

    assert len(Leader(info(0, 3), store, 300, Script(ranks).clock).run().tasks) == 3
    assert rosters[0] == {"e" * 16, "f" * 16}


@pytest.mark.usefixtures("held_port")
@pytest.mark.parametrize("kind", [Leader, Member])
@pytest.mark.parametrize("is_down", [False, True])
def test_every_wait_ends_at_the_timeout(kind, is_down):
    store = MemoryStore()
    store.is_down = is_down
    script = Script()
    with pytest.raises(StartTimeoutError, match="it is down" if is_down else "did not come"):
        kind(info(0 if kind is Leader else 1), store, 300, script.clock).run()
    assert 300 <= script.seconds < 312  # The leader leaves its error in the store for some seconds.


@pytest.mark.usefixtures("held_port")
def test_the_entries_of_a_leader_show_that_it_is_alive():
    store, seen = MemoryStore(), set()
    script = Script(lambda seconds: seen.update(store.get("leaders").values()))
    with pytest.raises(StartTimeoutError):
        Leader(info(0), store, 20, script.clock).run()
    assert len(seen) >= 8  # Every two seconds.


@pytest.mark.usefixtures("held_port")
def test_a_leader_passes_on_the_error_of_another_leader_because_the_store_may_end_with_it():
    store, heard = MemoryStore(), []
    second, member = "e" * 16, "f" * 16

    def others(seconds):
        (first,) = store.get("leaders").keys() - {second}
        store.put("leaders", second, entry(0, beat=1, leaders=[first], size=3))
        store.put("verdicts", second, json.dumps({"error": "rank 0 came more than once", "to": [first]}))
        if seconds > 0.5 and not heard:  # The second leader has not read its entry yet.
            store.put("members", member, entry(1, leaders=[first, second], size=3))
            heard.extend(text for text in store.get("verdicts").values() if member in json.loads(text)["to"])
            store.put("read", member, "{}")

    with pytest.raises(ClusterError, match="rank 0 came more than once"):
        Leader(info(0, 3), store, 300, Script(others).clock).run()
    assert len(heard) == 1
