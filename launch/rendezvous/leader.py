"""The leader of a rendezvous: collects the answers of all, and decides."""

import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NoReturn

from tfdist.cluster import Cluster
from tfdist.errors import ClusterError
from tfdist.launch.rendezvous.member_info import Announcement, Name, called, cluster_of, expected, listed
from tfdist.launch.rendezvous.participant import MAX_LEADERS, POLL_SECONDS, REPEAT_SECONDS, Meeting
from tfdist.launch.rendezvous.stores.store import LOOPBACK, OpenStore, StoreUnavailableError
from tfdist.rank_info import RankInfo

SETTLE_SECONDS = 1.0
"""How long a leader that has all answers looks for more: a rank that is started twice is started at about the same time."""

LINGER_SECONDS = 5.0
"""How long a refusal stays for those who have not come yet: they would wait for nothing until their own limit."""

READ_SECONDS = 10.0
"""How long a leader waits for the others to read its verdict; who has not by then has died."""


class Leader(Meeting):
    """See `tfdist.launch.rendezvous.meet`."""

    tables = ("leaders", "verdicts", "read")
    _missing: tuple[Name, ...] = ()

    def __init__(self, rank_info: RankInfo, store: OpenStore, timeout_seconds: float) -> None:
        super().__init__(rank_info, store, timeout_seconds)
        self._came: set[Name] = set()

    def find_cluster(self) -> Cluster:
        """Takes part until all have answered."""
        complete_since: float | None = None
        put_at = float("-inf")
        known = 0
        while complete_since is None or time.monotonic() - complete_since < SETTLE_SECONDS:
            if time.monotonic() - put_at >= REPEAT_SECONDS:
                self.tries(self._announce)
                put_at = time.monotonic()
            everybody = self.tries(self._look)
            self._check([*everybody.values()])
            if len(everybody) != known:
                known = len(everybody)
                self.something_happened()
            here = {entry.task for entry in everybody.values()}
            self._came |= here
            self._missing = tuple(task for task in expected(self.rank_info) if task not in here)
            if not self._missing and complete_since is None:
                complete_since = time.monotonic()
            self.waits(listed(map(called, self._missing)))
        cluster = cluster_of(self.rank_info, everybody.values())
        self._publish({"roster": {nonce: entry.text() for nonce, entry in everybody.items()}}, set(everybody))
        return cluster

    def give_up(self) -> NoReturn:
        """Tells all who came who did not, and raises the error."""
        never = [task for task in self._missing if task not in self._came]
        gone = "" if never else ", or not at the same time"
        why = f"{self.absence(never or self._missing)}{gone}"
        self._refuse({"timeout": why})
        raise self.out_of_time(why)

    def _announce(self) -> None:
        self.store.put("leaders", self.nonce, self.announcement().text())

    def _look(self) -> dict[str, Announcement]:
        """Everybody who answers this leader, by nonce, and itself. Another leader that is alive answers, too."""
        for verdict in self.read("verdicts").values():
            self.heed(verdict)
        leaders = self.announcements("leaders")
        new = set(sorted(set(leaders) - {self.nonce})[:MAX_LEADERS]) - self.answers
        if new:
            self.answers |= new
            self._announce()
        everybody = {**self.announcements("members"), **leaders}
        found = {nonce: entry for nonce, entry in everybody.items() if self.nonce in entry.answers}
        return {self.nonce: self.announcement(), **found}

    def _check(self, everybody: list[Announcement]) -> None:
        why = _contradiction(self.rank_info, everybody)
        if why is not None:
            self._refuse({"error": why})
            raise self.contradiction(why)

    def _refuse(self, verdict: Mapping[str, Any]) -> None:
        self.quietly(self.put, "read", {})  # Another leader waits for this one to have its verdict: it has its own.
        self._publish(verdict, set())

    def _publish(self, verdict: Mapping[str, Any], roster: set[str]) -> None:
        """Puts the verdict, waits until all whom it concerns have read it, at most `READ_SECONDS`, and clears the store.

        They are the members of the roster; of a refusal, all who are here, or come soon. Who comes when the roster is complete
        is told so.
        """
        begin = time.monotonic()
        until = begin + READ_SECONDS
        lingers = begin + LINGER_SECONDS if "error" in verdict else begin
        all_of_them = set(expected(self.rank_info)) - {self.rank_info.task}
        came: dict[str, Name] = {}  # With those who have read the verdict and left.
        pause = POLL_SECONDS[0]
        told: list[str] | None = None
        while time.monotonic() < until:
            try:
                here = self._others()
                came |= here
                to = sorted(came.keys() - roster)
                if to != told:
                    late = {"error": "another process of the same rank was here first; give every process a rank of its own"}
                    self.put("verdicts", {**(late if roster else {}), **verdict, "to": to})
                    told = to
                all_came = all_of_them <= set(came.values()) or time.monotonic() >= lingers
                if (roster or set(here)) - {self.nonce} <= set(self.store.get("read")) and all_came:
                    break
            except (StoreUnavailableError, ClusterError):
                pass  # It may be back in time.
            time.sleep(pause)
            pause = min(pause * 1.5, POLL_SECONDS[1])
        self.quietly(self.store.clear)

    def _others(self) -> dict[str, Name]:
        """The tasks of those who answer this leader, by nonce."""
        entries = {**self.announcements("members"), **self.announcements("leaders")}
        return {nonce: entry.task for nonce, entry in entries.items() if self.nonce in entry.answers and nonce != self.nonce}


def _contradiction(rank_info: RankInfo, everybody: list[Announcement]) -> str | None:
    """What is wrong with the processes that are here, as a sentence; None where they agree so far."""
    by_task: defaultdict[Name, list[Announcement]] = defaultdict(list)
    for entry in sorted(everybody, key=lambda each: each.task):
        by_task[entry.task].append(entry)
    twice = [
        f"{called(task)} (at {listed(entry.address for entry in entries)})"
        for task, entries in by_task.items()
        if len(entries) > 1
    ]
    if twice:
        return f"{listed(twice)} came more than once; give every process a rank of its own, and every run a run id of its own"
    first = {task: entries[0] for task, entries in by_task.items()}
    if len({entry.size for entry in first.values()}) > 1:
        said = listed(f"{called(task)} says {entry.size}" for task, entry in first.items())
        return f"the processes disagree about the number of ranks: {said}; start all of them with the same"
    beyond = [called(task) for task in first if task not in set(expected(rank_info))]
    if beyond:
        return f"{listed(beyond)} came, and {called(rank_info.task)} knows of no such task; start all with one description"
    near = [task for task, entry in first.items() if entry.host.lower() in LOOPBACK]
    far = [entry.address for task, entry in first.items() if task not in near]
    if near and far:
        return (
            f"{listed(map(called, near))} can be reached at {first[near[0]].host} only, and others are at {listed(far)}; "
            "name the store's host as the other machines do"
        )
    return None
