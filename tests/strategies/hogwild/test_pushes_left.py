"""At the end of an epoch a round ends without the groups that have nothing more to push."""

import pytest

from tfdist.strategies.hogwild.timing.grace import CALLS, FEW_CALLS, FIRST_SECONDS, PERIODS, SLOWER, WITH_SLOWER_PERIODS, Grace
from tfdist.strategies.hogwild.timing.pushes_left import PushesLeft


def test_all_groups_push_as_long_as_the_epoch_may_have_more_calls():
    left = PushesLeft(3)
    left.schedule(1, later=None)
    left.begin(0, is_in_round=True)
    assert left.pushing(0) == 3


def test_the_last_calls_of_an_epoch_wait_for_those_that_can_still_push():
    left = PushesLeft(3)
    for number in range(5):
        left.schedule(1, later=4 - number)
    for group in range(3):
        left.begin(group, is_in_round=True)
        assert left.pushing(group) == 3
    left.begin(1, is_in_round=True)  # The fourth call. One more is left, for any group.
    assert left.pushing(1) == 2
    left.begin(2, is_in_round=True)
    assert left.pushing(2) == 2
    assert left.pushing(0) == 3  # A slow group is in the round before, to which all have pushed.
    left.begin_epoch()
    assert left.pushing(0) == 3


def test_all_groups_begin_an_epoch_until_one_makes_its_second_push():
    left = PushesLeft(3)
    for _ in range(2):
        left.begin_epoch()
        for group in (1, 0):
            left.begin(group, is_in_round=True)
            assert left.all_begin(group, fragments=1)
        left.begin(1, is_in_round=True)
        left.begin(2, is_in_round=True)
        assert not any(left.all_begin(group, fragments=1) for group in range(3))
        assert [left.all_begin(group, fragments=2) for group in range(3)] == [False, True, False]


def test_a_push_without_progress_is_not_the_first_of_an_epoch():
    left = PushesLeft(2)
    left.begin(0, is_in_round=True)
    left.begin(1, is_in_round=False)
    assert not left.all_begin(1, fragments=1)
    left.begin(1, is_in_round=True)
    assert left.all_begin(0, fragments=1) and left.all_begin(1, fragments=1)


def test_the_first_push_of_an_epoch_with_few_calls_does_not_wait_for_groups_that_get_none():
    left = PushesLeft(3)
    left.schedule(1, later=1)
    left.begin(0, is_in_round=True)
    assert left.pushing(0) == 2
    left.schedule(1, later=0)
    assert left.pushing(0) == 2
    left.begin(2, is_in_round=True)
    assert left.pushing(2) == 2


def test_calls_that_are_too_short_to_push_count_because_groups_push_before_them():
    left = PushesLeft(3)
    for later in (2, 1, 0):
        left.schedule(1, later)
    for group in range(3):
        left.begin(group, is_in_round=True)
        assert left.pushing(group) == 3


def test_nobody_waits_for_a_call_that_has_begun_without_a_push():
    left = PushesLeft(3)
    for later in (2, 1, 0):
        left.schedule(1, later)
    left.begin(1, is_in_round=False)
    for group in (0, 2):
        left.begin(group, is_in_round=True)
        assert left.pushing(group) == 2


class Program:
    pass


def test_the_grace_time_follows_the_fastest_of_the_last_calls():
    grace, program = Grace(), Program()
    grace.begin(program)
    assert grace.seconds(0) == FIRST_SECONDS
    grace.note(program, 0, 30.0, 30.0)  # Compiles.
    assert grace.seconds(0) == FIRST_SECONDS
    grace.note(program, 0, 2.0, 2.0)
    grace.note(program, 0, 9.0, 9.0)  # Has waited for others.
    assert grace.seconds(0) == PERIODS * 2.0
    for _ in range(CALLS):
        grace.note(program, 0, 3.0, 3.0)
    assert grace.seconds(0) == PERIODS * 3.0
    assert grace.seconds(1) == FIRST_SECONDS


def test_the_grace_time_does_not_grow_with_calls_that_have_waited_for_it():
    grace, program = Grace(), Program()
    grace.begin(program)
    for _ in range(2):
        grace.note(program, 0, 6.0, 6.0)
        grace.note(program, 1, 0.1, 0.1)
    assert grace.seconds(0) == PERIODS * SLOWER * 0.1


def test_a_group_that_is_always_slow_does_not_hold_the_others_up():
    grace, program = Grace(), Program()
    grace.begin(program)
    for _ in range(2):
        grace.note(program, 0, 0.1, 0.1)
        grace.note(program, 1, 0.19, 0.19)
        grace.note(program, 2, 0.1, 0.1)
    assert grace.seconds(0) == grace.seconds(2) == PERIODS * 0.1
    for _ in range(CALLS):  # One of them becomes slow.
        assert grace.seconds(0) == PERIODS * 0.1
        grace.note(program, 1, 0.2, 0.2)
    assert grace.seconds(0) == grace.seconds(2) == WITH_SLOWER_PERIODS * 0.1
    assert grace.seconds(1) == PERIODS * 0.2
    grace.note(program, 1, 0.1, 0.1)  # And quick again.
    assert grace.seconds(0) == PERIODS * 0.1


@pytest.mark.parametrize(("seconds", "enough"), [(0.2, CALLS), (0.33, CALLS), (0.34, FEW_CALLS), (5.0, FEW_CALLS)])
def test_the_longer_calls_take_the_fewer_show_that_a_group_is_slow(seconds, enough):
    grace, program = Grace(), Program()
    grace.begin(program)
    for group in (0, 1):
        grace.note(program, group, 1.0, 1.0)  # Compiles.
    grace.note(program, 0, 0.1, 0.1)
    for _ in range(enough - 1):
        grace.note(program, 1, seconds, seconds)
        assert grace.seconds(0) == PERIODS * 0.1
    grace.note(program, 1, seconds, seconds)
    assert grace.seconds(0) == WITH_SLOWER_PERIODS * 0.1


def test_a_group_that_becomes_slow_is_noticed_although_it_has_been_fast():
    grace, program = Grace(), Program()
    grace.begin(program)
    for _ in range(CALLS + 1):
        grace.note(program, 0, 1.0, 1.0)
        grace.note(program, 1, 1.0, 1.0)
    for _ in range(FEW_CALLS):
        assert grace.seconds(0) == PERIODS * 1.0
        grace.note(program, 1, 4.0, 4.0)
    assert grace.seconds(0) == WITH_SLOWER_PERIODS * 1.0


def test_messages_count_and_waits_for_others_do_not():
    grace, program = Grace(), Program()
    grace.begin(program)
    for _ in range(2):
        grace.note(program, 0, 0.5, 0.001)  # Has waited for group 1.
        grace.note(program, 1, 0.1, 0.004)  # So small updates do not make it much slower.
    assert grace.seconds(0) == pytest.approx(PERIODS * (0.001 + 0.096))


def test_a_grace_time_that_the_user_gives_does_not_depend_on_slower_groups():
    grace, program = Grace(3.0), Program()
    grace.begin(program)
    for _ in range(2):
        grace.note(program, 0, 0.1, 0.1)
        grace.note(program, 1, 0.5, 0.5)
    assert grace.seconds(0) == 3.0 * 0.1


def test_the_grace_time_is_that_of_the_model_that_trains():
    grace, fast, slow = Grace(), Program(), Program()
    for program, seconds in ((fast, 0.01), (slow, 5.0)):
        for _ in range(2):
            grace.note(program, 0, seconds, seconds)
    grace.begin(slow)
    assert grace.seconds(0) == PERIODS * 5.0
    grace.begin(fast)
    assert grace.seconds(0) == PERIODS * 0.01
