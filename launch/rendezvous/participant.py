"""What the leader and the members of a rendezvous have in common: an address, a store, a limit, and how it ends."""

import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, TypeVar

from tfdist.cluster import Cluster, Task
from tfdist.errors import ClusterError
from tfdist.launch.backends.local.ports import HeldPorts
from tfdist.launch.rendezvous.member_info import Announcement, Name, called, json_object, listed, texts
from tfdist.launch.rendezvous.stores.store import OpenStore, StoreUnavailableError
from tfdist.rank_info import RankInfo
from tfdist.strategies.runtime.peers import LOG_SECONDS, StartTimeoutError

REPEAT_SECONDS = 2.0
"""After which an announcement is put again, in case the store was started anew."""

POLL_SECONDS = (0.05, 0.25)
"""Shortest and longest time between two looks into the store; it grows while nothing happens."""

MAX_LEADERS = 32
"""Leaders that are answered: more can only be left over from runs that died, under one run id."""

_log = logging.getLogger("tfdist")
Found = TypeVar("Found")


class Meeting:
    """This process at the rendezvous."""

    tables: tuple[str, ...] = ("members",)
    """Where this process says something."""

    def __init__(self, rank_info: RankInfo, store: OpenStore, timeout_seconds: float) -> None:
        self.rank_info = rank_info
        self.store = store
        self.timeout = timeout_seconds
        self.start = self.told = time.monotonic()
        self.deadline = self.start + timeout_seconds
        self.nonce = secrets.token_hex(8)
        self.answers: set[str] = set()
        self.fault: StoreUnavailableError | None = None
        self._pause = POLL_SECONDS[0]
        self._address: tuple[str, int] | None = None

    def run(self) -> Cluster:
        """Takes part, and returns the cluster."""
        try:
            self._address = self.tries(self._find_address)
            return self.find_cluster()
        finally:
            if self.fault is None:  # A store that does not answer would only be waited for again, past the limit.
                for table in self.tables:
                    self.quietly(self.store.remove, table, self.nonce)
            self.store.close()

    def find_cluster(self) -> Cluster:
        """Takes part, once this process has an address."""
        raise NotImplementedError

    def give_up(self) -> NoReturn:
        """Raises the error that says who did not come."""
        raise NotImplementedError

    def announcement(self) -> Announcement:
        """What this process says of itself."""
        assert self._address is not None
        me, (host, port) = self.rank_info, self._address
        return Announcement(*me.task, me.size, host, port, me.slots, me.gpus, tuple(sorted(self.answers)))

    def tries(self, find: Callable[[], Found]) -> Found:
        """What `find` returns, tried until the store answers."""
        while True:
            try:
                found = find()
                self.fault = None
                return found
            except StoreUnavailableError as fault:
                self.fault = fault
                self.waits(str(fault))

    def quietly(self, call: Callable[..., object], *arguments: object) -> None:
        """Calls the store where it does not matter any more whether it answers."""
        try:
            call(*arguments)
        except (StoreUnavailableError, ClusterError) as fault:
            _log.debug("at the end of the rendezvous: %s", fault)

    def waits(self, whom: str = "") -> None:
        """Waits a little and says for whom, every ten seconds; gives up when time is up."""
        now = time.monotonic()
        if now >= self.deadline:
            if self.fault is not None:
                raise self._no_store()
            self.give_up()
        if whom and now - self.told >= LOG_SECONDS:
            self.told = now
            _log.warning("waiting %.0f s for %s", now - self.start, whom)
        time.sleep(min(self._pause, max(0.0, self.deadline - now)))
        # The larger the job, the more there are that ask the store.
        self._pause = min(self._pause * 1.5, POLL_SECONDS[1] + self.rank_info.size / 1000)

    def something_happened(self) -> None:
        """Looks often again."""
        self._pause = POLL_SECONDS[0]

    def read(self, table: str) -> dict[str, Mapping[str, Any]]:
        """A table of JSON objects by nonce."""
        return {field: json_object(text) for field, text in self.store.get(table).items()}

    def announcements(self, table: str) -> dict[str, Announcement]:
        """A table of announcements by nonce."""
        entries = ((field, Announcement.read(text)) for field, text in self.store.get(table).items())
        return {field: entry for field, entry in entries if entry is not None}

    def put(self, table: str, value: Mapping[str, Any]) -> None:
        """Puts something of this process into a table."""
        self.store.put(table, self.nonce, json.dumps(value))

    def heed(self, verdict: Mapping[str, Any]) -> None:
        """Raises the error that a leader has put for this process, if it is one for this process."""
        if self.nonce not in texts(verdict.get("to")):
            return
        for kind in ("error", "timeout"):
            text = verdict.get(kind)
            if isinstance(text, str):
                self.quietly(self.put, "read", {})
                raise self.contradiction(text) if kind == "error" else self.out_of_time(text)

    def absence(self, missing: Iterable[Name]) -> str:
        """The sentence about processes that did not come."""
        return (
            f"{called(self.rank_info.task)} gave up after {self.timeout:.0f} s: {listed(map(called, missing))} of "
            f"{self.rank_info.size} ranks did not come; start them, and check that they use the same store and run id"
        )

    def contradiction(self, why: str) -> ClusterError:
        """The error for processes that contradict each other."""
        return self.rank_info.source.error(why[:2000], field="rendezvous")

    def out_of_time(self, why: str) -> StartTimeoutError:
        """The error for processes that did not come."""
        return StartTimeoutError(str(self.rank_info.source.error(why[:2000], field="rendezvous")))

    def _no_store(self) -> StartTimeoutError:
        served = self.rank_info.store is not None and self.rank_info.store.kind == "tcp"
        hint = "; the process that serves the store did not start, or has ended" if served else ""
        return self.out_of_time(f"{called(self.rank_info.task)} gave up after {self.timeout:.0f} s: {self.fault}{hint}")

    def _find_address(self) -> tuple[str, int]:
        for task in self.rank_info.known:
            if (task.job, task.index) == self.rank_info.task:
                assert task.host is not None and task.port is not None
                return task.host, task.port
        host = self.rank_info.host or self.store.my_host()
        ports = HeldPorts()
        task = ports.hold(Cluster((Task("worker", 0),)), {"worker:0"}).tasks[0]
        ports.offer()  # TensorFlow's server, or who starts one, takes it some time after the meeting.
        os.environ["TF_GRPC_REUSE_PORT"] = "1"
        assert task.port is not None
        return host, task.port
