"""Models of periodic synchronization in plain Python, and published values.

Tests compare the strategy with the models. The models work on everything that adds and multiplies: floats and numpy arrays.
`tests/strategies/hogwild/test_periodic_oracles.py` compares them with published values.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

# Outer optimizers, for the progress d = replica - baseline. Papers call -d the outer gradient.


@dataclass
class Average:
    """C += rate * weight * d for each push. Local SGD; with rate 1 and weights 1/n the mean of the replicas."""

    parameters: Any
    rate: float = 1.0

    def take(self, progress: Any, weight: float) -> None:
        self.parameters = self.parameters + self.rate * weight * progress


@dataclass
class Nesterov:
    """DiLoCo (arXiv 2311.08105) by rounds: g = -mean of d; m = beta m + g; C -= rate (g + beta m).

    This is the formula of `torch.optim.SGD(nesterov=True)`.
    """

    parameters: Any
    rate: float
    beta: float
    momentum: Any = 0.0

    def take_round(self, pushes: Sequence[Any], weights: Sequence[float]) -> None:
        gradient = -sum(weight * progress for weight, progress in zip(weights, pushes, strict=True))
        self.momentum = self.beta * self.momentum + gradient
        self.parameters = self.parameters - self.rate * (gradient + self.beta * self.momentum)


@dataclass
class DelayedNesterov:
    """Async Local-SGD (arXiv 2401.09135, algorithm 3 with c = 0): updates the momentum once in `every` pushes.

    Each push with g = -d moves C by -rate * g / every. Each `every`-th push first updates m = beta m + (sum of the last g) / every
    and also moves C by -rate * beta * m.
    """

    parameters: Any
    rate: float
    beta: float
    every: int
    momentum: Any = 0.0
    _sum: Any = 0.0
    _count: int = 0

    def take(self, progress: Any) -> None:
        self._sum = self._sum - progress
        self._count += 1
        step = -progress / self.every
        if self._count % self.every == 0:
            self.momentum = self.beta * self.momentum + self._sum / self.every
            self._sum = 0.0
            step = step + self.beta * self.momentum
        self.parameters = self.parameters - self.rate * step


def elastic(replica: Any, parameters: Any, rate: float) -> tuple[Any, Any]:
    """Returns the local replica and the global parameters after one synchronization by EASGD (arXiv 1412.6651)."""
    pull = rate * (replica - parameters)
    return replica - pull, parameters + pull


# Semi-synchronous training in torchft.

TORCHFT_LAYER_0 = {
    (0, 0.0): {0: 1, 1: -1, 2: -3, 3: -11, 4: -13, 5: -15, 6: -17, 7: -19, 8: -21, 9: -35, 10: -37},
    (0, 0.5): {0: 1, 1: -1, 2: -3, 3: -8, 4: -10, 8: -18, 9: -24.5, 10: -26.5},
    (0, 1.0): {3: -5, 4: -7, 5: -9},
    (1, 0.0): {0: 1, 1: -1, 2: -3, 3: -7, 4: -9, 8: -17, 9: -27},
    (1, 0.5): {3: -6, 9: -21.5},
    (1, 1.0): {3: -5, 4: -7, 5: -9},
}
"""(delay, alpha) -> step -> value of layer 0, from meta-pytorch/torchft@7eb70878 `diloco_regression_test.py` and its fixtures.

Set-up: two replicas, all gradients 2, inner rate 1, outer rate 2, weights 1, two fragments of one layer each. Each layer is
synchronized every 6 steps, layer 0 at steps 3, 9, ..., layer 1 at 6, 12, ...
"""

TORCHFT_LAYER_1 = {
    (0, 0.0): {6: -23, 12: -47},
    (0, 0.5): {6: -17, 12: -32},
    (0, 1.0): {6: -11, 12: -23},
    (1, 0.0): {6: -19, 12: -39},
    (1, 0.5): {6: -15, 12: -29},
    (1, 1.0): {6: -11, 12: -23},
}
"""The same for layer 1, at the steps at which it is synchronized."""


def torchft(delay: int, alpha: float, steps: int = 16, outer_rate: float = 2.0) -> tuple[list[list[float]], list[list[float]]]:
    """Returns the local replicas and the global parameters of both layers before step 0, 1, ...

    Pushes the progress of a layer `delay` steps before its synchronization. The replica then becomes alpha * replica +
    (1 - alpha) * global parameters, which keeps the steps in between in the proportion alpha.
    """
    replicas, outer, progress = [1.0, 1.0], [Average(1.0, outer_rate), Average(1.0, outer_rate)], [0.0, 0.0]
    history, global_history = [list(replicas)], [[1.0, 1.0]]
    for step in range(1, steps + 1):
        replicas = [replica - 1 * 2 for replica in replicas]
        for layer in (0, 1):
            synchronizes_in = (3 * (layer + 1) - step) % 6
            if synchronizes_in == delay:
                progress[layer] = replicas[layer] - outer[layer].parameters
            if synchronizes_in == 0:
                outer[layer].take(progress[layer], 1.0)  # Both replicas have the same progress, which is their mean.
                replicas[layer] = alpha * replicas[layer] + (1 - alpha) * outer[layer].parameters
        history.append(list(replicas))
        global_history.append([layer.parameters for layer in outer])
    return history, global_history


# EASGD in TensorFlow 1.


def contrib_elastic(groups: int, period: int, rate: float, steps: int, start: float = 0.0) -> list[tuple[list[float], float]]:
    """Returns replicas and global parameters after each step of the test of `tf.contrib.opt.ElasticAverageOptimizer` (v1.15).

    Gradients are -1 and the learning rate is 1. In each step the groups update and synchronize one after the other.
    """
    replicas, parameters, history = [start] * groups, start, []
    for step in range(1, steps + 1):
        for group in range(groups):
            replicas[group] += 1.0
            if step % period == 0:
                replicas[group], parameters = elastic(replicas[group], parameters, rate)
        history.append((list(replicas), parameters))
    return history


# SINGA's synchronization, as released and corrected.


def singa_parameters(latency: int, *, as_released: bool, steps: int = 4000, period: int = 16) -> float:
    """Returns the global parameters after one group made `steps` updates of +1 and pushed every `period` updates.

    Replies arrive `latency` steps after the push. Corrected, the group does what `Group` does. As released (apache/singa v0.3.0
    `src/server.cc`, HandleSyncResponse), the new baseline is the merged replica instead of the global parameters, so progress
    between push and reply is never pushed.
    """
    replica = baseline = parameters = 0.0
    at_push, sent, has_reply = 0.0, 0, True
    reply = 0.0
    for step in range(1, steps + 1):
        if not has_reply and step >= sent + latency:
            replica = reply + (replica - at_push)
            baseline = replica if as_released else reply
            has_reply = True
        replica += 1.0
        if has_reply and step - sent >= period:
            parameters += replica - baseline
            at_push, reply, sent, has_reply = replica, parameters, step, False
    return parameters


# Groups and global parameters without a barrier.


@dataclass
class Group:
    """A worker group's side of a synchronization.

    1. Push: d = replica - baseline; at_push = replica. 2. Reply C: replica = C + (replica - at_push); baseline = C.
    """

    replica: Any
    baseline: Any = None
    at_push: Any = None
    pushes: int = 0
    progress: Any = field(default=0.0)

    def __post_init__(self) -> None:
        self.baseline = self.replica if self.baseline is None else self.baseline

    def update(self, step: Any) -> None:
        self.replica = self.replica + step
        self.progress = self.progress + step

    def push(self) -> Any:
        self.at_push = self.replica
        self.pushes += 1
        return self.replica - self.baseline

    def reply(self, parameters: Any) -> None:
        self.replica = parameters + (self.replica - self.at_push)
        self.baseline = parameters


def without_barrier(
    groups: int,
    updates: int,
    period: int,
    latency: Callable[[int, int], float],
    step: Callable[[int, int], Any],
    *,
    seconds: Sequence[float] | None = None,
    start: Any = 0.0,
    on_event: Callable[[str, int], None] = lambda what, group: None,
) -> tuple[Any, list[Group]]:
    """Simulates outer optimizer average with weights 1 / groups.

    A push arrives after half of its latency, and its reply after the other half. A group has at most one synchronization in
    flight and continues its updates in the meantime.

    Args:
        groups: number of groups.
        updates: updates of each group. After the last one the group pushes the rest of its progress.
        period: fewest updates between two pushes.
        latency: (group, number of the push) -> seconds there and back.
        step: (group, number of the update) -> what the update adds to the replica.
        seconds: duration of one update, by group; None for 1.0 each.
        start: initial value of the global parameters and of all replicas.
        on_event: called with each event ("update", "push", "arrive" or "reply") and its group, in the order of the events.

    Returns:
        The global parameters at the end, and the groups.
    """
    outer = Average(start)
    members = [Group(start) for _ in range(groups)]
    seconds = [1.0] * groups if seconds is None else seconds
    since, in_flight, done = [0] * groups, [False] * groups, [0] * groups
    # (time, order, event, group, value). The order makes simultaneous events deterministic.
    events: list[tuple[float, int, str, int, Any]] = []
    order = iter(range(10**9))

    def after(time: float, event: str, group: int, value: Any = None) -> None:
        heapq.heappush(events, (time, next(order), event, group, value))

    for group in range(groups):
        after(seconds[group], "update", group)
    while events:
        now, _, event, group, value = heapq.heappop(events)
        member = members[group]
        on_event(event, group)
        if event == "update":
            member.update(step(group, done[group]))
            done[group] += 1
            since[group] += 1
            if done[group] < updates:
                after(now + seconds[group], "update", group)
        elif event == "arrive":
            outer.take(value, 1 / groups)
            after(now + latency(group, member.pushes) / 2, "reply", group, outer.parameters)
        else:
            member.reply(value)
            in_flight[group] = False
        rest = done[group] == updates and since[group] > 0
        if not in_flight[group] and (since[group] >= period or rest):
            in_flight[group], since[group] = True, 0
            on_event("push", group)
            after(now + latency(group, member.pushes + 1) / 2, "arrive", group, member.push())
    return outer.parameters, members


# Synchronous training.


def data_parallel(
    gradient: Callable[[Any, Any], Any], start: Any, batches: Sequence[Sequence[Any]], rate: float, momentum: float = 0.0
) -> Any:
    """Returns the parameters after synchronous data-parallel SGD: each step uses the mean of the gradients of all groups.

    Args:
        gradient: (parameters, batch) -> gradient of the mean loss.
        start: initial parameters.
        batches: for each step the batch of each group, all of the same size.
        rate: learning rate.
        momentum: v = momentum v - rate g; w += v, as in Keras' SGD.
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
    """Returns the global parameters after local SGD by rounds: all groups push and pull every `period` steps.

    Arguments as for `data_parallel`; each group keeps its momentum. `outer` is the outer optimizer; None for average.
    """
    groups = len(batches[0])
    outer = Average(start) if outer is None else outer
    replicas, velocities = [start] * groups, [0.0] * groups
    for number, step in enumerate(batches, start=1):
        for group, batch in enumerate(step):
            velocities[group] = momentum * velocities[group] - rate * gradient(replicas[group], batch)
            replicas[group] = replicas[group] + velocities[group]
        if number % period == 0:
            pushes = [replica - outer.parameters for replica in replicas]
            if isinstance(outer, Nesterov):
                outer.take_round(pushes, [1 / groups] * groups)
            else:
                for progress in pushes:
                    outer.take(progress, 1 / groups)
            replicas = [outer.parameters] * groups
    return outer.parameters
