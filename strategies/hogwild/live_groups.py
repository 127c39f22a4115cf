"""Which worker groups train now, and which local replica each of them trains."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.strategies.private_api import dispatch_context


class LiveGroups:
    """Tracks worker groups that start, fail, and come back.

    Args:
        groups: the worker groups.
        shared: whether groups with the same tasks train one local replica.
        coordinator: TensorFlow's ClusterCoordinator.

    Attributes:
        owners: for each group the group whose local replica it trains: itself, or if they share, the first with its tasks.
        live: owners that train.
        alone: the owner that trains while all others wait; None if all train.
    """

    def __init__(self, groups: Sequence[Any], shared: bool, coordinator: Any) -> None:
        self._groups = groups
        self.owners = _owners(groups, shared)
        self.live = set(self.owners)
        self.alone: int | None = None
        self._starts = [0] * len(groups)
        # The coordinator creates this value again on a worker that has been restarted. The chief notices restarts by that.
        self._markers = coordinator._create_per_worker_variables(self._note_start)

    def _note_start(self) -> Any:
        group = dispatch_context().worker_index
        self._starts[group] += 1
        with tf.device(self._groups[group].devices[0]):
            return tf.zeros([])

    def incarnation_of(self, group: int) -> int:
        """Returns how many times the leader of a group has been started."""
        return self._starts[group]

    def notice_restart(self, group: int) -> None:
        """Updates `incarnation_of` a group. Call it in the thread of the group before it runs a function."""
        dispatched = dispatch_context()
        if dispatched is not None:
            dispatched.maybe_get_remote_value(self._markers._values[group])

    def training(self, group: int) -> set[int]:
        """Returns the owners that train beside a group, including itself."""
        return self.live | {group} if self.alone is None else {group}

    def train_alone(self, one: bool) -> None:
        """Lets one group train while the others wait, or lets all train."""
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
        if self.alone is not None and even_for_another:
            self.alone = self.owners[group]
        return self.alone in (None, self.owners[group])


def _owners(groups: Sequence[Any], shared: bool) -> list[int]:
    first: dict[Any, int] = {}
    return [first.setdefault(group.tasks if shared else group.number, group.number) for group in groups]
