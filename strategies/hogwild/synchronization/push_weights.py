"""The weight of what a worker group pushes: equal for all groups, or by examples."""

from collections.abc import Collection


class PushWeights:
    """Counts the examples that groups train on, and returns the weights of their pushes.

    Args:
        groups: number of worker groups.
        by_examples: whether weights follow the number of examples. Otherwise they are equal.

    Attributes:
        trained: for each group, the examples that it has trained on since its last push.
        pushed: for each group, the examples that went into its last push.
    """

    def __init__(self, groups: int, by_examples: bool) -> None:
        self._by_examples = by_examples
        self.trained = [0.0] * groups
        self.pushed = [0.0] * groups

    def count_examples(self, group: int, examples: float) -> None:
        """Adds examples on which a group trains with its next call."""
        self.trained[group] += examples

    def count_push(self, group: int) -> None:
        """Notes that a group pushes with its next call."""
        # A group pushes each of its blocks in a push of its own. Only the first has examples to count.
        if self.trained[group]:
            self.pushed[group], self.trained[group] = self.trained[group], 0.0

    def weight(self, group: int, live: Collection[int]) -> float:
        """Returns the weight of the next push of a group.

        Args:
            group: number of the group.
            live: numbers of the groups whose pushes it is averaged with, including `group`.
        """
        own = self.pushed[group]
        if not self._by_examples:
            return 1.0 / len(live)
        # A group that has not pushed yet counts as much as this one.
        return own / sum(self.pushed[other] or own for other in live) if own else 1.0 / len(live)
