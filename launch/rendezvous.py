"""The rendezvous: processes that know only their ranks meet in a store, and every one of them leaves with the same Cluster.

One process leads, the first of the known tasks or else rank 0. Four tables hold what is said:

* `leaders`: a leader puts a number drawn at random for this run of this process, its nonce.
* `members`: every other process answers the leaders that it sees with its name, its own nonce, its address and the size of the
  job. What a run that is over has left in the store answers no leader of this run, and so is not taken for one of its ranks.
* `verdicts`: the leader puts the roster once everybody has answered, or what is wrong. A process takes only a roster in which
  it stands with its nonce.
* `read`: who has read the verdict. When all have, the leader takes everything of the run out of the store, or closes it.
"""

import json
import logging
import secrets
import time
from collections import defaultdict
from typing import Any, NoReturn

from tfdist.cluster import Cluster, Task, valid_host
from tfdist.errors import ClusterError
from tfdist.launch.ports import HeldPorts
from tfdist.launch.store import LOOPBACK, OpenStore, StoreUnavailableError, open_store
from tfdist.membership import Membership
from tfdist.strategies.startup import TELL_SECONDS, StartTimeoutError

SETTLE_SECONDS = 0.5
"""How long a leader that has all answers looks for more: a rank that is started twice is started at about the same time."""

READ_SECONDS = 10.0
"""How long a leader waits for the others to read its verdict; who has not by then has died."""

REPEAT_SECONDS = 2.0
"""After which an announcement is put again, in case the store was started anew."""

POLL_SECONDS = (0.05, 0.5)
"""Shortest and longest time between two looks into the store; it grows while nothing happens."""

MAX_LEADERS = 32
"""Leaders that are answered: more can only be left over from runs that died, under one run id."""

_log = logging.getLogger("tfdist")
_held = HeldPorts()  # Until the process ends: TensorFlow's server binds the port some time after the meeting.


def meet(membership: Membership, timeout_seconds: float = 300.0) -> Cluster:
    """Meets the other processes of the job and returns the cluster of all, in which rank r is `worker:r`.

    The port of this process stays held (`tfdist.launch.ports`) until TensorFlow's server takes it.

    Args:
        membership: what this process knows.
        timeout_seconds: for everything together: the store to come up, the others to come, and their answers.

    Raises:
        StartTimeoutError: when ranks did not come in time, or the store did not answer; the message names them.
        ClusterError: when the processes contradict each other (a rank twice, different sizes), or no store is given.
    """
    if membership.size == 1 and not membership.known:
        return membership.outline()
    if membership.store is None:
        raise membership.source.error(
            f"there are {membership.size} ranks, and nothing says where they meet; give a shared folder or a Redis server"
        )
    meeting = _Leader if membership.task == _leader(membership) else _Member
    return meeting(membership, timeout_seconds).run()


def _leader(membership: Membership) -> tuple[str, int]:
    first = membership.known[:1]
    return (first[0].job, first[0].index) if first else ("worker", 0)


def _name(task: tuple[str, int]) -> str:
    """What people call a process: by its rank, or `ps:0`."""
    return f"rank {task[1]}" if task[0] == "worker" else f"{task[0]}:{task[1]}"


class _Meeting:
    """What leader and members have in common."""

    def __init__(self, membership: Membership, timeout_seconds: float) -> None:
        self.membership = membership
        self.timeout = timeout_seconds
        self.start = self.told = time.monotonic()
        self.deadline = self.start + timeout_seconds
        self.nonce = secrets.token_hex(8)
        self.pause = POLL_SECONDS[0]
        self.answers: set[str] = set()
        self.fault: StoreUnavailableError | None = None
        self.store: OpenStore = open_store(membership, isinstance(self, _Leader), timeout_seconds + READ_SECONDS)

    def run(self) -> Cluster:
        try:
            address = self._tries(self.find_address)
            assert address is not None
            self.address = address
            return self.find_cluster()
        finally:
            self._leave()
            self.store.close()

    def find_cluster(self) -> Cluster:
        raise NotImplementedError

    def find_address(self) -> tuple[str, int]:
        """Host and port of this process' task."""
        for task in self.membership.known:
            if (task.job, task.index) == self.membership.task:
                assert task.host is not None and task.port is not None
                return task.host, task.port
        host = self.membership.host or self.store.my_host()
        held = _held.hold(Cluster((Task("worker", 0),)), {"worker:0"}).tasks[0]
        assert held.port is not None
        return host, held.port

    def announcement(self) -> dict[str, Any]:
        me, (host, port) = self.membership, self.address
        return {
            "task": list(me.task),
            "size": me.size,
            "host": host,
            "port": port,
            "slots": me.slots,
            "gpus": me.gpus,
            "answers": sorted(self.answers),
        }

    def waits(self) -> None:
        """Waits a little; raises the right error when time is up."""
        if time.monotonic() >= self.deadline:
            self.give_up()
        time.sleep(max(0.0, min(self.pause, self.deadline - time.monotonic())))
        self.pause = min(self.pause * 1.5, POLL_SECONDS[1] + self.membership.size / 1000)

    def tell(self, whom: str) -> None:
        now = time.monotonic()
        if now - self.told >= TELL_SECONDS:
            self.told = now
            _log.warning("waiting %.0f s for %s", now - self.start, whom)

    def give_up(self) -> NoReturn:
        raise NotImplementedError

    def no_store(self) -> StartTimeoutError:
        return StartTimeoutError(
            f"{self.membership.source.name}: gave up after {self.timeout:.0f} s at the rendezvous, as "
            f"{_name(self.membership.task)}: {self.fault}"
        )

    def read(self, table: str) -> dict[str, dict[str, Any]]:
        """A table of JSON objects; what is none is passed over."""
        entries = {}
        for field, text in self.store.get(table).items():
            try:
                value = json.loads(text)
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict):
                entries[field] = value
        return entries

    def put(self, table: str, value: dict[str, Any]) -> None:
        self.store.put(table, self.nonce, json.dumps(value))

    def _tries(self, find: Any) -> Any:
        """What `find` returns, tried until the store answers."""
        while True:
            try:
                found = find()
                self.fault = None
                return found
            except StoreUnavailableError as fault:
                self.fault = fault
                self.tell(str(fault))
                self.waits()

    def _leave(self) -> None:
        """Takes what this process has said out of the store, as far as that still works."""
        try:
            for table in ("leaders", "members", "verdicts") if isinstance(self, _Leader) else ("members",):
                self.store.remove(table, self.nonce)
        except (StoreUnavailableError, ClusterError):
            pass


class _Leader(_Meeting):
    """Collects the answers of all, and decides."""

    missing: "list[tuple[str, int]]" = []  # noqa: RUF012 - replaced, never changed

    def find_cluster(self) -> Cluster:
        complete_since: float | None = None
        put_at = float("-inf")
        members: dict[str, dict[str, Any]] = {}
        while complete_since is None or time.monotonic() - complete_since < SETTLE_SECONDS:
            if time.monotonic() - put_at >= REPEAT_SECONDS:
                self._tries(lambda: self.put("leaders", self.announcement()))
                put_at = time.monotonic()
            found = self._tries(self._look)
            if len(found) != len(members):
                self.pause = POLL_SECONDS[0]
            members = found
            self._check(members)
            here = {tuple(member["task"]) for member in members.values()}
            self.missing = [task for task in self._expected() if task not in here]
            if not self.missing:
                complete_since = complete_since or time.monotonic()
            else:
                self.tell(_list([_name(task) for task in self.missing]))
            self.waits()
        return self._agree(members)

    def give_up(self) -> NoReturn:
        if self.fault is not None:
            raise self.no_store()
        text = (
            f"{self.membership.source.name}: gave up after {self.timeout:.0f} s at the rendezvous: "
            f"{_list([_name(task) for task in self.missing])} of {self.membership.size} did not come; "
            "start these, or check that they use the same store and run id"
        )
        self._publish({"timeout": text})
        raise StartTimeoutError(text)

    def _expected(self) -> list[tuple[str, int]]:
        ranks = [("worker", rank) for rank in range(self.membership.size)]
        return [*((task.job, task.index) for task in self.membership.known), *ranks]

    def _look(self) -> dict[str, dict[str, Any]]:
        """Everybody who answers this leader, by nonce, and itself. Another leader answers where it is alive, and is seen too."""
        others = self.read("leaders")
        new = set(sorted(set(others) - {self.nonce})[:MAX_LEADERS]) - self.answers
        if new:
            self.answers |= new
            self.put("leaders", self.announcement())
        everybody = {**self.read("members"), **others}
        found = {nonce: entry for nonce, entry in everybody.items() if self.nonce in _texts(entry.get("answers"))}
        return {self.nonce: self.announcement(), **{nonce: entry for nonce, entry in found.items() if _is_whole(entry)}}

    def _check(self, members: dict[str, dict[str, Any]]) -> None:
        """Refuses, for all, processes that contradict each other."""
        by_task = defaultdict(list)
        for entry in members.values():
            by_task[tuple(entry["task"])].append(entry)
        twice = {task: entries for task, entries in by_task.items() if len(entries) > 1}
        sizes = {_name(task): entries[0]["size"] for task, entries in sorted(by_task.items())}
        if twice:
            named = [f"{_name(task)} ({_list([_at(entry) for entry in entries])})" for task, entries in sorted(twice.items())]
            self._refuse(
                f"{_list(named)} came more than once; give every process a rank of its own, and every run a run id of its own"
            )
        if len(set(sizes.values())) > 1:
            said = _list([f"{name} says {size}" for name, size in sizes.items()])
            self._refuse(f"the processes disagree about the number of ranks: {said}; start all with the same")
        beyond = [task for task in by_task if task not in set(self._expected())]
        if beyond:
            self._refuse(f"{_list([_name(task) for task in beyond])} came, which the description of {self._me()} does not have")
        near = [task for task, entries in by_task.items() if entries[0]["host"].lower() in LOOPBACK]
        far = [task for task in by_task if task not in near]
        if near and far:
            self._refuse(
                f"{_list([_name(task) for task in near])} can be reached at {by_task[near[0]][0]['host']} alone, and "
                f"{_list([_at(by_task[task][0]) for task in far])} is elsewhere; name the store's host as other machines do"
            )

    def _me(self) -> str:
        return _name(self.membership.task)

    def _refuse(self, why: str) -> NoReturn:
        error = self.membership.source.error(why, field="rendezvous")
        self._publish({"error": why})
        raise error

    def _agree(self, members: dict[str, dict[str, Any]]) -> Cluster:
        roster = {nonce: {key: entry[key] for key in _KEYS} for nonce, entry in members.items()}
        cluster = _cluster(self.membership, roster)
        self._publish({"roster": roster})
        try:
            self.store.clear()
        except (StoreUnavailableError, ClusterError) as fault:
            _log.debug("what the rendezvous left in its store stays there: %s", fault)
        return cluster

    def _publish(self, verdict: dict[str, Any]) -> None:
        """Puts the verdict and waits until all who are here have read it, at most `READ_SECONDS`."""
        until = time.monotonic() + READ_SECONDS
        pause = POLL_SECONDS[0]
        put = False
        while time.monotonic() < until:
            try:
                members = {nonce for nonce, entry in self.read("members").items() if self.nonce in _texts(entry.get("answers"))}
                others = members | (self.answers & set(self.read("leaders")))
                if not put:
                    self.put("verdicts", {**verdict, "to": sorted(others)})
                    put = True
                if others <= set(self.read("read")) | ({*self.answers} if "roster" in verdict else set()):
                    return
            except (StoreUnavailableError, ClusterError):
                pass
            time.sleep(pause)
            pause = min(pause * 1.5, POLL_SECONDS[1])


class _Member(_Meeting):
    """Answers leaders until one of them has its verdict."""

    def find_cluster(self) -> Cluster:
        put_at = float("-inf")
        while True:
            leaders = set(sorted(self._tries(lambda: self.read("leaders")))[:MAX_LEADERS])
            if leaders != self.answers or time.monotonic() - put_at >= REPEAT_SECONDS:
                self.answers = leaders
                self._tries(lambda: self.put("members", self.announcement()))
                put_at = time.monotonic()
                self.pause = POLL_SECONDS[0]
            verdicts = self._tries(lambda: self.read("verdicts"))
            for verdict in verdicts.values():
                cluster = self._judge(verdict)
                if cluster is not None:
                    return cluster
            self.tell(f"{_name(_leader(self.membership))} and those that it waits for")
            self.waits()

    def give_up(self) -> NoReturn:
        if self.fault is not None:
            hint = self.membership.store is not None and self.membership.store.kind == "tcp"
            first = _name(_leader(self.membership))
            error = self.no_store()
            raise StartTimeoutError(f"{error} ({first} serves the store: it did not start, or has ended)" if hint else str(error))
        raise StartTimeoutError(
            f"{self.membership.source.name}: gave up after {self.timeout:.0f} s at the rendezvous, as "
            f"{_name(self.membership.task)}: no word from {_name(_leader(self.membership))}; start it, check that it uses the "
            f"same store and run id, and that no other process is {_name(self.membership.task)}"
        )

    def _judge(self, verdict: dict[str, Any]) -> Cluster | None:
        roster = verdict.get("roster")
        if isinstance(roster, dict) and self.nonce in roster:
            cluster = _cluster(self.membership, roster)
            self._has_read()
            return cluster
        if self.nonce not in _texts(verdict.get("to")):
            return None
        for kind in ("error", "timeout"):
            text = verdict.get(kind)
            if isinstance(text, str):
                self._has_read()
                if kind == "error":
                    raise self.membership.source.error(text[:2000], field="rendezvous")
                raise StartTimeoutError(text[:2000])
        return None

    def _has_read(self) -> None:
        try:
            self.put("read", {})
        except (StoreUnavailableError, ClusterError):
            pass  # The leader has closed the store: it waits no more.


_KEYS = ("task", "host", "port", "slots", "gpus")


def _cluster(membership: Membership, roster: dict[str, Any]) -> Cluster:
    workers = []
    for entry in roster.values():
        if not (isinstance(entry, dict) and _is_whole({"size": membership.size, **entry})):
            raise membership.source.error("the store holds a roster that tfdist did not write; use another run id")
        job, index = entry["task"]
        if job == "worker":
            workers.append(Task(job, index, entry["host"], entry["port"], slots=entry["slots"], gpus=entry["gpus"]))
    cluster = membership.cluster(sorted(workers, key=lambda task: task.index))
    cluster.find(*membership.task)
    return cluster


def _is_whole(entry: dict[str, Any]) -> bool:
    """Whether an announcement has everything, each of its kind: the store may hold what others wrote."""
    task, host = entry.get("task"), entry.get("host")
    numbers = [entry.get(key) for key in ("size", "port", "slots", "gpus")]
    return (
        isinstance(task, list)
        and len(task) == 2
        and task[0] in ("worker", "ps")
        and all(isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 10**9 for number in (task[1], *numbers))
        and isinstance(host, str)
        and valid_host(host)
    )


def _texts(value: object) -> set[str]:
    return {each for each in value if isinstance(each, str)} if isinstance(value, list) else set()


def _at(entry: dict[str, Any]) -> str:
    return f"{entry['host']}:{entry['port']}"


def _list(names: list[str]) -> str:
    """`a, b and c`; at most ten, then how many more."""
    if len(names) > 10:
        return f"{', '.join(names[:10])} and {len(names) - 10} more"
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)
