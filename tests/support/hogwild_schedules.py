"""Events for `programs/hogwild_exact.py`: what worker groups are to do, in which order."""

import random

import numpy as np
from periodic_oracles import without_barrier

DELAYS = (0, 1, 4, 8, 15)
UPDATES = 32


def ones(count):
    return [[1.0]] * count


def replay(groups, updates, period, latency, step, **options):
    """What the model does with these arguments, see `without_barrier`, as events; and its centre and copies at the end."""
    events, rows = [], [[] for _ in range(groups)]
    done = [0] * groups

    def told(what, group):
        if what == "update":
            row = step(group, done[group])
            rows[group].append(np.atleast_1d(row).tolist())
            done[group] += 1
        elif what == "push":
            if rows[group]:
                events.append(["steps", group, rows[group]])
            rows[group] = []
        elif what == "centre":
            events.append(["begin", group, rows[group]])  # Until the reply, steps go into this list.
        else:
            events.append(["end", group])
            rows[group] = []

    centre, members = without_barrier(groups, updates, period, latency, step, told=told, **options)
    return events, centre, [member.copy for member in members]


def any_delay(groups=3):
    """Events of `UPDATES` updates of +1 of each group with each delay of the answers, one schedule after the other."""
    events = []
    for delay in DELAYS:
        events += [*replay(groups, UPDATES, 16, lambda *_, delay=delay: delay, lambda *_: 1.0)[0], ["collect"], ["read"]]
    return events


def random_schedules():
    """Seeded schedules one after the other; and for each the centre and copies that it has to end with."""
    events, expected, start = [], [], np.zeros(5)
    for seed in range(3):
        chance, numbers = random.Random(seed), np.random.default_rng(seed).normal(size=(3, 24, 5))
        schedule, centre, copies = replay(
            3,
            24,
            chance.randint(1, 7),
            lambda group, push, seed=seed: random.Random(f"{seed} {group} {push}").choice([0.0, 0.5, 3.0, 10.0]),
            lambda group, number, numbers=numbers: numbers[group, number],
            seconds=[chance.uniform(0.3, 3.0) for _ in range(3)],
            start=start,
        )
        events += [*schedule, ["read"], ["collect"], ["read"]]
        expected.append((centre, copies))
        start = centre
    return events, expected


def torchft_events(delay):
    events = [["read"]]
    for step in range(1, 17):
        if (3 - step) % 6 == delay - 1 or (6 - step) % 6 == delay - 1:  # An answer is under way during this step.
            events.append(["exchange", 0, [[-2.0]], 0.0, [0 if (3 - step) % 6 == delay - 1 else 1]])
        else:
            events.append(["steps", 0, [[-2.0]]])
        if delay == 0 and step % 3 == 0:
            events.append(["exchange", 0, [], 0.0, [0 if step % 6 == 3 else 1]])
        events.append(["read"])
    return events


def elastic_events(groups, period):
    events = []
    for step in range(1, 7):
        for group in range(groups):
            events.append(["steps", group, [[1.0]]])
            if step % period == 0:
                events.append(["exchange", group])
        events.append(["read"])
    return events


TARGETS = np.random.default_rng(4).normal(size=(20, 3, 5))
"""[step, group, value]: SGD on (w - target)^2 / 2 at rate 0.1."""


def quadratic(step, group, count):
    return ["steps", group, (0.1 * TARGETS[step : step + count, group]).tolist(), -0.1]


def rounds():
    events = []
    for step in range(0, 20, 4):
        events += [*(quadratic(step, group, 4) for group in range(3)), ["collect"], ["read"]]
    return events


# (group, steps before, steps while the answer is under way): uneven, and one group twice in a round.
UNEVEN = [
    (0, 2, 1),
    (1, 1, 0),
    (0, 1, 2),
    (2, 3, 1),
    (2, 1, 0),
    (1, 2, 2),
    (2, 0, 1),
    (0, 4, 0),
    (1, 1, 1),
    (0, 1, 0),
    (2, 2, 0),
]


def uneven_events():
    events = []
    for group, before, meanwhile in UNEVEN:
        events += [["steps", group, ones(before)], ["exchange", group, ones(meanwhile)], ["read"]]
    return events


def partly():
    """A round in which one group has pushed twice and another not at all, when everything is brought together."""
    return [
        ["steps", 0, ones(3)],
        ["exchange", 0, ones(2)],
        ["steps", 1, ones(5)],
        ["exchange", 0, ones(1)],
        ["collect"],
        ["read"],
        ["steps", 2, ones(6)],
        ["collect"],
        ["read"],
    ]


def with_a_loss():
    """A group fails after its first exchange; the others go on."""
    events = [["steps", 2, ones(3)], ["exchange", 2], ["lost", 2]]
    for group in (0, 1):
        events += [["steps", group, ones(4)], ["exchange", group]]
    return [*events, ["read"]]


def each_after_the_other():
    events = []
    for group, before, meanwhile in ((0, 2, 1), (1, 4, 0), (2, 1, 0)):
        events += [["steps", group, ones(before)], ["exchange", group, ones(meanwhile)]]
    return [*events, ["read"], ["hand_over", [0, 1, 2]], ["read"]]


def slice_by_slice():
    """The first group exchanges both slices, the second the other while the first exchanges again."""
    return [
        ["steps", 0, ones(1)],
        ["exchange", 0, ones(1), 0.0, [0]],
        ["read"],
        ["exchange", 0, ones(1), 0.0, [1]],
        ["read"],
        ["begin", 1, ones(3), 0.0, [1]],
        ["exchange", 0, [], 0.0, [0]],
        ["end", 1],
        ["read"],
        ["hand_over", [0, 1]],
        ["read"],
    ]


MIXED = [(0, 3, 1), (1, 2, 0), (2, 6, 2), (0, 1, 0), (2, 1, 1), (1, 4, 3)]
"""(group, steps before its exchange, steps meanwhile), for rings and pairs."""


def mixed_events():
    events = []
    for group, before, meanwhile in MIXED:
        events += [["steps", group, ones(before)], ["exchange", group, ones(meanwhile)], ["read"]]
    return [*events, ["collect"], ["read"]]


NUMBERS = np.random.default_rng(6).normal(size=(3, 700)) * np.exp(np.random.default_rng(7).normal(size=(3, 700)) * 2)
EMPTY = 4


def compressed_events():
    events = [["steps", group, NUMBERS[group : group + 1].tolist()] for group in range(3)]
    for _ in range(1 + EMPTY):
        events += [*(["exchange", group] for group in range(3)), ["read"]]
    return [*events, *([["steps", group, NUMBERS[group : group + 1].tolist()] for group in range(3)]), ["collect"], ["read"]]
