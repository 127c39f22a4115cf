"""The invariants of rounds with a delay, on the pure functions that a ps and a group run."""

import itertools
import random

import numpy as np
import periodic_oracles as oracles
import pytest
from rounds_in_numpy import Compressed, Fragment, Replica

from tfdist.strategies.hogwild.synchronization import rounds

GROUPS, SIZE, PERIOD = 4, 3, 8
TARGETS = np.random.default_rng(1).normal(size=(GROUPS, 12 * PERIOD, SIZE))


def trained(
    gradient, delay, *, groups=GROUPS, steps=10 * PERIOD, fragments=1, outer_rate=1.0, outer_momentum=0.0, rate=0.1, check=None
):
    """Trains replicas in rounds, each fragment with its offset in the period. Returns the global parameters with all progress.

    Args:
        gradient: (replica, group, step) -> gradient.
        check: called before each step with the step, all replicas by fragment, and the values of all groups.
    """
    values = np.zeros((groups, SIZE))
    parts = np.array_split(np.arange(SIZE), fragments)
    shared = [Fragment(np.zeros(len(part)), groups, outer_rate, outer_momentum) for part in parts]
    views = [slice(part[0], part[-1] + 1) for part in parts]
    replicas = [[Replica(one, g, values[g, view]) for g in range(groups)] for one, view in zip(shared, views, strict=True)]
    for step in range(steps):
        for members, offset in zip(replicas, rounds.offsets(PERIOD, fragments), strict=True):
            since = (step - offset) % PERIOD
            if since == 0 and step > offset:
                for replica in members:
                    replica.push()
            if since == delay and step > offset + delay:
                assert not any(replica.must_wait() for replica in members)
                before = values.mean(axis=0)
                for replica in members:
                    replica.pull()
                if check:
                    check(before, values)
        for group in range(groups):
            values[group] -= rate * gradient(values[group], group, step)
    for members, one in zip(replicas, shared, strict=True):
        for replica in members:
            if replica.complete < one.round.complete:
                replica.pull()
        for replica in members:
            replica.push(live=groups + 1, weight=1 / groups)
        one.settle()
    return np.concatenate([one.parameters for one in shared])


def quadratic(replica, group, step):
    return replica - TARGETS[group, step]


@pytest.mark.parametrize("delay", [0, 1, PERIOD - 1])
def test_rounding_what_travels_loses_no_update(delay):
    """The model of benchmarks/quality_compressed.py. Rounding is coarse, and what it leaves behind is part of later pushes."""
    fragment, values = Fragment(np.zeros(SIZE), GROUPS), np.zeros((GROUPS, SIZE))
    replicas = [Compressed(fragment, g, values[g], lambda each: np.round(each / 0.5) * 0.5) for g in range(GROUPS)]
    updates = np.random.default_rng(2).normal(size=(10 * PERIOD, GROUPS, SIZE))
    for step, update in enumerate(updates):
        if step % PERIOD == 0:
            for replica in replicas:
                replica.push()
        if step % PERIOD == delay:
            for replica in replicas:
                replica.pull()
        values += update
    for replica in replicas:
        replica.push()
    left = np.mean([replica.error for replica in replicas], axis=0)
    assert np.abs(left).max() > 0.01
    np.testing.assert_allclose(fragment.parameters + left, updates.sum(axis=0).mean(axis=0), atol=1e-9)


@pytest.mark.parametrize(("outer_rate", "momentum"), [(1.0, 0.0), (0.7, 0.9)])
def test_without_delay_rounds_are_local_sgd_and_diloco(outer_rate, momentum):
    steps = 10 * PERIOD
    outer = oracles.Nesterov(np.zeros(SIZE), outer_rate, momentum)
    batches = [list(TARGETS[:, step]) for step in range(steps)]
    expected = oracles.local_sgd(lambda w, target: w - target, np.zeros(SIZE), batches, 0.1, PERIOD, outer=outer)
    found = trained(quadratic, 0, outer_rate=outer_rate, outer_momentum=momentum)
    np.testing.assert_allclose(found, expected, rtol=1e-14, atol=1e-15)  # A pull adds a difference, which rounds once more.


@pytest.mark.parametrize("fragments", [1, 3])
@pytest.mark.parametrize("delay", [0, 1, 2])
def test_a_pull_of_average_leaves_the_mean_of_the_replicas(delay, fragments):
    pulls = []

    def check(before, values):
        pulls.append(1)
        np.testing.assert_allclose(values.mean(axis=0), before, atol=1e-12)

    trained(quadratic, delay, fragments=fragments, check=check)
    assert len(pulls) >= 9


@pytest.mark.parametrize("fragments", [1, 3])
def test_with_a_constant_gradient_no_delay_changes_the_result(fragments):
    results = [trained(lambda *_: np.arange(1.0, 4.0), delay, fragments=fragments) for delay in range(PERIOD // 4)]
    np.testing.assert_allclose(results, [[-8.0, -16.0, -24.0]] * len(results), rtol=1e-12)


@pytest.mark.parametrize("delay", [0, 1, 2])
def test_equal_groups_train_like_one(delay):
    options = {"outer_rate": 0.7, "outer_momentum": 0.8, "fragments": 3}
    one, four = (trained(lambda w, _, step: w - TARGETS[0, step], delay, groups=groups, **options) for groups in (1, 4))
    np.testing.assert_allclose(four, one, rtol=1e-12)


def any_order(seed, momentum=0.0):
    """Lets groups of very different speed act in a random order. Some wait for the end of a round, some end it themselves.

    Returns the fragment after a collection, the sum of all local changes over the number of groups, and all replies by round.
    """
    chance, numbers = random.Random(seed), np.random.default_rng(seed)
    fragment, values, made = Fragment(np.zeros(SIZE), GROUPS, 1.0, momentum), np.zeros((GROUPS, SIZE)), np.zeros(SIZE)
    replicas = [Replica(fragment, group, values[group]) for group in range(GROUPS)]
    pending = [False] * GROUPS
    replies = []

    def pull(group):
        replicas[group].pull()
        pending[group] = False
        replies.append((int(fragment.round.complete), fragment.parameters))

    for _ in range(400):
        group = chance.choices(range(GROUPS), weights=[1, 2, 4, 8])[0]
        change = numbers.normal(size=SIZE)
        values[group] += change
        made += change
        if not pending[group]:
            replicas[group].push()
            pending[group] = True
        elif not replicas[group].must_wait():
            pull(group)
        elif chance.random() > 0.7:
            fragment.expire(replicas[group].wanted)
            pull(group)
    for group in range(GROUPS):
        if pending[group]:
            pull(group)
        replicas[group].push(live=GROUPS + 1, weight=1 / GROUPS)
    fragment.settle()
    return fragment, made / GROUPS, replies


@pytest.mark.parametrize("seed", range(20))
def test_every_change_enters_the_global_parameters_exactly_once(seed):
    fragment, made, _ = any_order(seed)
    np.testing.assert_allclose(fragment.parameters, made, atol=1e-10)
    assert np.abs(fragment.total).max() == 0


@pytest.mark.parametrize("seed", range(5))
def test_all_groups_get_the_same_parameters_of_a_round(seed):
    fragment, _, replies = any_order(seed, momentum=0.5)
    assert len(replies) > 50
    for number, parameters in replies:
        np.testing.assert_array_equal(parameters, fragment.history[number])


def fragment_after(*pushes):
    """A fragment after pushes of (group, round)."""
    fragment = Fragment(np.zeros(1), GROUPS)
    for group, wanted in pushes:
        fragment.push(group, np.ones(1), wanted)
    return fragment


def test_a_round_ends_with_the_last_group_or_with_the_grace_time_and_no_later():
    fragment = fragment_after((0, 1), (1, 1), (2, 1))
    assert fragment.round.complete == 0
    fragment.push(3, np.ones(1), 1)
    assert fragment.round.complete == 1 and fragment.parameters == 1
    fragment.push(0, np.ones(1), 2)
    fragment.expire(2)
    assert fragment.round.complete == 2 and fragment.parameters == 1.25
    fragment.expire(2)  # Another group whose grace time is over at the same moment.
    assert fragment.round.complete == 2
    assert list(fragment.round.absent) == [0, 1, 1, 1]


def test_a_lost_group_ends_the_waits_for_it_and_is_waited_for_again_after_a_push_in_time():
    fragment = fragment_after((0, 1), (1, 1), (2, 1))
    fragment.leave(3, live=GROUPS - 1)
    assert fragment.round.complete == 1 and fragment.parameters == 0.75
    for group in (0, 1, 2):  # It is live again, and compiles: nobody waits.
        fragment.push(group, np.ones(1), 2)
    assert fragment.round.complete == 2
    fragment.push(3, np.ones(1), 3)
    for group in (0, 1, 2):
        fragment.push(group, np.ones(1), 3)
    assert fragment.round.complete == 3 and list(fragment.round.absent) == [0] * GROUPS
    for group in (0, 1, 2):
        fragment.push(group, np.ones(1), 4)
    assert fragment.round.complete == 3


def test_a_lost_group_that_had_pushed_counts_in_its_round():
    fragment = fragment_after((3, 1), (0, 1))
    fragment.leave(3, live=GROUPS - 1)
    assert fragment.round.complete == 0
    for group in (1, 2):
        fragment.push(group, np.ones(1), 1, live=GROUPS - 1)
    assert fragment.round.complete == 1


def test_of_several_lost_groups_the_last_one_ends_the_round():
    fragment = fragment_after((0, 1))
    for group, live in ((1, 3), (2, 2), (3, 1)):
        assert fragment.round.complete == 0
        fragment.leave(group, live)
    assert fragment.round.complete == 1


def test_at_the_end_of_an_epoch_the_last_groups_do_not_wait_for_the_others():
    fragment = fragment_after((0, 1), (1, 1))
    fragment.finish(0, 1, 2)
    assert fragment.round.complete == 0  # Group 2 still pushes.
    fragment.push(2, np.ones(1), 1)
    fragment.finish(1, 2)
    assert fragment.round.complete == 1 and list(fragment.round.absent) == [0] * GROUPS
    fragment.push(3, np.ones(1), 1)  # Late: it does not wait.
    fragment.finish(3)
    assert fragment.round.complete == 1


def test_at_the_end_of_an_epoch_nobody_waits_for_an_absent_group_either():
    fragment = fragment_after((0, 1), (1, 1), (2, 1))
    fragment.expire(1)
    fragment.push(0, np.ones(1), 2)
    fragment.finish(0, 3)
    assert fragment.round.complete == 2 and list(fragment.round.absent) == [0, 0, 0, 1]


def test_a_round_that_nobody_has_pushed_to_does_not_end():
    fragment = fragment_after()
    fragment.finish(0)
    fragment.expire(1)
    fragment.leave(1, live=1)
    fragment.round = fragment.round._replace(absent=np.zeros(GROUPS, int))
    fragment.settle()
    assert fragment.round.complete == 0 and list(fragment.round.absent) == [0] * GROUPS


def test_a_late_push_counts_in_the_next_round_which_waits_for_its_group():
    fragment = fragment_after((0, 1), (1, 1), (2, 1))
    fragment.expire(1)
    fragment.push(3, np.full(1, 5.0), 1)  # Late by one round.
    assert list(fragment.round.absent) == [0] * GROUPS
    for group in (0, 1, 2):
        fragment.push(group, np.ones(1), 2)
    assert fragment.round.complete == 1  # The push of group 3 to this round is still missing.
    fragment.push(3, np.ones(1), 2)
    assert fragment.round.complete == 2 and fragment.parameters == (3 + 5 + 4) / 4


def test_with_several_fragments_an_absent_group_is_awaited_again_only_when_it_is_in_time():
    late = rounds.Round(np.array([0, 0, 0]), np.array([0, 0, 1]), 1)
    group = np.array([0, 0, 1])
    for fragments, absent in ((1, 0), (2, 1)):
        after, _, awaited = rounds.arrive(late, group, 1, 3, np, fragments=fragments)
        assert (after.absent[2], awaited) == (absent, 0)
        after, *_ = rounds.arrive(after, group, 2, 3, np, fragments=fragments)
        assert after.absent[2] == 0


def test_the_first_push_of_an_epoch_is_in_time_although_the_group_was_late_before():
    fragment = fragment_after((0, 1), (1, 1), (2, 1))
    fragment.expire(1)
    fragment.push(3, np.ones(1), 1, begins=True)  # It does not know that round 1 has ended.
    for group in (0, 1, 2):
        fragment.push(group, np.ones(1), 2, begins=True)
    assert fragment.round.complete == 2 and fragment.parameters == 7 / 4
    assert list(fragment.round.absent) == [0] * GROUPS


def test_a_group_that_is_much_slower_stays_absent_with_its_first_push_of_an_epoch():
    fragment = fragment_after((0, 1), (1, 1), (2, 1))
    fragment.expire(1)
    for group in (0, 1, 2):
        fragment.push(group, np.ones(1), 2)
    fragment.push(3, np.ones(1), 1, begins=True)
    assert fragment.awaited == 0
    for group in (0, 1, 2):
        fragment.push(group, np.ones(1), 3)
    assert fragment.round.complete == 3 and list(fragment.round.absent) == [0, 0, 0, 1]
    for group in (0, 1, 2):
        fragment.push(group, np.ones(1), 4)
    assert fragment.round.complete == 4


def test_a_group_that_had_nothing_to_push_to_several_rounds_is_not_absent():
    fragment = Fragment(np.zeros(1), GROUPS)
    for wanted in (1, 2):
        fragment.push(0, np.ones(1), wanted, live=1)
    for group in (2, 1, 3):
        fragment.push(group, np.ones(1), 1, begins=True)
        assert fragment.awaited == 3
    assert fragment.round.complete == 2 and list(fragment.round.absent) == [0] * GROUPS
    fragment.push(0, np.ones(1), 3, begins=True)
    assert fragment.round.complete == 3
    fragment.push(1, np.ones(1), 1)  # It begins nothing, so it is late: it waits for nobody, but the next round for it.
    assert fragment.awaited == 0 and list(fragment.round.absent) == [0] * GROUPS


def test_no_round_waits_for_a_group_that_was_waited_for_and_is_late_by_several_rounds():
    fragment = fragment_after((0, 1), (1, 1), (2, 1))
    fragment.expire(1)
    for wanted in (2, 3):  # Nobody waits for group 3 any more.
        for group in (0, 1, 2):
            fragment.push(group, np.ones(1), wanted)
        assert fragment.round.complete == wanted
    fragment.push(3, np.ones(1), 1)
    assert list(fragment.round.absent) == [0, 0, 0, 1]
    for group in (0, 1, 2):
        fragment.push(group, np.ones(1), 4)
    assert fragment.round.complete == 4 and fragment.parameters == (4 * 3 + 1) / 4
    fragment.push(3, np.ones(1), 5)  # In time again, so the round waits for it, and the next ones do.
    for group in (0, 1, 2):
        fragment.push(group, np.ones(1), 5)
    assert fragment.round.complete == 5 and list(fragment.round.absent) == [0] * GROUPS


def test_the_chief_lowers_the_number_of_groups_that_a_round_waits_for():
    fragment = Fragment(np.zeros(1), GROUPS)
    for group in (0, 2):
        fragment.push(group, np.ones(1), 1, live=2)
    assert fragment.round.complete == 1 and fragment.parameters == 1


def test_a_flush_ends_no_round():
    fragment = Fragment(np.zeros(1), GROUPS)
    for group in range(GROUPS):
        fragment.push(group, np.ones(1), 1, weight=0.25, live=2**30)
    assert fragment.round.complete == 0
    fragment.settle()
    assert fragment.round.complete == 1 and fragment.parameters == 1


@pytest.mark.parametrize(
    ("pushed", "quorum", "live", "lacks"),
    [
        ([2, 0, 0], 1, 3, False),
        ([2, 0, 0], 2, 3, True),
        ([2, 1, 0], 2, 3, False),  # A late push is in the round, too.
        ([2, 0, 0], 3, 1, False),  # The others do not train.
        ([2, 2, 0], 3, 2**30, True),
    ],
)
def test_a_quorum_counts_the_groups_whose_pushes_are_in_the_round(pushed, quorum, live, lacks):
    assert rounds.lacks_quorum(np.array(pushed), quorum, live, np) == lacks


def test_fragments_take_turns_in_a_period():
    assert rounds.offsets(16, 4) == [0, 4, 8, 12]
    assert [offset for offset, _ in itertools.pairwise(rounds.offsets(6, 3))] == [0, 2]


def test_a_push_without_progress_is_in_no_round():
    fragment = fragment_after((0, 1), (1, 1), (2, 1))
    fragment.push(3, np.zeros(1), 1, weight=0.25, live=-GROUPS)
    assert fragment.round.complete == 0
    fragment.push(3, np.ones(1), 1)
    assert fragment.round.complete == 1 and fragment.parameters == 1
