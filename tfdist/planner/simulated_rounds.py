"""Rounds of hogwild's outer optimizer, as strategies/hogwild/synchronization/rounds.py ends them, for the simulator."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tfdist.planner.events import Clock, Then

LONGEST_LOOK, GROWTH = 0.01, 0.3
"""A group that waits on a ps looks again after 0.3 times as long, at most after 10 ms (waiting.py in strategies/hogwild/)."""


@dataclass
class Rounds:
    """The rounds of one shard.

    Attributes:
        clock: the clock.
        groups: number of worker groups.
        complete: number of rounds that have ended.
        pushed: whether a group has pushed in time, by group; only those that have pushed.
        absent: groups for which no round waits.
        known: number of complete rounds in the last reply to each group.
    """

    clock: Clock
    groups: int
    complete: int = 0
    pushed: dict[int, bool] = field(default_factory=dict)
    absent: set[int] = field(default_factory=set)
    known: list[int] = field(default_factory=list)
    _waiting: list[tuple[int, int, float, Then]] = field(default_factory=list)
    _in_time: int = 0

    def __post_init__(self) -> None:
        self.known = [0] * self.groups

    def arrive(self, group: int, live: int, grace: float, then: Then) -> None:
        """Notes a push; calls `then` when the group gets its reply.

        Args:
            group: the group that pushes.
            live: number of groups that push to this round.
            grace: how long the group waits for others, in seconds.
            then: called once.
        """
        wanted = self.known[group] + 1
        missed = self.complete - wanted + 1
        was_in_time = self.pushed.get(group, False)
        self.pushed[group] = was_in_time or missed < 1
        self._in_time += self.pushed[group] - was_in_time
        if missed < 2:
            self.absent.discard(group)
        gone = sum(not self.pushed.get(each, False) for each in self.absent)
        if wanted > self.complete:
            self._waiting.append((group, wanted, self.clock.now, then))
            self.clock.after(grace, lambda: self._expire(wanted))
        if self._in_time >= min(live, self.groups - gone):
            self._end()
        if wanted <= self.complete and missed >= 1:
            self._reply(group, 0.0, then)

    def _expire(self, wanted: int) -> None:
        if wanted > self.complete and self.pushed:
            self.absent |= {group for group in range(self.groups) if not self.pushed.get(group, False)}
            self._end()

    def _end(self) -> None:
        self.complete += 1
        self.pushed, self._in_time = {}, 0
        waiting, self._waiting = self._waiting, []
        for group, wanted, since, then in waiting:
            if wanted <= self.complete:
                look = min(LONGEST_LOOK, GROWTH * (self.clock.now - since)) / 2
                self._reply(group, look, then)
            else:
                self._waiting.append((group, wanted, since, then))

    def _reply(self, group: int, look: float, then: Callable[[], None]) -> None:
        self.known[group] = self.complete
        self.clock.after(look, then)
