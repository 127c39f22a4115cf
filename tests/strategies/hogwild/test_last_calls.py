"""While the chief only waits, it tells the ps which groups still make calls, as long as others make none."""

import threading
from collections import deque

import pytest

from tfdist.strategies.hogwild.timing import last_calls
from tfdist.strategies.hogwild.timing.last_calls import LastCalls


@pytest.fixture
def told(monkeypatch):
    """A function that takes what is known of the groups at each look, and returns what the ps hear."""
    monkeypatch.setattr(last_calls, "FIRST_SECONDS", 0.001)

    def told(*looks, ends=True):
        left, heard, is_seen = deque(looks), [], threading.Event()

        def running():
            if len(left) == 1:
                is_seen.set()
            return left.popleft() if len(left) > 1 else left[0]

        end = LastCalls(running, lambda: [0, 1, 2], heard.append)
        end.begin()
        end.begin()
        assert is_seen.wait(10)
        if not ends:
            end.end()
        for thread in threading.enumerate():
            if thread.name == "tfdist-last-calls":
                thread.join(10)
        assert "tfdist-last-calls" not in [thread.name for thread in threading.enumerate()]
        end.end()
        return heard

    return told


def test_the_ps_hear_who_still_makes_calls_once_somebody_makes_none(told):
    assert told({0, 1, 2}, {0, 2}, {2}, set()) == [{0, 2}, {2}]


def test_nobody_is_told_while_a_call_waits_for_a_group(told):
    assert told({1}, None, {0, 1}, set()) == [{1}, {0, 1}]


def test_it_ends_when_other_calls_are_scheduled_although_a_group_does_not_answer(told):
    heard = told({0, 1, 2}, {1}, ends=False)
    assert heard in ([], [{1}])
