"""Callbacks of `fit` that are slow, and those that call `fit`, `evaluate` or `predict` themselves, lose no step."""

import json

import pytest
from support_paths import PROGRAMS

pytestmark = pytest.mark.cluster


def found_by(start, program, strategy, without):
    """Runs a program, whose output must not have the text `without`, and returns what it has found."""
    job = start(str(PROGRAMS / program), strategy)
    assert job.wait(280) == 0, job.output[-3000:]
    assert without not in job.output
    return json.loads(job.output.partition("FOUND ")[2].partition("\n")[0])


@pytest.mark.parametrize("strategy", ["parameter_server", "hogwild"])
def test_a_slow_callback_lets_no_batch_be_trained_twice(start, strategy):
    found = found_by(start, "slow_callback.py", strategy, without="no answer")
    assert found["seen"] == [found["expected"]] * 2
    assert (found["batches"], found["iterations"]) == (48, 48)


@pytest.mark.parametrize("strategy", ["parameter_server", "hogwild"])
def test_calls_inside_fit_lose_no_steps(start, strategy):
    found = found_by(start, "nested_calls.py", strategy, without="ran out of data")
    own = found.pop("own")
    for name, seen in found.items():
        assert (seen["batches"], seen["iterations"]) == (80, 80), name
        assert len(seen["inside"]) == (0 if name == "none" else 4), name
        # They see the progress of all groups: it is later in the training, so the loss is lower.
        assert sorted(seen["inside"], reverse=True) == seen["inside"], name
        # The epoch's loss is that of its own steps, and the training is as good as without.
        assert seen["loss"][0] == pytest.approx(found["none"]["loss"][0], rel=0.2), name
        assert seen["final"] == pytest.approx(found["none"]["final"], rel=0.2), name
    # What resets the metrics in a callback of the epoch itself resets them for good, as in one process.
    assert own["after reset"] < 1000
    assert own["after another"] > 2000  # `train_on_batch` of another model resets its own.
    returned, its_own = own["one batch"]
    assert returned == pytest.approx(its_own, rel=1e-3)
    # A `fit` of the same model inside of it trains its own step, and the outer one goes on where it was.
    assert own["fits"] == {"batches": 20, "iterations": 22}
    inside, after, batches = own["threads"]
    assert "in the thread actor while fit of" in inside and "runs in MainThread" in inside
    assert (after, batches) == (320, 40)
    # No step changes what the program sets after an exception has left `fit`.
    assert own["after an exception"] == [0.0, 0.0, 0]
    # A metric that creates its variables in the first step counts all examples.
    *epochs, expected = own["scores"]
    for score in epochs:
        assert score == pytest.approx(expected, abs=1e-5)
