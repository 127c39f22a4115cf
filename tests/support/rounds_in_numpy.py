"""Rounds in numpy: one fragment of the global parameters, and the groups that train it, without a cluster.

They apply the functions of strategies/hogwild/synchronization/rounds.py, as a ps and a worker do in TensorFlow.
"""

import numpy as np

from tfdist.strategies.hogwild.synchronization import rounds
from tfdist.strategies.hogwild.synchronization.rounds import Round


class Fragment:
    """A fragment of the global parameters on a ps.

    Attributes:
        parameters: the values.
        history: the values at the end of each round, by its number.
    """

    def __init__(self, start, groups, rate=1.0, momentum=0.0):
        self.parameters = np.array(start)
        self.momentum, self.total = np.zeros_like(self.parameters), np.zeros_like(self.parameters)
        self.rate, self.beta, self.groups = rate, momentum, groups
        self.round = Round(np.zeros(groups, int), np.zeros(groups, int), 0)
        self.history = {0: self.parameters}

    def push(self, group, progress, wanted, weight=None, live=None, begins=False):
        """Takes a push. Returns the number of rounds that had ended before, and keeps in `awaited` for which the group waits."""
        before, live = self.round.complete, self.groups if live is None else live
        self.total = self.total + (1 / live if weight is None else weight) * progress
        *after, self.awaited = rounds.arrive(self.round, np.eye(self.groups, dtype=int)[group], wanted, live, np, begins)
        self._step(after)
        return before

    def expire(self, wanted):
        """Ends the round for a group that has waited for the grace time."""
        self._step(rounds.expire(self.round, wanted, np))

    def leave(self, group, live):
        """Makes a group absent because it is lost."""
        self._step(rounds.leave(self.round, np.eye(self.groups, dtype=int)[group], live, np))

    def finish(self, *groups):
        """Ends the round at the end of an epoch in which only these groups make calls."""
        self._step(rounds.finish(self.round, np.array([int(group in groups) for group in range(self.groups)]), 1, np))

    def settle(self):
        """Ends the round because all groups have flushed."""
        self._step(rounds.settle(self.round, None, 1, np))

    def _step(self, after):
        self.round, ends = after
        if ends:
            increment, self.momentum = rounds.nesterov(self.total, self.momentum, self.rate, self.beta)
            self.parameters, self.total = self.parameters + increment, np.zeros_like(self.total)
            self.history[int(self.round.complete)] = self.parameters


class Replica:
    """A group's local replica of a fragment.

    Args:
        fragment: the fragment.
        group: number of the group.
        values: the values of the replica, changed in place.
    """

    def __init__(self, fragment, group, values):
        self.fragment, self.group, self.values = fragment, group, values
        self.start()

    def start(self):
        """Starts from the global parameters."""
        self.complete = self.fragment.round.complete
        self.values[...] = self.baseline = self.fragment.parameters

    def push(self, **options):
        """Pushes the progress."""
        self.at_push = self.values.copy()
        self.pushed = self.at_push - self.baseline
        self.wanted = (self.fragment.round.complete if options.get("begins") else self.complete) + 1
        self.before = self.fragment.push(self.group, self.pushed, self.wanted, **options)

    def must_wait(self):
        """Returns whether the round of the last push has not ended yet."""
        return self.fragment.round.complete < self.wanted

    def pull(self):
        """Takes over what the ps has."""
        now = self.fragment.round.complete
        parameters, includes, is_new = self.fragment.parameters, now > self.before, now > self.complete
        self.baseline = rounds.baseline(parameters, self.baseline, self.pushed, includes, is_new, np)
        self.values += self.baseline - self.at_push
        self.complete = now


class Compressed(Replica):
    """A replica whose pushes and replies are rounded, as strategies/hogwild/synchronization/push_pull.py does.

    Args:
        fragment: as in `Replica`.
        group: as in `Replica`.
        values: as in `Replica`.
        rounded: takes values and returns what the other side decodes.
    """

    def __init__(self, fragment, group, values, rounded):
        self.rounded = rounded
        super().__init__(fragment, group, values)

    def start(self):
        """Starts from the global parameters."""
        super().start()
        self.decoded = self.fragment.parameters

    def push(self, **options):
        """Pushes the progress. The rounding error stays in the replica."""
        self.at_push = self.values.copy()
        progress = self.at_push - self.baseline
        self.pushed = self.rounded(progress)
        self.error = progress - self.pushed
        self.wanted = self.complete + 1
        self.before = self.fragment.push(self.group, self.pushed, self.wanted, **options)

    def pull(self):
        """Takes over what the ps has, of which it gets the rounded news."""
        now = self.fragment.round.complete
        self.decoded = self.decoded + self.rounded(self.fragment.parameters - self.decoded)
        includes, is_new = now > self.before, now > self.complete
        self.baseline = rounds.baseline(self.decoded, self.baseline, self.pushed, includes, is_new, np)
        self.values += self.baseline - self.at_push + self.error
        self.complete = now
