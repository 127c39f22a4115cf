"""At the end of an epoch a round ends without the groups that have no more calls."""

from tfdist.strategies.hogwild.calls_left import CallsLeft
from tfdist.strategies.hogwild.grace import CALLS, FIRST_SECONDS, PERIODS, Grace


def test_all_groups_push_as_long_as_the_epoch_may_have_more_calls():
    left = CallsLeft(3)
    left.schedule(is_last=False)
    left.begin(0)
    assert left.pushing(0) == 3


def test_the_last_calls_of_an_epoch_wait_for_those_that_can_still_push():
    left = CallsLeft(3)
    for number in range(5):
        left.schedule(is_last=number == 4)
    for group in range(3):
        left.begin(group)
        assert left.pushing(group) == 3
    left.begin(1)  # The fourth call. One more is left, for any group.
    assert left.pushing(1) == 2
    left.begin(2)
    assert left.pushing(2) == 2
    assert left.pushing(0) == 3  # A slow group is in the round before, to which all have pushed.
    left.begin_epoch()
    assert left.pushing(0) == 3


def test_the_grace_time_follows_the_fastest_of_the_last_calls():
    now = [0.0]
    grace = Grace(2, clock=lambda: now[0])
    assert grace.seconds(0) == FIRST_SECONDS
    grace.begin(0, periods=1.0)
    now[0] += 30.0  # Compiles.
    grace.begin(0, periods=0.5)
    assert grace.seconds(0) == FIRST_SECONDS
    now[0] += 1.0
    grace.begin(0, periods=1.0)
    assert grace.seconds(0) == PERIODS * 2.0
    now[0] += 9.0  # Has waited for others.
    grace.begin(0, periods=1.0)
    assert grace.seconds(0) == PERIODS * 2.0
    for _ in range(CALLS):
        now[0] += 9.0
        grace.begin(0, periods=3.0)
    assert grace.seconds(0) == PERIODS * 3.0
    assert grace.seconds(1) == FIRST_SECONDS
