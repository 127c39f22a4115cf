"""Which groups train, which replica each trains, and what its push weighs."""

from types import SimpleNamespace

import pytest

from tfdist.strategies.coordinator.members.membership import Membership
from tfdist.strategies.hogwild.synchronization.push_weights import PushWeights


def membership(tasks=((0,), (1,), (2,)), shared=False):
    return Membership([SimpleNamespace(number=number, tasks=each) for number, each in enumerate(tasks)], shared)


def test_groups_of_one_process_share_the_replica_of_the_first():
    tasks = ((0,), (0,), (1,), (1,))
    assert membership(tasks).owners == [0, 1, 2, 3]
    assert membership(tasks, shared=True).owners == [0, 0, 2, 2]


def test_a_loss_or_a_restart_begins_a_new_term():
    groups, lost = membership(), []
    groups.when_lost = lost.append
    terms = [groups.term(1)]
    for change in (groups.lose, groups.restart, groups.join, groups.join):
        change(1)
        terms.append(groups.term(1))
    assert terms == [0, 1, 2, 2, 2]
    assert (groups.live, groups.incarnation(1), lost) == ({0, 1, 2}, 1, [1])
    assert (groups.term(0), groups.incarnation(0)) == (0, 0)


def test_who_leaves_and_who_is_back_is_told_once_and_an_error_of_a_step_is_no_leaving():
    groups, changes = membership(), []
    groups.when_changed = lambda owner, has_joined: changes.append((owner, has_joined))
    groups.lose(0)
    assert groups.present == [0, 1, 2] and groups.live_groups == [1, 2]
    groups.join(0)
    assert changes == []
    groups.lose(2)
    for _ in range(2):
        groups.leave(2)
    term = groups.term(2)
    groups.leave(2)
    assert groups.live_groups == [0, 1] and groups.term(2) == term
    for change in (groups.end, groups.join, groups.leave, groups.join):  # It is lost once more before it has run anything.
        change(2)
    assert changes == [(2, False)] and groups.present == [0, 1]
    for change in (groups.end, groups.end):
        change(2)
    assert changes == [(2, False), (2, True)] and groups.live_groups == [0, 1, 2]
    groups.say_no_more()
    groups.leave(1)
    assert len(changes) == 2 and groups.live == {0, 2}


def test_groups_that_share_a_replica_are_lost_together():
    groups = membership(((0,), (0,), (1,)), shared=True)
    groups.lose(1)
    assert groups.live == {2} and not groups.is_live(0)
    term = groups.term(1)
    assert groups.term(0) == term > 0
    groups.restart(1)  # The owner may notice it later: its thread is woken after this one, or it runs nothing.
    assert groups.term(0) > term and groups.replica(0) == 1
    term = groups.term(0)
    groups.restart(0)
    assert groups.term(0) == term and groups.replica(0) == groups.replica(1) == 1 and groups.replica(2) == 0
    groups.join(1)
    assert groups.live == {0, 2}


def test_a_group_trains_beside_all_live_groups_or_alone():
    groups = membership()
    groups.lose(2)
    assert groups.training(0) == {0, 1}
    assert groups.training(2) == {0, 1, 2}  # A group that comes back counts itself.
    groups.train_alone(True)
    assert groups.alone == 0 and groups.training(0) == {0}
    groups.train_alone(False)
    assert groups.alone is None


def test_another_group_replaces_the_one_that_trains_alone_only_if_it_is_told_to():
    groups = membership()
    assert groups.may_take(1, even_for_another=False)
    groups.train_alone(True)
    assert not groups.may_take(1, even_for_another=False)
    assert not groups.has_lost_alone()
    groups.lose(0)
    assert groups.has_lost_alone()
    assert groups.may_take(1, even_for_another=True)
    assert groups.alone == 1 and not groups.may_take(0, even_for_another=False)


def test_pushes_weigh_alike_or_by_their_examples():
    alike, by_examples = (PushWeights(3, by_examples=choice) for choice in (False, True))
    for weights in (alike, by_examples):
        weights.count_examples(0, 10.0)
        weights.count_examples(1, 30.0)
        assert weights.weight(0, {0, 1}) == 0.5  # Nobody has pushed yet.
        weights.count_push(0)
        weights.count_push(1)
        weights.count_push(1)  # A second block of the same push.
    assert alike.weight(1, {0, 1}) == 0.5
    assert by_examples.weight(1, {0, 1}) == 0.75
    assert by_examples.weight(1, {0, 1, 2}) == pytest.approx(30 / 70)  # Group 2 has not pushed: it counts as much as group 1.
