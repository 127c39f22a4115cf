"""Under hogwild, models that are compiled again, loaded and called in other ways are what they are in one process."""

import json

import numpy as np
import pytest
from support_paths import PROGRAMS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def results(tmp_path_factory, run_python):
    folder = tmp_path_factory.mktemp("continued")
    code = run_python(folder, str(PROGRAMS / "hogwild_continued.py"), timeout=360)
    output = (folder / "output.txt").read_text()
    assert code == 0, output[-5000:]
    return {**json.loads((folder / "results.json").read_text()), "output": output}


def test_weights_that_are_frozen_after_a_training_do_not_move(results):
    base, head = results["compiled_again"]["frozen"]
    assert base == 0.0 and head > 0.0
    assert results["compiled_again"]["adapted"] == 0.0


def test_a_model_does_not_move_weights_of_another_one_that_share_a_block_with_its_own(results):
    assert results["shared"] == [0.0, 0.0]


def test_a_new_optimizer_with_learning_rate_0_moves_nothing(results):
    assert results["compiled_again"]["without_rate"] == 0.0


def test_weights_that_are_loaded_within_an_epoch_replace_what_was_in_flight(results):
    assert np.isfinite(results["compiled_again"]["loaded"])


def test_variables_that_predict_and_evaluate_assign_are_kept(results):
    (calls, whole), (more_calls, more_whole) = results["counted_calls"]
    assert (calls, more_calls) == (4.0, 8.0)  # 8 batches each time, and the mean of 2 groups.
    assert 0 <= whole <= 8 and more_whole >= whole and more_whole > 0


def test_a_warning_names_counts_of_steps_and_what_the_chief_reads(results):
    for name, read in (("calls/calls", "the mean of the groups"), ("calls/whole", "that of the first group")):
        assert results["output"].count(f"{name} whatever its batch is, as a count of steps, and each worker group") == 1
        assert f"own steps: the chief reads {read}, not the value after all steps" in results["output"]


def test_an_optimizer_that_is_replaced_leaves_no_blocks(results):
    first, second = results["blocks"]
    assert first == second


@pytest.mark.parametrize("optimizer", ["numbers", "own"])
def test_the_schedules_of_compile_and_of_a_models_own_optimizer_follow_the_updates_of_all_groups(results, optimizer):
    """Of steps that make several, and have a decorator that hides their name: else the groups would not synchronize."""
    numbers = results["schedules"][optimizer]
    assert results["schedules"]["counts"] == [2 * 3 * 32] * 2  # Two updates in each of 32 steps of 3 epochs.
    # Each step of the last epoch has its own number: the first epoch measures how many updates a step makes.
    assert sorted(numbers[64:]) == list(range(128, 192, 2))


def test_a_schedule_that_a_test_step_asks_follows_the_updates_of_all_groups(results):
    assert results["schedules"]["tested"] == results["schedules"]["counts"][0]


def test_a_model_trains_after_the_loss_of_another_one_has_used_it(results):
    how_far, least_variance = results["used_by_a_loss"]
    assert how_far > 0.0 and least_variance > 0.0


def test_a_step_that_assigns_the_learning_rate_is_refused(results):
    assert "LearningRateSchedule" in results["assigned_rate"]
