"""Groups that wait for each other, within a limit. No TensorFlow."""

import threading
import time

from tfdist.strategies.rounds import FIRST_SECONDS, PERIODS, Rounds


def pushed(rounds, groups, live, pause=0.0):
    """Lets each of `groups` push in a thread of its own, one `pause` seconds after the other; group -> (by another, seconds)."""
    found = {}

    def push(group):
        begin = time.monotonic()
        by_another = rounds.wait("block", group, live)
        found[group] = by_another, time.monotonic() - begin

    threads = [threading.Thread(target=push, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
        time.sleep(pause)
    for thread in threads:
        thread.join(20)
    return found


def test_groups_of_a_round_go_on_together_and_the_last_has_completed_it_itself():
    found = pushed(Rounds(), [0, 1, 2], [0, 1, 2], pause=0.2)
    assert [found[group][0] for group in (0, 1, 2)] == [True, True, False]
    assert 0.35 < found[0][1] < FIRST_SECONDS
    assert found[2][1] < 0.2


def test_a_group_waits_for_a_slow_one_no_longer_than_a_few_of_its_own_periods():
    rounds = Rounds()
    pushed(rounds, [0, 1], [0, 1])
    time.sleep(0.2)
    found = pushed(rounds, [0], [0, 1])
    assert found[0][0] is False
    assert 0.2 * PERIODS <= found[0][1] < 0.2 * PERIODS + 1.0
    # What group 0 has pushed counts still: group 1 completes the round at once.
    late = pushed(rounds, [1], [0, 1])
    assert late[1][0] is False and late[1][1] < 0.2


def test_a_group_that_is_gone_is_not_waited_for():
    rounds = Rounds()
    pushed(rounds, [0, 1, 2], [0, 1, 2])
    time.sleep(0.3)
    found = pushed(rounds, [0, 1], [0, 1], pause=0.2)
    assert (found[0][0], found[1][0]) == (True, False)
