"""`Member`: a process in the rendezvous that does not lead. It answers leaders until one of them publishes a verdict."""

from collections.abc import Mapping
from typing import Any, NoReturn

from tfdist.cluster import Cluster
from tfdist.errors import ClusterError
from tfdist.launch.rendezvous.member_info import MemberInfo, all_tasks, cluster_of, leader_task, name_of
from tfdist.launch.rendezvous.participant import REPEAT_SECONDS, Participant
from tfdist.launch.rendezvous.stores.interface import StoreUnavailableError

GRACE_SECONDS = 2.0
"""How much longer than its own timeout a member waits for the verdict of a leader."""


class Member(Participant):
    """A process that waits for the roster of the leader. See `meet.py`."""

    def find_cluster(self) -> Cluster:
        """Takes part until a roster contains this process."""
        written_at = float("-inf")
        has_grace = False
        missing = f"{name_of(leader_task(self.rank_info))} and the processes that it waits for"
        while True:
            leaders = self.live_leaders(self.retry(lambda: self.store.get("leaders")))
            if leaders != self.leaders or self.clock.now() - written_at >= REPEAT_SECONDS:
                if leaders != self.leaders:
                    self.poll_fast()
                self.leaders = leaders
                self.retry(lambda: self.store.put("members", self.nonce, self.member_info().text()))
                written_at = self.clock.now()
            for verdict in self.retry(self.read_verdicts).values():
                cluster = self._cluster_in(verdict)
                if cluster is not None:
                    self.try_once(self.put, "read", {})
                    return cluster
                self.raise_error_of(verdict)
            if self.leaders and not has_grace:
                # The leader, whose time ends at about the same moment, knows best which processes are missing.
                self.deadline += GRACE_SECONDS
                has_grace = True
            self.wait(missing)

    def give_up(self) -> NoReturn:
        """Raises the error that names the missing processes, as far as the store shows them."""
        present = {self.rank_info.task}
        try:
            leaders, members = self.read_members("leaders"), self.read_members("members")
            present |= {leader.task for leader in leaders.values()}
            present |= {
                member.task
                for member in members.values()
                if set(member.leaders) == self.leaders or self.leaders & {*member.leaders}
            }
        except (StoreUnavailableError, ClusterError):
            pass
        missing = [task for task in all_tasks(self.rank_info) if task not in present]
        me = name_of(self.rank_info.task)
        raise self.timeout_error(
            self.absence(missing)
            if missing
            else f"{me} gave up after {self.timeout:.0f} s, and the other processes have left or leave now; if they train, "
            f"another process is {me}"
        )

    def _cluster_in(self, verdict: Mapping[str, Any]) -> Cluster | None:
        """Returns the cluster of a roster that contains this process; None for other verdicts."""
        roster = verdict.get("roster")
        if not isinstance(roster, dict) or self.nonce not in roster:
            return None  # Rosters of other runs contain other nonces.
        members = [MemberInfo.read(text) for text in roster.values()]
        tasks = sorted(member.task for member in members if member is not None and member.job == "worker")
        if None in members or tasks != [("worker", rank) for rank in range(self.rank_info.size)]:
            raise self.contradiction("the store holds a roster that tfdist did not write; use a different run id")
        return cluster_of(self.rank_info, (member for member in members if member is not None))
