"""What periodic synchronization has to compute, in plain Python: models to compare the strategy with, and published values.

The models work on anything that adds and multiplies: floats, numpy arrays. `tests/test_periodic_oracles.py` checks them against the
numbers that others have printed.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

# What the centre does with a change d = copy - base ("the outer gradient" is -d).


@dataclass
class Average:
    """C += rate * weight * d, one change at a time (local SGD; with rate 1 and all weights 1/n the mean of the copies)."""

    centre: Any
    rate: float = 1.0

    def take(self, change: Any, weight: float) -> None:
        self.centre = self.centre + self.rate * weight * change


@dataclass
class Nesterov:
    """DiLoCo (arXiv 2311.08105) by rounds: g = -mean of the changes; m = beta m + g; C -= rate (g + beta m).

    With `torch.optim.SGD(nesterov=True)` as the outer optimizer this is its formula.
    """

    centre: Any
    rate: float
    beta: float
    momentum: Any = 0.0

    def take_round(self, changes: Sequence[Any], weights: Sequence[float]) -> None:
        gradient = -sum(weight * change for weight, change in zip(weights, changes, strict=True))
        self.momentum = self.beta * self.momentum + gradient
        self.centre = self.centre - self.rate * (gradient + self.beta * self.momentum)


@dataclass
class DelayedNesterov:
    """Async Local-SGD (arXiv 2401.09135, algorithm 3 with c = 0): momentum is updated once in `every` changes.

    C -= rate * g / every for each change's g = -d; with each `every`-th, first m = beta m + (sum of the last g) / every, and C also
    moves by -rate * beta * m.
    """

    centre: Any
    rate: float
    beta: float
    every: int
    momentum: Any = 0.0
    _gathered: Any = 0.0
    _taken: int = 0

    def take(self, change: Any) -> None:
        self._gathered = self._gathered - change
        self._taken += 1
        step = -change / self.every
        if self._taken % self.every == 0:
            self.momentum = self.beta * self.momentum + self._gathered / self.every
            self._gathered = 0.0
            step = step + self.beta * self.momentum
        self.centre = self.centre - self.rate * step


def elastic(copy: Any, centre: Any, rate: float) -> tuple[Any, Any]:
    """EASGD (arXiv 1412.6651): the copy and the centre after one exchange."""
    pull = rate * (copy - centre)
    return copy - pull, centre + pull


# Semi-synchronous training of torchft.

TORCHFT_LAYER_0 = {
    (0, 0.0): {0: 1, 1: -1, 2: -3, 3: -11, 4: -13, 5: -15, 6: -17, 7: -19, 8: -21, 9: -35, 10: -37},
    (0, 0.5): {0: 1, 1: -1, 2: -3, 3: -8, 4: -10, 8: -18, 9: -24.5, 10: -26.5},
    (0, 1.0): {3: -5, 4: -7, 5: -9},
    (1, 0.0): {0: 1, 1: -1, 2: -3, 3: -7, 4: -9, 8: -17, 9: -27},
    (1, 0.5): {3: -6, 9: -21.5},
    (1, 1.0): {3: -5, 4: -7, 5: -9},
}
"""(delay, alpha) -> step -> value of layer 0, of meta-pytorch/torchft@7eb70878 `diloco_regression_test.py` and its fixtures.

Set-up: two replicas, all gradients 2, inner rate 1, outer rate 2, weights 1, two fragments of one layer, an exchange of each layer
every 6 steps, layer 0 at steps 3, 9, ..., layer 1 at 6, 12, ...
"""

TORCHFT_LAYER_1 = {
    (0, 0.0): {6: -23, 12: -47},
    (0, 0.5): {6: -17, 12: -32},
    (0, 1.0): {6: -11, 12: -23},
    (1, 0.0): {6: -19, 12: -39},
    (1, 0.5): {6: -15, 12: -29},
    (1, 1.0): {6: -11, 12: -23},
}
"""The same of layer 1, at the steps at which it is exchanged."""


def torchft(delay: int, alpha: float, steps: int = 16, outer_rate: float = 2.0) -> tuple[list[list[float]], list[list[float]]]:
    """The copies and the centres of both layers before step 0, 1, ...

    A layer's change is taken `delay` steps before its exchange; the copy becomes alpha * copy + (1 - alpha) * centre, so that what the
    copy did in between is kept in the proportion alpha.
    """
    copies, centres, changes = [1.0, 1.0], [Average(1.0, outer_rate), Average(1.0, outer_rate)], [0.0, 0.0]
    history, global_history = [list(copies)], [[1.0, 1.0]]
    for step in range(1, steps + 1):
        copies = [copy - 1 * 2 for copy in copies]
        for layer in (0, 1):
            exchange_in = (3 * (layer + 1) - step) % 6
            if exchange_in == delay:
                changes[layer] = copies[layer] - centres[layer].centre
            if exchange_in == 0:
                centres[layer].take(changes[layer], 1.0)  # Both replicas have the same, which is their mean.
                copies[layer] = alpha * copies[layer] + (1 - alpha) * centres[layer].centre
        history.append(list(copies))
        global_history.append([layer.centre for layer in centres])
    return history, global_history


# EASGD of TensorFlow 1.


def contrib_elastic(groups: int, period: int, rate: float, steps: int, start: float = 0.0) -> list[tuple[list[float], float]]:
    """The copies and the centre after each step of `tf.contrib.opt.ElasticAverageOptimizer`'s test (v1.15).

    Gradients are -1, the learning rate is 1; in each step the groups update and exchange one after the other.
    """
    copies, centre, history = [start] * groups, start, []
    for step in range(1, steps + 1):
        for group in range(groups):
            copies[group] += 1.0
            if step % period == 0:
                copies[group], centre = elastic(copies[group], centre, rate)
        history.append((list(copies), centre))
    return history


# The exchange of SINGA, as it was released and as it should be.


def singa_centre(latency: int, *, as_released: bool, steps: int = 4000, period: int = 16) -> float:
    """The centre after one group did `steps` updates of +1 and pushed every `period`; the reply comes `latency` steps later.

    Corrected, it is what `Group` does. As released (apache/singa v0.3.0 `src/server.cc`, HandleSyncResponse) the new baseline
    is the merged copy and not the centre, and what was done while the reply was under way is never pushed.
    """
    copy = baseline = centre = 0.0
    base, sent, answered = 0.0, 0, True
    answer = 0.0
    for step in range(1, steps + 1):
        if not answered and step >= sent + latency:
            copy = answer + (copy - base)
            baseline = copy if as_released else answer
            answered = True
        copy += 1.0
        if answered and step - sent >= period:
            centre += copy - baseline
            base, answer, sent, answered = copy, centre, step, False
    return centre


# Groups and centre without a barrier.


@dataclass
class Group:
    """A worker group's side of an exchange.

    1. push: d = copy - baseline; base = copy. 2. reply C: copy = C + (copy - base); baseline = C.
    """

    copy: Any
    baseline: Any = None
    base: Any = None
    pushed: int = 0
    progress: Any = field(default=0.0)

    def __post_init__(self) -> None:
        self.baseline = self.copy if self.baseline is None else self.baseline

    def update(self, step: Any) -> None:
        self.copy = self.copy + step
        self.progress = self.progress + step

    def push(self) -> Any:
        self.base = self.copy
        self.pushed += 1
        return self.copy - self.baseline

    def reply(self, centre: Any) -> None:
        self.copy = centre + (self.copy - self.base)
        self.baseline = centre


def without_barrier(
    groups: int,
    updates: int,
    period: int,
    latency: Callable[[int, int], float],
    step: Callable[[int, int], Any],
    *,
    seconds: Sequence[float] | None = None,
    start: Any = 0.0,
    told: Callable[[str, int], None] = lambda what, group: None,
) -> tuple[Any, list[Group]]:
    """The centre under outer average with weights 1 / groups after all groups did `updates` updates and pushed the rest.

    A change reaches the centre half its latency after it was pushed and the reply the group the other half later; a group has one
    exchange under way at most and goes on meanwhile.

    Args:
        groups: number of groups.
        updates: updates of each group.
        period: least updates between two pushes.
        latency: (group, number of the push) -> seconds there and back.
        step: (group, number of the update) -> what the update adds to the copy.
        seconds: of one update, by group; 1.0 each where None.
        start: the value of the centre and of all copies at first.
        told: called with what happens, "update", "push", "centre" or "reply", and the group, in the order in which it does.
    """
    centre = Average(start)
    members = [Group(start) for _ in range(groups)]
    seconds = [1.0] * groups if seconds is None else seconds
    since, under_way, done = [0] * groups, [False] * groups, [0] * groups
    # (time, order, what happens, group, with what); the order makes equal times come out the same every time.
    events: list[tuple[float, int, str, int, Any]] = []
    order = iter(range(10**9))

    def after(time: float, what: str, group: int, value: Any = None) -> None:
        heapq.heappush(events, (time, next(order), what, group, value))

    for group in range(groups):
        after(seconds[group], "update", group)
    while events:
        now, _, what, group, value = heapq.heappop(events)
        member = members[group]
        told(what, group)
        if what == "update":
            member.update(step(group, done[group]))
            done[group] += 1
            since[group] += 1
            if done[group] < updates:
                after(now + seconds[group], "update", group)
        elif what == "centre":
            centre.take(value, 1 / groups)
            after(now + latency(group, member.pushed) / 2, "reply", group, centre.centre)
        else:
            member.reply(value)
            under_way[group] = False
        rest = done[group] == updates and since[group] > 0
        if not under_way[group] and (since[group] >= period or rest):
            under_way[group], since[group] = True, 0
            told("push", group)
            after(now + latency(group, member.pushed + 1) / 2, "centre", group, member.push())
    return centre.centre, members


# Synchronous training by hand.


def data_parallel(
    gradient: Callable[[Any, Any], Any], start: Any, batches: Sequence[Sequence[Any]], rate: float, momentum: float = 0.0
) -> Any:
    """The parameters after synchronous data-parallel SGD: each step takes the mean of the gradients of all groups.

    Args:
        gradient: (parameters, batch) -> gradient of the mean loss.
        start: the parameters at first.
        batches: for each step the batch of each group, all of one size.
        rate: learning rate.
        momentum: v = momentum v - rate g; w += v, as Keras' SGD.
    """
    parameters, velocity = start, 0.0
    for step in batches:
        velocity = momentum * velocity - rate * sum(gradient(parameters, batch) for batch in step) / len(step)
        parameters = parameters + velocity
    return parameters


def local_sgd(
    gradient: Callable[[Any, Any], Any],
    start: Any,
    batches: Sequence[Sequence[Any]],
    rate: float,
    period: int,
    momentum: float = 0.0,
    outer: "Average | Nesterov | None" = None,
) -> Any:
    """The centre after local SGD by rounds: every `period` steps all changes go to the centre, and all copies become the centre.

    Arguments as for `data_parallel`; momentum stays with the group. `outer` is the centre's rule, average where None.
    """
    groups = len(batches[0])
    outer = Average(start) if outer is None else outer
    copies, velocities = [start] * groups, [0.0] * groups
    for number, step in enumerate(batches, start=1):
        for group, batch in enumerate(step):
            velocities[group] = momentum * velocities[group] - rate * gradient(copies[group], batch)
            copies[group] = copies[group] + velocities[group]
        if number % period == 0:
            changes = [copy - outer.centre for copy in copies]
            if isinstance(outer, Nesterov):
                outer.take_round(changes, [1 / groups] * groups)
            else:
                for change in changes:
                    outer.take(change, 1 / groups)
            copies = [outer.centre] * groups
    return outer.centre
