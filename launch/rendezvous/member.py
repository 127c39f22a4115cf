"""A process at the rendezvous that does not lead it: answers leaders until one of them has its verdict."""

import time
from collections.abc import Mapping
from typing import Any, NoReturn

from tfdist.cluster import Cluster
from tfdist.errors import ClusterError
from tfdist.launch.rendezvous.member_info import Announcement, called, cluster_of, expected, leader_of
from tfdist.launch.rendezvous.participant import MAX_LEADERS, REPEAT_SECONDS, Meeting
from tfdist.launch.rendezvous.stores.store import StoreUnavailableError

GRACE_SECONDS = 2.0
"""How much longer than its own limit a member waits for the verdict of a leader."""


class Member(Meeting):
    """See `tfdist.launch.rendezvous.meet`."""

    def find_cluster(self) -> Cluster:
        """Takes part until a roster has this process in it."""
        put_at = float("-inf")
        waits_longer = False
        whom = f"{called(leader_of(self.rank_info))}, and for those that it waits for"
        while True:
            leaders = set(sorted(self.tries(lambda: self.store.get("leaders")))[:MAX_LEADERS])
            if leaders != self.answers or time.monotonic() - put_at >= REPEAT_SECONDS:
                if leaders != self.answers:
                    self.something_happened()
                self.answers = leaders
                self.tries(lambda: self.store.put("members", self.nonce, self.announcement().text()))
                put_at = time.monotonic()
            for verdict in self.tries(lambda: self.read("verdicts")).values():
                roster = self._my_roster(verdict)
                if roster is not None:
                    self.quietly(self.put, "read", {})
                    return roster
                self.heed(verdict)
            if self.answers and not waits_longer:
                # The leader, whose time is up at about the same moment, says best who is missing.
                self.deadline += GRACE_SECONDS
                waits_longer = True
            self.waits(whom)

    def give_up(self) -> NoReturn:
        """Raises the error that says who did not come, as far as the store tells."""
        came = {self.rank_info.task}
        try:
            leaders, members = self.announcements("leaders"), self.announcements("members")
            came |= {leader.task for leader in leaders.values()}
            came |= {
                each.task for each in members.values() if set(each.answers) == self.answers or self.answers & {*each.answers}
            }
        except (StoreUnavailableError, ClusterError):
            pass
        missing = [task for task in expected(self.rank_info) if task not in came]
        me = called(self.rank_info.task)
        raise self.out_of_time(
            self.absence(missing)
            if missing
            else f"{me} gave up after {self.timeout:.0f} s, and the others have left or are about to; if they train, another "
            f"process is {me}"
        )

    def _my_roster(self, verdict: Mapping[str, Any]) -> Cluster | None:
        """The cluster of a roster in which this process stands; rosters of other runs have other nonces."""
        roster = verdict.get("roster")
        if not isinstance(roster, dict) or self.nonce not in roster:
            return None
        everybody = [Announcement.read(text) for text in roster.values()]
        tasks = sorted(entry.task for entry in everybody if entry is not None and entry.job == "worker")
        if None in everybody or tasks != [("worker", rank) for rank in range(self.rank_info.size)]:
            raise self.contradiction("the store holds a roster that tfdist did not write; use a run id of its own")
        return cluster_of(self.rank_info, (entry for entry in everybody if entry is not None))
