"""Schedules for `programs/hogwild_exact.py`: lists of events, each a method of its `Case` with arguments."""

import random

import numpy as np
from periodic_oracles import without_barrier

DELAYS = (0, 1, 4, 8, 15)
UPDATES = 32


def ones(count):
    return [[1.0]] * count


def replay(groups, updates, period, latency, step, **options):
    """Returns the events of `without_barrier` with these arguments, and its global parameters and replicas at the end."""
    events, rows = [], [[] for _ in range(groups)]
    done = [0] * groups

    def on_event(event, group):
        if event == "update":
            row = step(group, done[group])
            rows[group].append(np.atleast_1d(row).tolist())
            done[group] += 1
        elif event == "push":
            if rows[group]:
                events.append(["steps", group, rows[group]])
            rows[group] = []
        elif event == "arrive":
            events.append(["push", group, rows[group]])  # Until the reply, updates go into this list.
        else:
            events.append(["pull", group])
            rows[group] = []

    parameters, members = without_barrier(groups, updates, period, latency, step, on_event=on_event, **options)
    return events, parameters, [member.replica for member in members]


def any_delay(groups=3):
    """Returns schedules with `UPDATES` updates of +1 of each group, one for each delay of the replies."""
    events = []
    for delay in DELAYS:
        events += [*replay(groups, UPDATES, 16, lambda *_, delay=delay: delay, lambda *_: 1.0)[0], ["collect"], ["read"]]
    return events


def random_schedules():
    """Returns seeded schedules, and for each the expected global parameters and replicas at the end."""
    events, expected, start = [], [], np.zeros(5)
    for seed in range(3):
        chance, numbers = random.Random(seed), np.random.default_rng(seed).normal(size=(3, 24, 5))
        schedule, parameters, replicas = replay(
            3,
            24,
            chance.randint(1, 7),
            lambda group, push, seed=seed: random.Random(f"{seed} {group} {push}").choice([0.0, 0.5, 3.0, 10.0]),
            lambda group, number, numbers=numbers: numbers[group, number],
            seconds=[chance.uniform(0.3, 3.0) for _ in range(3)],
            start=start,
        )
        events += [*schedule, ["read"], ["collect"], ["read"]]
        expected.append((parameters, replicas))
        start = parameters
    return events, expected


def torchft_events(delay):
    events = [["read"]]
    for step in range(1, 17):
        if (3 - step) % 6 == delay - 1 or (6 - step) % 6 == delay - 1:  # A reply is in flight during this step.
            events.append(["synchronize", 0, [[-2.0]], 0.0, [0 if (3 - step) % 6 == delay - 1 else 1]])
        else:
            events.append(["steps", 0, [[-2.0]]])
        if delay == 0 and step % 3 == 0:
            events.append(["synchronize", 0, [], 0.0, [0 if step % 6 == 3 else 1]])
        events.append(["read"])
    return events


def elastic_events(groups, period):
    events = []
    for step in range(1, 7):
        for group in range(groups):
            events.append(["steps", group, [[1.0]]])
            if step % period == 0:
                events.append(["synchronize", group])
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


# (group, steps before the push, steps until the reply): uneven, and one group twice in a round.
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
        events += [["steps", group, ones(before)], ["synchronize", group, ones(meanwhile)], ["read"]]
    return events


def open_round():
    """A collection in the middle of a round, in which one group has pushed twice and another not at all."""
    return [
        ["steps", 0, ones(3)],
        ["synchronize", 0, ones(2)],
        ["steps", 1, ones(5)],
        ["synchronize", 0, ones(1)],
        ["collect"],
        ["read"],
        ["steps", 2, ones(6)],
        ["collect"],
        ["read"],
    ]


def with_a_lost_group():
    """A group fails after its first synchronization; the others continue."""
    events = [["steps", 2, ones(3)], ["synchronize", 2], ["lost", 2]]
    for group in (0, 1):
        events += [["steps", group, ones(4)], ["synchronize", group]]
    return [*events, ["read"], ["collect"], ["read"]]


def one_after_the_other():
    events = []
    for group, before, meanwhile in ((0, 2, 1), (1, 4, 0), (2, 1, 0)):
        events += [["steps", group, ones(before)], ["synchronize", group, ones(meanwhile)]]
    return [*events, ["read"], ["flush", [0, 1, 2]], ["read"]]


def fragment_by_fragment():
    """The first group synchronizes both fragments, the second one of them while the first synchronizes again."""
    return [
        ["steps", 0, ones(1)],
        ["synchronize", 0, ones(1), 0.0, [0]],
        ["read"],
        ["synchronize", 0, ones(1), 0.0, [1]],
        ["read"],
        ["push", 1, ones(3), 0.0, [1]],
        ["synchronize", 0, [], 0.0, [0]],
        ["pull", 1],
        ["read"],
        ["flush", [0, 1]],
        ["read"],
    ]


MIXED = [(0, 3, 1), (1, 2, 0), (2, 6, 2), (0, 1, 0), (2, 1, 1), (1, 4, 3)]
"""(group, steps before the push, steps until the reply), for rings and pairs."""


def mixed_events():
    events = []
    for group, before, meanwhile in MIXED:
        events += [["steps", group, ones(before)], ["synchronize", group, ones(meanwhile)], ["read"]]
    return [*events, ["collect"], ["read"]]


NUMBERS = np.random.default_rng(6).normal(size=(2, 700)) * np.exp(np.random.default_rng(7).normal(size=(2, 700)) * 2)
EMPTY = 4


def compressed_events():
    progress = [["steps", group, row.tolist()] for group, row in enumerate(NUMBERS[:, None])]
    synchronizations = [*(["synchronize", group] for group in range(len(NUMBERS))), ["read"]]
    return [*progress, *synchronizations * (1 + EMPTY), *progress, ["collect"], ["read"]]
