"""Simulates Hogwild in one process, in numpy, to try rates before a cluster of processes runs them.

    python benchmarks/quality_simulated.py outer=average period=16 rate=0.2 [overlap=False] [seeds=3]
    python benchmarks/quality_simulated.py outer=rounds period=16 rate=0.2 outer_rate=0.7 outer_momentum=0.7 fragments=4 delay=1

Trains the network of `quality.py` for mnist1d. All groups run in step with each other and synchronize one after the other,
evenly spread over the period. The outer optimizers are those of tests/support/periodic_oracles.py. With overlap, a group pulls
the reply one period after the push.

With outer=rounds, groups push each fragment at the same update and pull the result of the round `delay` updates later. The
rules are those of the strategy, in strategies/hogwild/synchronization/rounds.py.
"""

import ast
import itertools
import os
import sys
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import numpy as np

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.path.join(os.path.dirname(__file__), "..", "tests", "support")]
import periodic_oracles as oracles  # noqa: E402
from quality_data import CLASSES, FEATURES, HIDDEN, LOCAL_BATCH, STEPS, mnist1d  # noqa: E402
from rounds_in_numpy import Fragment, Replica  # noqa: E402

from tfdist.strategies.hogwild.synchronization import rounds  # noqa: E402
from tfdist.strategies.hogwild.synchronization.outer_schedule import momentum_for  # noqa: E402

MOMENTUM = 0.9


class Network:
    """FEATURES-HIDDEN-HIDDEN-CLASSES with relu, for several groups at once.

    Attributes:
        vectors: the parameters of each group, [groups, size].
    """

    def __init__(self, groups, seed):
        generator = np.random.default_rng(seed)
        shapes = [(FEATURES, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, CLASSES)]
        # Glorot's uniform values, as Keras begins.
        parts = []
        for rows, columns in shapes:
            limit = np.sqrt(6 / (rows + columns))
            parts += [generator.uniform(-limit, limit, rows * columns), np.zeros(columns)]
        self.vectors = np.tile(np.concatenate(parts).astype("float32"), (groups, 1))
        self.gradients = np.zeros_like(self.vectors)
        self.parameters, self.slots = self._cut(self.vectors, shapes), self._cut(self.gradients, shapes)

    @staticmethod
    def _cut(vectors, shapes):
        views, begin = [], 0
        for rows, columns in shapes:
            views.append(vectors[:, begin : begin + rows * columns].reshape(-1, rows, columns))
            begin += rows * columns
            views.append(vectors[:, begin : begin + columns].reshape(-1, 1, columns))
            begin += columns
        return views

    def logits(self, x):
        w1, b1, w2, b2, w3, b3 = self.parameters
        self.first = np.maximum(x @ w1 + b1, 0)
        self.second = np.maximum(self.first @ w2 + b2, 0)
        return self.second @ w3 + b3

    def differentiate(self, x, y):
        """Puts the gradients of the mean cross-entropy into `gradients`; x [groups, batch, FEATURES], y [groups, batch]."""
        logits = self.logits(x)
        logits -= logits.max(-1, keepdims=True)
        delta = np.exp(logits)
        delta /= delta.sum(-1, keepdims=True)
        np.put_along_axis(delta, y[..., None], np.take_along_axis(delta, y[..., None], -1) - 1, -1)
        delta /= x.shape[1]
        _, _, w2, _, w3, _ = self.parameters
        g1, h1, g2, h2, g3, h3 = self.slots
        np.matmul(self.second.swapaxes(1, 2), delta, out=g3)
        delta.sum(1, keepdims=True, out=h3)
        delta = (delta @ w3.swapaxes(1, 2)) * (self.second > 0)
        np.matmul(self.first.swapaxes(1, 2), delta, out=g2)
        delta.sum(1, keepdims=True, out=h2)
        delta = (delta @ w2.swapaxes(1, 2)) * (self.first > 0)
        np.matmul(x.swapaxes(1, 2), delta, out=g1)
        delta.sum(1, keepdims=True, out=h1)

    @classmethod
    def accuracy(cls, vector, x, y):
        network = cls(1, 0)
        network.vectors[:] = vector
        return 100 * float((network.logits(x[None])[0].argmax(-1) == y).mean())


class GlobalParameters:
    """Global parameters and outer optimizer. `take` returns a new baseline, see outer_optimizers.py of `hogwild`."""

    def __init__(self, outer, start, groups, rate, momentum):
        self.outer, self.groups = outer, groups
        self.pushed, self.rounds, self.pushes = set(), 0, []
        self.last_rounds = [0] * groups
        if outer in ("average", "sum"):
            self.optimizer = oracles.Average(start, rate)
        elif outer == "nesterov":
            self.optimizer = oracles.Nesterov(start, rate, momentum)
        else:
            self.optimizer = oracles.DelayedNesterov(start, rate, momentum, groups)

    def take(self, group, progress, before):
        if self.outer == "delayed_nesterov":
            self.optimizer.take(progress)
        elif self.outer != "nesterov":
            self.optimizer.take(progress, 1.0 if self.outer == "sum" else 1 / self.groups)
        else:
            self.pushed.add(group)
            self.pushes.append(progress)
            completed = len(self.pushed) == self.groups
            if completed:
                self.optimizer.take_round(self.pushes, [1 / self.groups] * len(self.pushes))
                self.pushed, self.pushes = set(), []
                self.rounds += 1
            known = self.optimizer.parameters if self.rounds > self.last_rounds[group] else before
            self.last_rounds[group] = self.rounds
            return self.optimizer.parameters if completed else known + progress
        return self.optimizer.parameters


class InRounds:
    """Synchronizes the replicas of all groups in rounds, each fragment `delay` updates after it has been pushed.

    Args:
        vectors: the replicas, [groups, size].
        period: takes the number of an update; returns the updates from a push of a fragment before it to the next.
        buffers: vectors of the inner optimizer that are averaged with their fragments, [groups, size].
        velocity: momentum of the inner optimizer, [groups, size].
        kick: part of what a pull adds to a replica that it also adds to the momentum.
    """

    def __init__(self, vectors, period, outer_rate, outer_momentum, fragments, delay, buffers=(), velocity=None, kick=0.0):
        groups, size = vectors.shape
        self.parts = _parts(size, fragments)
        self.fragments = [Fragment(vectors[0, part], groups, outer_rate, outer_momentum) for part in self.parts]
        self.replicas = [
            [Replica(fragment, group, vectors[group, part]) for group in range(groups)]
            for fragment, part in zip(self.fragments, self.parts, strict=True)
        ]
        self.vectors, self.period, self.delay, self.buffers = vectors, period, delay, buffers
        self.velocity, self.kick = velocity, np.float32(kick)
        self.next_push = rounds.offsets(period(0), fragments)
        self.next_pull = [-1] * fragments
        self.at_push = {}
        self.pushes = 0

    def before_step(self, step):
        """Pushes and pulls what is due before an update."""
        for number in range(len(self.parts)):
            if step == self.next_push[number]:
                self._push(number)
                self.next_push[number], self.next_pull[number] = step + self.period(step), step + self.delay
            if step == self.next_pull[number]:
                self._pull(number)

    def _push(self, number):
        self.pushes += 1
        for replica in self.replicas[number]:
            replica.push()
        self.at_push[number] = [buffer[:, self.parts[number]].copy() for buffer in self.buffers]

    def _pull(self, number):
        part = self.parts[number]
        before = self.vectors[:, part].copy() if self.kick else None
        for replica in self.replicas[number]:
            replica.pull()
        if self.kick:
            self.velocity[:, part] += self.kick * (self.vectors[:, part] - before)
        for buffer, at_push in zip(self.buffers, self.at_push[number], strict=True):
            buffer[:, part] += at_push.mean(axis=0) - at_push

    def attract(self, strength):
        """Moves all replicas a part of the way to their baselines."""
        for part, replicas in zip(self.parts, self.replicas, strict=True):
            for group, replica in enumerate(replicas):
                self.vectors[group, part] += np.float32(strength) * (replica.baseline - self.vectors[group, part])

    def collect(self):
        """Returns the global parameters with the progress of all groups."""
        for fragment, replicas in zip(self.fragments, self.replicas, strict=True):
            for replica in replicas:
                if replica.complete < fragment.round.complete:
                    replica.pull()
                replica.push(live=2**30, weight=1 / len(replicas))
            fragment.settle()
        return np.concatenate([fragment.parameters for fragment in self.fragments])


class OneByOne:
    """Synchronizes the groups one after the other, each with the global parameters.

    Args:
        vectors: the replicas, [groups, size].
        between: updates between two pushes of a group, each of one fragment.
        For the others see `train`.
    """

    def __init__(self, vectors, outer, between, outer_rate, outer_momentum, elastic_rate, fragments, delay, spread, waits):
        self.groups = len(vectors)
        start = vectors[0].copy()
        self.parts = _parts(start.size, fragments)
        self.is_elastic = outer == "elastic"
        self.shards = [start[part].copy() for part in self.parts]
        if not self.is_elastic:
            self.shards = [GlobalParameters(outer, each, self.groups, outer_rate, outer_momentum) for each in self.shards]
        self.elastic_rate = 0.9 / self.groups if elastic_rate is None else elastic_rate
        self.vectors, self.baseline = vectors, vectors.copy()
        self.between, self.delay, self.spread, self.waits = between, delay, spread, waits
        self.in_flight = [None] * self.groups
        self.turns = [0] * self.groups

    def before_step(self, step):
        """Pushes and pulls what is due before an update."""
        for group in range(self.groups):
            since = step - (group * self.between // self.groups if self.spread else 0)
            begins = since >= 0 and since % self.between == 0
            if begins or since % self.between == self.delay:
                self._pull(group)
            if begins:
                self.in_flight[group] = self._push(group, self.turns[group] % len(self.parts))
                self.turns[group] += 1
                if self.delay == 0:
                    self._pull(group)
        if self.waits and step and step % (self.between * len(self.parts)) == 0:
            self.vectors[:] = self.baseline[:] = self.shards[0].optimizer.parameters
            self.in_flight = [None] * self.groups
            self.shards[0].last_rounds = [self.shards[0].rounds] * self.groups

    def _push(self, group, number):
        part = self.parts[number]
        replica, baseline = self.vectors[group, part].copy(), self.baseline[group, part].copy()
        if self.is_elastic:
            moved, self.shards[number] = oracles.elastic(replica, self.shards[number], self.elastic_rate)
            return part, replica, moved
        return part, replica, self.shards[number].take(group, replica - baseline, baseline)

    def _pull(self, group):
        if self.in_flight[group]:
            part, replica, known = self.in_flight[group]
            self.vectors[group, part] += known - replica
            self.baseline[group, part] = known
            self.in_flight[group] = None

    def collect(self):
        """Returns the global parameters with the progress of all groups."""
        for group in range(self.groups):
            self._pull(group)
        for group in range(self.groups):
            for number in range(len(self.parts)):
                self._push(group, number)
        return np.concatenate([shard if self.is_elastic else shard.optimizer.parameters for shard in self.shards])


class InnerOptimizer:
    """SGD with momentum, or Adam with Keras' values, of all groups.

    Attributes:
        buffers: momentum, and Adam's second moments, each [groups, size].
    """

    def __init__(self, name, vectors):
        self.is_adam = name == "adam"
        self.buffers = [np.zeros_like(vectors) for _ in range(1 + self.is_adam)]

    def update(self, net, rate, step):
        if not self.is_adam:
            (velocity,) = self.buffers
            velocity *= MOMENTUM
            velocity -= np.float32(rate) * net.gradients
            net.vectors += velocity
            return
        velocity, squares = self.buffers
        velocity += np.float32(0.1) * (net.gradients - velocity)
        squares += np.float32(0.001) * (net.gradients**2 - squares)
        rate *= np.sqrt(1 - 0.999 ** (step + 1)) / (1 - 0.9 ** (step + 1))
        net.vectors -= np.float32(rate) * velocity / (np.sqrt(squares) + np.float32(1e-7))


def _parts(size, fragments):
    bounds = [size * number // fragments for number in range(fragments + 1)]
    return [slice(begin, end) for begin, end in itertools.pairwise(bounds)]


def train(
    outer,
    period,
    rate,
    seed,
    *,
    groups=8,
    outer_rate=1.0,
    outer_momentum=0.0,
    elastic_rate=None,
    overlap=True,
    delay=None,
    waits=False,
    fragments=1,
    spread=True,
    inner="sgd",
    buffers=False,
    kick=0.0,
    attract=0.0,
    qsr=None,
    follows=None,
    plan=None,
    steps=STEPS,
):
    """Returns the validation and test accuracy of the global parameters, in percent.

    Args:
        outer: as in `tfdist.Synchronization`, "synchronous", or "rounds": nesterov, or average with outer_momentum=0, in
            rounds.
        delay: updates after which a group pulls the reply; None for a period with overlap, 0 without and in rounds.
        buffers: whether groups average the buffers of the inner optimizer with their fragments: True, or "momentum" for only
            the first of Adam's two. Only in rounds, as the next three.
        kick: part of what a pull adds to a replica that it also adds to the momentum of the inner optimizer.
        attract: part of the way to its baseline that a replica moves with each update.
        follows: the outer momentum grows as the schedule lowers the learning rate, until an outer step is this many times as
            far as the groups went, see strategies/hogwild/synchronization/outer_schedule.py.
        plan: the period until a part of the training, as in ((0.9, 64), (2, 8)); in place of `period`. Only in rounds.
        qsr: the period is max(period, (qsr / learning rate)^2), which the schedule lowers (arXiv 2310.14423).
        spread: whether groups synchronize evenly spread over the period. Otherwise all synchronize at the same step.
        waits: whether groups wait for each other at the end of each round. Not with spread or overlap.
        inner: "sgd" with momentum, or "adam".
    """
    data = mnist1d()
    x, y = data["train"]
    generator = np.random.default_rng([seed, 1])
    members = 1 if outer == "synchronous" else groups
    net = Network(members, seed)
    optimizer = InnerOptimizer(inner, net.vectors)

    def rate_at(step):
        return rate * 0.5 * (1 + np.cos(np.pi * step / steps))

    def period_at(step):
        if plan is not None:
            return next(each for end, each in plan if step < end * steps)
        return period if qsr is None else int(max(period, min((qsr / max(rate_at(step), 1e-9)) ** 2, steps)))

    rates = (outer_rate, outer_momentum)
    synchronization = None
    if outer == "rounds":
        averaged = optimizer.buffers[: None if buffers is True else 1 if buffers else 0]
        velocity = optimizer.buffers[0]
        synchronization = InRounds(net.vectors, period_at, *rates, fragments, delay or 0, averaged, velocity, kick)
    elif outer != "synchronous":
        between = period // fragments
        delay = (between if overlap else 0) if delay is None else delay
        synchronization = OneByOne(net.vectors, outer, between, *rates, elastic_rate, fragments, delay, spread, waits)
    order, used = generator.permutation(len(y)), 0
    for step in range(steps):
        if used + groups * LOCAL_BATCH > len(y):
            order, used = generator.permutation(len(y)), 0
        rows = order[used : used + groups * LOCAL_BATCH].reshape(members, -1)
        used += groups * LOCAL_BATCH
        if follows:
            for fragment in synchronization.fragments:
                fragment.beta = momentum_for(outer_rate, outer_momentum, rate_at(step) / rate, follows)
        if synchronization:
            synchronization.before_step(step)
        net.differentiate(x[rows], y[rows])
        if attract:
            synchronization.attract(attract)
        optimizer.update(net, rate_at(step), step)
    final = np.nan_to_num(synchronization.collect() if synchronization else net.vectors[0])
    return Network.accuracy(final, *data["validation"]), Network.accuracy(final, *data["test"])


def main():
    options = {name: _value(text) for name, text in (argument.split("=") for argument in sys.argv[1:])}
    outer, period, rate = options.pop("outer"), options.pop("period", 1), options.pop("rate")
    for seed in range(1, options.pop("seeds", 1) + 1):
        begin = time.monotonic()
        with np.errstate(all="ignore"):  # Runs that diverge have low accuracy.
            validation, test = train(outer, period, rate, seed, **options)
        seconds = time.monotonic() - begin
        print(*sys.argv[1:], f"{seed=} validation={validation:.2f} test={test:.2f} seconds={seconds:.0f}", flush=True)


def _value(text):
    try:
        return ast.literal_eval(text)
    except ValueError:
        return text


if __name__ == "__main__":
    main()
