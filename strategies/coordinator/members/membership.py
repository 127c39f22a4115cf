"""Which worker groups train now, whose local replica each of them trains, and how often each has been started."""

import threading
from collections.abc import Callable, Sequence
from typing import Any


class Membership:
    """The state of all worker groups, as the chief sees it. Any thread may change it.

    A group is live from the start. It is lost when an execution on it fails or when its workers do not answer, and live again
    when it takes its next execution.

    Args:
        groups: the worker groups.
        shared: whether groups with the same tasks train one local replica. Such groups are live or lost together.

    Attributes:
        owners: for each group the group whose local replica it trains: itself, or if they share, the first with its tasks.
        live: the owners that train.
        away: the owners that are lost because their workers are gone, or do not answer.
        alone: the owner that trains while all others wait; None if all train.
        when_lost: called with the owner that is lost, in the thread that notices it.
        when_changed: called with an owner whose workers have left (False), or are back and have run something (True), in the
            same way.
    """

    def __init__(self, groups: Sequence[Any], shared: bool = False) -> None:
        self.owners = _owners(groups, shared)
        self.when_lost: Callable[[int], None] = lambda owner: None
        self.when_changed: Callable[[int, bool], None] = lambda owner, has_joined: None
        self._lock = threading.RLock()
        self.live = frozenset(self.owners)
        self.away: frozenset[int] = frozenset()
        self._missed: frozenset[int] = frozenset()  # Away, or back without having ended an execution.
        self._terms = [0] * len(groups)
        self._incarnations = [0] * len(groups)
        self._uncounted = [0] * len(groups)  # Calls whose steps do not count.
        self.alone: int | None = None

    @property
    def live_groups(self) -> list[int]:
        """The numbers of the groups that train."""
        return [group for group in range(len(self.owners)) if self.is_live(group)]

    @property
    def present(self) -> list[int]:
        """The numbers of the groups whose workers are there. One whose call has failed, as with a ps, trains on later."""
        return [group for group, owner in enumerate(self.owners) if owner not in self._missed]

    def is_live(self, group: int) -> bool:
        """Returns whether a group trains."""
        return self.owners[group] in self.live

    def term(self, group: int) -> int:
        """Returns how many times a group was lost or restarted. The progress that it had then is given up."""
        return self._terms[self.owners[group]]

    def incarnation(self, group: int) -> int:
        """Returns how many times the workers of a group have been restarted."""
        return self._incarnations[group]

    def replica(self, group: int) -> int:
        """Returns how many times the local replica of a group was lost with its workers, as any group that shares it knows."""
        owner = self.owners[group]
        return max(count for other, count in zip(self.owners, self._incarnations, strict=True) if other == owner)

    def counting(self, group: int) -> tuple[int, int]:
        """Returns what changes when a group counts its metrics from zero: a restart, or a call whose steps do not count.

        A call may fail after some of its steps, because a ps is lost. They are made again, and count only then. Or another
        group has made them meanwhile.
        """
        return self._incarnations[group], self._uncounted[group]

    # Changes.

    def join(self, group: int) -> None:
        """Notes that a group runs an execution."""
        owner = self.owners[group]
        if owner not in self.live:
            with self._lock:
                self.live |= {owner}
                self.away -= {owner}

    def end(self, group: int) -> None:
        """Notes that an execution of a group has ended without an error."""
        owner = self.owners[group]
        with self._lock:
            if is_back := owner in self.live & self._missed:
                self._missed -= {owner}
        if is_back:
            self.when_changed(owner, True)

    def lose(self, group: int) -> None:
        """Notes that a group has failed or does not answer. It starts anew, and the others have its share of the weights."""
        owner = self.owners[group]
        with self._lock:
            self._terms[owner] += 1
            self.live -= {owner}
        self.when_lost(owner)

    def fail(self, group: int) -> None:
        """Notes that a group is lost because a call of it has failed. Call it in the thread of the group."""
        self.count_anew(group)
        self.lose(group)

    def count_anew(self, group: int) -> None:
        """Notes that the steps of a group's last call do not count. Call it in the thread of the group."""
        with self._lock:
            self._uncounted[group] += 1

    def leave(self, group: int) -> None:
        """Notes that a group is lost because its workers are gone, not because of an error in what they ran."""
        owner = self.owners[group]
        with self._lock:
            is_new = owner not in self._missed
            self.away |= {owner}
            self._missed |= {owner}
        if self.is_live(group):
            self.lose(group)
        if is_new:
            self.when_changed(owner, False)

    def restart(self, group: int) -> None:
        """Notes that a worker of a group has been restarted and is part of the cluster again."""
        with self._lock:
            before = self.replica(group)
            self._incarnations[group] += 1
            # Only the first one to know: those that share its replica need not pull it once more each.
            if self.replica(group) > before:
                self._terms[self.owners[group]] += 1

    def say_no_more(self) -> None:
        """Ends the calls of `when_changed`."""
        self.when_changed = lambda owner, has_joined: None

    # Training alone.

    def train_alone(self, one: bool) -> None:
        """Lets one group train while the others wait, or lets all train."""
        with self._lock:
            self.alone = self.owners[min(self.live, default=0)] if one else None

    def has_lost_alone(self) -> bool:
        """Returns whether the group that trains alone is lost."""
        return self.alone is not None and self.alone not in self.live

    def may_take(self, group: int, even_for_another: bool) -> bool:
        """Returns whether a group may take the next steps.

        Args:
            group: number of the group.
            even_for_another: whether the group replaces the one that trains alone.
        """
        with self._lock:
            if self.alone is not None and even_for_another and self.alone != self.owners[group]:
                self.alone = self.owners[group]
            return self.alone in (None, self.owners[group])

    def training(self, group: int) -> frozenset[int]:
        """Returns the owners that train beside a group, including its own."""
        own = {self.owners[group]}
        return self.live | own if self.alone is None else frozenset(own)


def _owners(groups: Sequence[Any], shared: bool) -> list[int]:
    first: dict[Any, int] = {}
    return [first.setdefault(group.tasks if shared else group.number, group.number) for group in groups]
