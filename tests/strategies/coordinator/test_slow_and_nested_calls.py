"""Callbacks of `fit` that are slow, and those that call `fit`, `evaluate` or `predict` themselves, lose no step."""

import json

import pytest
from support_paths import PROGRAMS

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module", params=["parameter_server", "hogwild"])
def ran(request, tmp_path_factory, run_python):
    """What the program has found, and its output."""
    folder = tmp_path_factory.mktemp("nested_calls")
    code = run_python(folder, str(PROGRAMS / "nested_calls.py"), request.param, timeout=280)
    output = (folder / "output.txt").read_text()
    assert code == 0, output[-3000:]
    return json.loads((folder / "results.json").read_text()), output


@pytest.fixture
def own(ran):
    return ran[0]["own"]


def test_a_slow_callback_lets_no_batch_be_trained_twice(ran):
    found = ran[0]["slow"]
    assert "no answer" not in ran[1] and found["seen"] == [found["expected"]] * 2
    assert (found["batches"], found["iterations"]) == (48, 48)


@pytest.mark.parametrize("name", ["predict", "evaluate", "test_on_batch"])
def test_calls_inside_fit_lose_no_steps(ran, name):
    calls, output = ran[0]["calls"], ran[1]
    seen, without = calls[name], calls["none"]
    assert "ran out of data" not in output
    assert (seen["batches"], seen["iterations"]) == (without["batches"], without["iterations"]) == (80, 80)
    assert len(seen["inside"]) == 4 and without["inside"] == []
    # They see the progress of all groups: it is later in the training, so the loss is lower.
    assert sorted(seen["inside"], reverse=True) == seen["inside"]
    # The epoch's loss is that of its own steps, and the training is as good as without.
    assert seen["loss"][0] == pytest.approx(without["loss"][0], rel=0.2)
    assert seen["final"] == pytest.approx(without["final"], rel=0.2)


def test_what_resets_the_metrics_of_an_epoch_in_its_callback_resets_them_for_good_as_in_one_process(own):
    # After each of the last two batches, and after the epoch.
    counted = {name: [8.0, 16.0, 16.0] for name in ("one metric", "all", "after evaluate", "twice")}
    # The examples of what the callback trains itself count beside them.
    counted |= {"one batch": [16.0, 24.0, 24.0], "epochs": [32.0, 40.0, 40.0], "an error": [32.0, 40.0, 40.0]}
    assert own["counted after reset"] == counted
    for epoch, of_these in own["losses after reset"].values():
        assert epoch == pytest.approx(of_these, rel=1e-5)
    assert own["after another"] > 2000  # `train_on_batch` of another model resets its own.


def test_train_on_batch_inside_fit_returns_the_loss_of_its_batch(own):
    returned, its_own = own["one batch"]
    assert returned == pytest.approx(its_own, rel=1e-3)


def test_a_fit_of_the_same_model_inside_fit_trains_its_own_step_and_the_outer_one_goes_on(own):
    assert own["fits"] == {"batches": 20, "iterations": 22}


def test_a_call_in_a_thread_is_refused_inside_fit_and_works_after_it(own):
    inside, after, batches = own["threads"]
    assert "in the thread actor while fit of" in inside and "runs in MainThread" in inside
    assert (after, batches) == (320, 40)


def test_no_step_changes_what_the_program_sets_after_an_exception_has_left_fit(own):
    assert own["after an exception"] == [0.0, 0.0, 0]


def test_a_metric_that_creates_its_variables_in_the_first_step_counts_all_examples(own):
    *epochs, expected = own["scores"]
    for score in epochs:
        assert score == pytest.approx(expected, abs=1e-5)
