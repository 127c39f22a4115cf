"""Groups wait for each other within a limit."""

import json
import threading
import time

import numpy as np
import periodic_oracles as oracles
import pytest
from support_paths import PROGRAMS

from tfdist.strategies.hogwild.rounds import FIRST_SECONDS, PERIODS, Rounds


def pushed(rounds, groups, live, pause=0.0):
    """Lets groups push in threads, one every `pause` seconds. Returns by group (round of several complete, seconds waited)."""
    found = {}

    def push(group):
        begin = time.monotonic()
        is_complete = rounds.wait("block", group, live)
        found[group] = is_complete, time.monotonic() - begin

    threads = [threading.Thread(target=push, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
        time.sleep(pause)
    for thread in threads:
        thread.join(20)
    return found


def test_groups_wait_for_the_last_of_the_round_which_does_not_wait():
    found = pushed(Rounds(), [0, 1, 2], [0, 1, 2], pause=0.2)
    assert [found[group][0] for group in (0, 1, 2)] == [True] * 3
    assert 0.35 < found[0][1] < FIRST_SECONDS
    assert found[2][1] < 0.2


def test_a_group_waits_for_a_slow_one_for_a_few_of_its_own_periods_at_most():
    rounds = Rounds()
    pushed(rounds, [0, 1], [0, 1])
    time.sleep(0.2)
    found = pushed(rounds, [0], [0, 1])
    assert found[0][0] is False
    assert 0.2 * PERIODS <= found[0][1] < 0.2 * PERIODS + 1.0
    # The push of group 0 still counts, so group 1 completes the round at once.
    late = pushed(rounds, [1], [0, 1])
    assert late[1][0] is True and late[1][1] < 0.2


def test_no_group_waits_for_one_that_is_gone():
    rounds = Rounds()
    pushed(rounds, [0, 1, 2], [0, 1, 2])
    time.sleep(0.3)
    found = pushed(rounds, [0, 1], [0, 1], pause=0.2)
    assert (found[0][0], found[1][0]) == (True, True)


def test_a_group_that_is_alone_has_completed_its_round_itself():
    assert pushed(Rounds(), [0], [0])[0][0] is False


def test_a_restarted_round_ends_all_waits():
    rounds = Rounds()
    timer = threading.Timer(0.2, rounds.restart, ["block"])
    timer.start()
    found = pushed(rounds, [0], [0, 1])
    timer.join()
    assert found[0][0] is True and found[0][1] < FIRST_SECONDS


@pytest.mark.cluster
def test_groups_that_wait_train_as_synchronous_diloco(start, tmp_path):
    generator = np.random.default_rng(3)
    x, y = generator.normal(size=(16, 3)), generator.normal(size=16)
    given = {"groups": 3, "period": 4, "updates": 16, "rate": 0.05, "momentum": 0.5, "outer_rate": 0.7, "outer_momentum": 0.8}
    file = tmp_path / "weights.json"
    program = str(PROGRAMS / "hogwild_rounds.py")
    job = start(program, json.dumps({**given, "x": x.tolist(), "y": y.tolist(), "file": str(file)}))
    assert job.wait(200) == 0, job.output

    def gradient(weights, batch):
        return 2 / len(y) * x.T @ (x @ weights - y)

    # All batches are equal, so only the number of batches of each group between two rounds matters.
    batches = [[None] * given["groups"]] * given["updates"]
    outer = oracles.Nesterov(np.zeros(3), given["outer_rate"], given["outer_momentum"])
    expected = oracles.local_sgd(gradient, np.zeros(3), batches, given["rate"], given["period"], given["momentum"], outer)
    assert json.loads(file.read_text()) == pytest.approx(expected.tolist(), rel=1e-4, abs=1e-5), job.output
