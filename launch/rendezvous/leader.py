"""`Leader`: the process in the rendezvous that collects the answers of all others and publishes the verdict."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from tfdist.cluster import Cluster
from tfdist.errors import ClusterError
from tfdist.launch.rendezvous.clock import SYSTEM_CLOCK, Clock
from tfdist.launch.rendezvous.member_info import MemberInfo, TaskId, all_tasks, cluster_of, enumeration, name_of
from tfdist.launch.rendezvous.participant import POLL_SECONDS, REPEAT_SECONDS, Participant, members_in
from tfdist.launch.rendezvous.stores.interface import LOOPBACK, OpenStore, StoreUnavailableError
from tfdist.rank_info import RankInfo

SETTLE_SECONDS = 1.0
"""How long a leader with all answers waits for more: two processes with one rank start at about the same time."""

LINGER_SECONDS = 5.0
"""How long an error stays in the store for processes that come later, which would otherwise wait until their timeout."""

READ_SECONDS = 10.0
"""How long a leader waits until the others have read its verdict. A process that has not read it by then is dead."""

DEAD_SECONDS = 3 * REPEAT_SECONDS
"""A process whose rank has come again is dead, too, if it has not renewed its entry for so long since."""


@dataclass(frozen=True)
class _Sighting:
    """The latest entry of a process, and when a leader read the first one and this one."""

    member: MemberInfo
    came: float
    renewed: float


class Leader(Participant):
    """The process that publishes the roster. See `meet.py`."""

    tables = ("leaders", "verdicts", "read")

    def __init__(self, rank_info: RankInfo, store: OpenStore, timeout_seconds: float, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(rank_info, store, timeout_seconds, clock)
        self._missing: tuple[TaskId, ...] = ()
        self._ever_present: set[TaskId] = set()
        self._sightings: dict[str, _Sighting] = {}  # By nonce.

    def find_cluster(self) -> Cluster:
        """Takes part until all processes have answered."""
        complete_since: float | None = None
        written_at = float("-inf")
        count = 0
        while complete_since is None or self.clock.now() - complete_since < SETTLE_SECONDS:
            if self.clock.now() - written_at >= REPEAT_SECONDS:
                self.retry(self._write)
                written_at = self.clock.now()
            members = self.retry(self._answering_members)
            self._check([*members.values()])
            if len(members) != count:
                count = len(members)
                self.poll_fast()
            present = {member.task for member in members.values()}
            self._ever_present |= present
            self._missing = tuple(task for task in all_tasks(self.rank_info) if task not in present)
            if self._missing:
                complete_since = None  # One may have left, or the store has restarted empty.
                self.wait(enumeration(map(name_of, self._missing)))
                continue
            if complete_since is None:
                complete_since = self.clock.now()
            self.clock.sleep(POLL_SECONDS[1])  # Whatever the limit: all are there.
        cluster = cluster_of(self.rank_info, members.values())
        self._publish({"roster": {nonce: member.text() for nonce, member in members.items()}}, set(members))
        return cluster

    def give_up(self) -> NoReturn:
        """Raises the error that names the missing processes, and publishes it."""
        never_came = [task for task in self._missing if task not in self._ever_present]
        note = "" if never_came else ", or not at the same time"
        why = f"{self.absence(never_came or self._missing)}{note}"
        self._publish_error({"timeout": why})
        raise self.timeout_error(why)

    def confirm(self, error: Mapping[str, str]) -> None:
        """Publishes the error of another leader, too: where this process serves the store, it ends with this process."""
        self._publish_error(error)

    def _write(self) -> None:
        self.store.put("leaders", self.nonce, self.member_info().text())

    def _answering_members(self) -> dict[str, MemberInfo]:
        """Returns the processes that answer this leader by nonce, with itself. Other live leaders answer, too."""
        for verdict in self.read_verdicts().values():
            self.raise_error_of(verdict)
        entries = self.store.get("leaders")
        others = self.live_leaders({nonce: text for nonce, text in entries.items() if nonce != self.nonce})
        if others != self.leaders:
            self.leaders = others
            self._write()
        leaders = members_in(entries)
        members = {**self.read_members("members"), **leaders}
        answering = {nonce: member for nonce, member in members.items() if self.nonce in member.leaders}
        return {self.nonce: self.member_info(), **self._living(answering)}

    def _living(self, members: Mapping[str, MemberInfo]) -> dict[str, MemberInfo]:
        """Leaves out dead processes whose rank has come again, as in a pod that is started again. They renew no entry.

        As long as that is not known of the earlier one, the rank is left out. Another leader lives: it has answered this one.
        """
        now, before, self._sightings = self.clock.now(), self._sightings, {}
        by_task: defaultdict[TaskId, list[str]] = defaultdict(list)
        for nonce, member in members.items():
            sighting = before.get(nonce, _Sighting(member, now, now))
            self._sightings[nonce] = sighting if sighting.member == member else _Sighting(member, sighting.came, now)
            by_task[member.task].append(nonce)
        found: dict[str, MemberInfo] = {}
        for task, same in by_task.items():
            *earlier, newest = sorted(same, key=lambda nonce: self._sightings[nonce].came)
            came = self._sightings[newest].came
            living = [nonce for nonce in earlier if task == self.rank_info.task or self._sightings[nonce].renewed > came]
            if living or not earlier or now - came >= DEAD_SECONDS:
                found |= {nonce: members[nonce] for nonce in (*living, newest)}
        return found

    def _check(self, members: list[MemberInfo]) -> None:
        why = _contradiction(self.rank_info, members)
        if why is not None:
            self._publish_error({"error": why})
            raise self.contradiction(why)

    def _publish_error(self, verdict: Mapping[str, Any]) -> None:
        self.try_once(self.put, "read", {})  # Other leaders wait until this one, which has its own verdict, has read theirs.
        self._publish(verdict, set())

    def _publish(self, verdict: Mapping[str, Any], roster: set[str]) -> None:
        """Writes the verdict, waits up to `READ_SECONDS` until the processes have read it, and clears the store.

        Processes whose nonces are not in `roster`, which is empty for an error, get an error.

        A store that gives no answer meanwhile may be back before the timeout of this process, and may have lost the roster.
        """
        begin = self.clock.now()
        others = set(all_tasks(self.rank_info)) - {self.rank_info.task}
        came: dict[str, TaskId] = {}  # Includes processes that have read the verdict and left.
        pause = POLL_SECONDS[0]
        recipients: list[str] | None = None
        written_at = begin
        while self.clock.now() - begin < READ_SECONDS:
            try:
                present = self._answering_tasks()
                came |= present
                outside_roster = sorted(came.keys() - roster)
                if outside_roster != recipients or self.clock.now() - written_at >= REPEAT_SECONDS:
                    late = {"error": "another process of the same rank came first; give every process a different rank"}
                    self.put("verdicts", {**(late if roster else {}), **verdict, "to": outside_roster})
                    recipients, written_at = outside_roster, self.clock.now()
                lingers = "error" in verdict and self.clock.now() - begin < LINGER_SECONDS
                all_came = others <= set(came.values()) or not lingers
                if (roster or set(present)) - {self.nonce} <= set(self.store.get("read")) and all_came:
                    break
            except (StoreUnavailableError, ClusterError):
                if roster and self.clock.now() < self.deadline:
                    begin = self.clock.now()
            self.clock.sleep(pause)
            pause = min(pause * 1.5, POLL_SECONDS[1])
        self.try_once(self.store.clear)

    def _answering_tasks(self) -> dict[str, TaskId]:
        """Returns the tasks of the other processes that answer this leader, by nonce."""
        members = {**self.read_members("members"), **self.read_members("leaders")}
        return {nonce: member.task for nonce, member in members.items() if self.nonce in member.leaders and nonce != self.nonce}


def _contradiction(rank_info: RankInfo, members: list[MemberInfo]) -> str | None:
    """Returns how these processes contradict each other, as a sentence; None where they agree."""
    by_task: defaultdict[TaskId, list[MemberInfo]] = defaultdict(list)
    for member in sorted(members, key=lambda each: each.task):
        by_task[member.task].append(member)
    twice = [
        f"{name_of(task)} (at {enumeration(member.address for member in each)})"
        for task, each in by_task.items()
        if len(each) > 1
    ]
    if twice:
        return (
            f"{enumeration(twice)} came more than once; give every process a different rank, and every run a different run id"
        )
    first = {task: each[0] for task, each in by_task.items()}
    if len({member.size for member in first.values()}) > 1:
        sizes = enumeration(f"{name_of(task)} says {member.size}" for task, member in first.items())
        return f"the processes disagree about the number of ranks: {sizes}; start all of them with the same number"
    unexpected = [name_of(task) for task in first if task not in set(all_tasks(rank_info))]
    if unexpected:
        return (
            f"{enumeration(unexpected)} came, but the description of {name_of(rank_info.task)} has no such task; "
            "start all processes with the same description"
        )
    local = [task for task, member in first.items() if member.host.lower() in LOOPBACK]
    remote = [member.address for task, member in first.items() if task not in local]
    if local and remote:
        return (
            f"{enumeration(map(name_of, local))} can be reached at {first[local[0]].host} only, and others are at "
            f"{enumeration(remote)}; name the store's host as the other machines name it"
        )
    return None
