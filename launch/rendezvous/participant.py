"""`Participant`: what the leader and the members of a rendezvous share, such as address, store, timeout and errors."""

import json
import logging
import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, TypeVar

from tfdist.cluster import Cluster, Task
from tfdist.errors import ClusterError, StartTimeoutError
from tfdist.json_values import object_in
from tfdist.launch.backends.local.ports import HeldPorts
from tfdist.launch.rendezvous.clock import SYSTEM_CLOCK, Clock
from tfdist.launch.rendezvous.member_info import MemberInfo, TaskId, enumeration, name_of, read_texts
from tfdist.launch.rendezvous.stores.interface import OpenStore, StoreUnavailableError
from tfdist.rank_info import RankInfo
from tfdist.strategies.runtime.peers import LOG_SECONDS

REPEAT_SECONDS = 2.0
"""Period after which a process writes its member info again: the store may have been restarted."""

POLL_SECONDS = (0.05, 0.25)
"""Shortest and longest pause between two reads of the store. The pause grows while nothing changes."""

MAX_LEADERS = 32
"""Most leaders that a process answers: those whose entries changed last. The others are left from dead runs with the run id."""

_log = logging.getLogger("tfdist")
Result = TypeVar("Result")


class Participant:
    """This process in the rendezvous."""

    tables: tuple[str, ...] = ("members",)
    """The tables in which this process writes."""

    def __init__(self, rank_info: RankInfo, store: OpenStore, timeout_seconds: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self.rank_info = rank_info
        self.store = store
        self.timeout = timeout_seconds
        self.clock = clock
        self.start = clock.now()
        self.deadline = self.start + timeout_seconds
        self.nonce = secrets.token_hex(8)
        self.leaders: set[str] = set()  # Nonces of the leaders that this process answers.
        self.store_error: StoreUnavailableError | None = None
        self._last_message = self.start
        self._pause = POLL_SECONDS[0]
        self._address: tuple[str, int] | None = None
        self._beat = 0
        self._changes: dict[str, tuple[str, float]] = {}  # Leaders' entries, and when each was first read.

    def run(self) -> Cluster:
        """Takes part in the rendezvous; returns the cluster."""
        try:
            self._address = self.retry(self._find_address)
            return self.find_cluster()
        finally:
            if self.store_error is None:  # Otherwise the calls would wait past the timeout for a store that does not answer.
                for table in self.tables:
                    self.try_once(self.store.remove, table, self.nonce)
            self.store.close()

    def find_cluster(self) -> Cluster:
        """Takes part in the rendezvous, after this process has found its address."""
        raise NotImplementedError

    def give_up(self) -> NoReturn:
        """Raises the error that names the missing processes."""
        raise NotImplementedError

    def member_info(self) -> MemberInfo:
        """Returns the member info of this process, each time with another beat."""
        assert self._address is not None
        self._beat += 1
        me, (host, port) = self.rank_info, self._address
        return MemberInfo(*me.task, me.size, host, port, me.slots, me.gpus, self._beat, tuple(sorted(self.leaders)))

    # Calls of the store.

    def retry(self, call: Callable[[], Result]) -> Result:
        """Repeats `call` until the store answers; returns its result. Gives up at the deadline."""
        while True:
            try:
                result = call()
                self.store_error = None
                return result
            except StoreUnavailableError as error:
                self.store_error = error
                self.wait(str(error))

    def try_once(self, call: Callable[..., object], *arguments: object) -> None:
        """Calls the store where it does not matter whether it answers."""
        try:
            call(*arguments)
        except (StoreUnavailableError, ClusterError) as error:
            _log.debug("at the end of the rendezvous: %s", error)

    def read_verdicts(self) -> dict[str, Mapping[str, Any]]:
        """Returns the verdicts of all leaders, as JSON objects, by nonce."""
        return {nonce: object_in(text) for nonce, text in self.store.get("verdicts").items()}

    def read_members(self, table: str) -> dict[str, MemberInfo]:
        """Returns a table of member infos by nonce."""
        return members_in(self.store.get(table))

    def live_leaders(self, entries: Mapping[str, str]) -> set[str]:
        """Returns the nonces of at most `MAX_LEADERS` leaders: those of a dead run do not change their entries any more."""
        now = self.clock.now()
        before = self._changes
        self._changes = {
            nonce: before[nonce] if nonce in before and before[nonce][0] == text else (text, now)
            for nonce, text in entries.items()
        }
        last_first = sorted(entries, key=lambda nonce: (-self._changes[nonce][1], nonce))
        return set(last_first[:MAX_LEADERS])

    def put(self, table: str, value: Mapping[str, Any]) -> None:
        """Writes the entry of this process into a table."""
        self.store.put(table, self.nonce, json.dumps(value))

    # Waiting.

    def wait(self, missing: str) -> None:
        """Pauses shortly, or gives up at the deadline. `missing`, what is waited for, is logged every ten seconds."""
        now = self.clock.now()
        if now >= self.deadline:
            if self.store_error is not None:
                raise self._store_timeout()
            self.give_up()
        if missing and now - self._last_message >= LOG_SECONDS:
            self._last_message = now
            _log.warning("waiting %.0f s for %s", now - self.start, missing)
        self.clock.sleep(min(self._pause, max(0.0, self.deadline - now)))
        # In a larger job more processes read the store.
        self._pause = min(self._pause * 1.5, POLL_SECONDS[1] + self.rank_info.size / 1000)

    def poll_fast(self) -> None:
        """Makes the next pauses short again: something has changed."""
        self._pause = POLL_SECONDS[0]

    # Errors.

    def raise_error_of(self, verdict: Mapping[str, Any]) -> None:
        """Raises the error in the verdict of a leader, if it addresses this process."""
        if self.nonce not in read_texts(verdict.get("to")):
            return
        for kind in ("error", "timeout"):
            text = verdict.get(kind)
            if isinstance(text, str):
                self.confirm({kind: text})
                raise self.contradiction(text) if kind == "error" else self.timeout_error(text)

    def confirm(self, error: Mapping[str, str]) -> None:
        """Confirms that this process has read an error that addresses it."""
        self.try_once(self.put, "read", {})

    def absence(self, missing: Iterable[TaskId]) -> str:
        """Returns the sentence about missing processes."""
        return (
            f"{name_of(self.rank_info.task)} gave up after {self.timeout:.0f} s: {enumeration(map(name_of, missing))} of "
            f"{self.rank_info.size} ranks did not come; start them, and check that they use the same store and run id"
        )

    def contradiction(self, why: str) -> ClusterError:
        """Returns the error for processes that contradict each other."""
        return self.rank_info.source.error(why[:2000], field="rendezvous")

    def timeout_error(self, why: str) -> StartTimeoutError:
        """Returns the error for missing processes."""
        return StartTimeoutError(str(self.rank_info.source.error(why[:2000], field="rendezvous")))

    def _store_timeout(self) -> StartTimeoutError:
        is_served = self.rank_info.store is not None and self.rank_info.store.kind == "tcp"
        hint = "; the process that serves the store did not start, or has ended" if is_served else ""
        return self.timeout_error(
            f"{name_of(self.rank_info.task)} gave up after {self.timeout:.0f} s: {self.store_error}{hint}"
        )

    def _find_address(self) -> tuple[str, int]:
        for task in self.rank_info.servers:
            if (task.job, task.index) == self.rank_info.task:
                assert task.host is not None and task.port is not None
                return task.host, task.port
        host = self.rank_info.host or self.store.own_host()
        ports = HeldPorts()
        task = ports.hold(Cluster((Task("worker", 0),)), {"worker:0"}).tasks[0]
        ports.keep_for_next()  # For TensorFlow's server, or for the `HeldPorts` of the process that starts it.
        os.environ["TF_GRPC_REUSE_PORT"] = "1"
        assert task.port is not None
        return host, task.port


def members_in(entries: Mapping[str, str]) -> dict[str, MemberInfo]:
    """Returns the member infos of a table by nonce, without entries that tfdist did not write."""
    read = ((nonce, MemberInfo.read(text)) for nonce, text in entries.items())
    return {nonce: entry for nonce, entry in read if entry is not None}
