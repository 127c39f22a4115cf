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
        bounds = [size * number // fragments for number in range(fragments + 1)]
        self.parts = [slice(begin, end) for begin, end in itertools.pairwise(bounds)]
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
    synchronous_ = outer == "synchronous"
    members = 1 if synchronous_ else groups
    net = Network(members, seed)
    start = net.vectors[0].copy()
    size = start.size
    bounds = [size * number // fragments for number in range(fragments + 1)]
    parts = [slice(a, b) for a, b in itertools.pairwise(bounds)]
    shards = (
        [start[part].copy() for part in parts]
        if outer == "elastic"
        else [GlobalParameters(outer, start[part], groups, outer_rate, outer_momentum) for part in parts]
    )
    elastic_rate = 0.9 / groups if elastic_rate is None else elastic_rate
    baseline = net.vectors.copy()
    in_flight = [None] * groups
    turns = [0] * groups
    velocity, squares = np.zeros_like(net.vectors), np.zeros_like(net.vectors)

    def rate_at(step):
        return rate * 0.5 * (1 + np.cos(np.pi * step / steps))

    in_rounds = None
    if outer == "rounds":
        averaged = [velocity, squares] if buffers is True and inner == "adam" else [velocity] if buffers else []

        def period_at(step):
            if plan is not None:
                return next(each for end, each in plan if step < end * steps)
            return period if qsr is None else int(max(period, min((qsr / max(rate_at(step), 1e-9)) ** 2, steps)))

        rates = (outer_rate, outer_momentum)
        in_rounds = InRounds(net.vectors, period_at, *rates, fragments, delay or 0, averaged, velocity, kick)
    each = period // fragments
    delay = (each if overlap else 0) if delay is None else delay
    order, used = generator.permutation(len(y)), 0

    def push(group, number):
        part = parts[number]
        replica = net.vectors[group, part].copy()
        if outer == "elastic":
            moved, shards[number] = oracles.elastic(replica, shards[number], elastic_rate)
            return part, replica, moved
        return part, replica, shards[number].take(group, replica - baseline[group, part], baseline[group, part].copy())

    def pull(group, part, replica, known):
        net.vectors[group, part] += known - replica
        baseline[group, part] = known

    for step in range(steps):
        if used + groups * LOCAL_BATCH > len(y):
            order, used = generator.permutation(len(y)), 0
        rows = order[used : used + groups * LOCAL_BATCH].reshape(members, -1)
        used += groups * LOCAL_BATCH
        if in_rounds:
            if follows:
                for fragment in in_rounds.fragments:
                    fragment.beta = momentum_for(outer_rate, outer_momentum, rate_at(step) / rate, follows)
            in_rounds.before_step(step)
        elif not synchronous_:
            for group in range(groups):
                offset = group * each // groups if spread else 0
                begins = step >= offset and (step - offset) % each == 0
                if in_flight[group] and (begins or (step - offset) % each == delay):
                    pull(group, *in_flight[group])
                    in_flight[group] = None
                if begins:
                    in_flight[group] = push(group, turns[group] % fragments)
                    turns[group] += 1
                    if delay == 0:
                        pull(group, *in_flight[group])
                        in_flight[group] = None
        if waits and step and step % period == 0:
            net.vectors[:] = baseline[:] = shards[0].optimizer.parameters
            in_flight = [None] * groups
            shards[0].last_rounds = [shards[0].rounds] * groups
        net.differentiate(x[rows], y[rows])
        now = rate_at(step)
        if in_rounds and attract:
            in_rounds.attract(attract)
        if inner == "adam":  # Keras' values: 0.9, 0.999, 1e-7.
            velocity += np.float32(0.1) * (net.gradients - velocity)
            squares += np.float32(0.001) * (net.gradients**2 - squares)
            now *= np.sqrt(1 - 0.999 ** (step + 1)) / (1 - 0.9 ** (step + 1))
            net.vectors -= np.float32(now) * velocity / (np.sqrt(squares) + np.float32(1e-7))
            continue
        velocity *= MOMENTUM
        velocity -= np.float32(now) * net.gradients
        net.vectors += velocity
    if synchronous_:
        final = net.vectors[0]
    elif in_rounds:
        final = in_rounds.collect()
    else:
        for group in range(groups):
            if in_flight[group]:
                pull(group, *in_flight[group])
        for group in range(groups):
            for number in range(fragments):
                push(group, number)
        final = np.concatenate([c if outer == "elastic" else c.optimizer.parameters for c in shards])
    final = np.nan_to_num(final)
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
