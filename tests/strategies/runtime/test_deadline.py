"""The deadline, with a clock that the test moves."""

from tfdist.strategies.runtime.deadline import Deadline


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_time_runs_out():
    clock = Clock()
    deadline = Deadline.after(5.0, clock)
    assert deadline.remaining() == 5.0 and not deadline.expired()
    clock.now += 4.0
    assert deadline.remaining() == 1.0 and not deadline.expired()
    clock.now += 1.0
    assert deadline.remaining() == 0.0 and deadline.expired()
    clock.now += 1.0
    assert deadline.remaining() == 0.0 and deadline.expired()


def test_within_is_the_earlier_one():
    clock = Clock()
    deadline = Deadline.after(5.0, clock)
    assert deadline.within(2.0).remaining() == 2.0
    assert deadline.within(9.0).remaining() == 5.0
    clock.now += 6.0
    assert deadline.within(2.0).expired()


def test_at_least_is_the_later_one_on_the_same_clock():
    clock = Clock()
    deadline = Deadline.after(5.0, clock)
    assert deadline.at_least(2.0).remaining() == 5.0
    clock.now += 6.0
    assert deadline.at_least(2.0).remaining() == 2.0
