"""What steps keep from one to the next equals one process: averages of layers, weights that a step assigns, frozen weights."""

import json

import pytest
from rounding import equal
from support_paths import PROGRAMS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

CASES = (
    "averages_that_the_next_step_of_an_execution_reads",
    "a_trained_weight_that_starts_by_the_first_batch",
    "a_trained_weight_that_starts_by_the_first_step_of_an_execution",
    "trained_weights_that_a_step_moves_after_the_update",
    "an_average_with_the_aggregation_mean",
    "a_replica_without_examples_and_logarithms",
    "a_frozen_weight_of_a_normalization",
    "added_losses_for_each_example_that_begin_with_zero",
    "functions_that_run_eagerly",
    "a_log_that_is_none",
    "sums_over_the_replicas",
    "sums_over_the_replicas_in_several_steps_of_an_execution",
    "sums_over_the_replicas_in_a_step_that_runs_eagerly",
    "an_added_loss_that_is_a_sum_before_another_compile",
    "a_number_of_examples_that_the_step_knows",
    "a_loss_in_a_layer_of_predictions",
    "logs_of_a_metric_that_the_model_does_not_list",
    "random_numbers_in_an_update",
    "weights_that_a_step_draws",
    "rows_that_a_step_draws",
    "a_learning_rate_by_the_batch",
    "numbers_without_a_seed_after_clear_session",
    "numbers_without_a_seed_after_another_seed_is_set",
    "numbers_without_a_seed_in_a_step_that_runs_eagerly",
    "integers_that_depend_on_the_batch",
    "integers_that_are_counted_in_a_branch_by_the_batch",
    "what_is_zero_in_the_first_batch",
    "a_metric_that_gets_sums_in_training_and_means_in_tests",
    "a_metric_that_each_step_resets",
    "a_sum_of_integers",
    "what_metrics_count_outside_of_fit",
)


@pytest.fixture(scope="module")
def results(tmp_path_factory, run_python):
    folder = tmp_path_factory.mktemp("states")
    assert run_python(folder, str(PROGRAMS / "states.py"), timeout=280) == 0, (folder / "output.txt").read_text()[-5000:]
    return json.loads((folder / "states.json").read_text())


@pytest.mark.parametrize("name", CASES)
def test_equals_one_process(results, name):
    assert equal(results[name]["one"], results[name]["ours"]), results[name]


def test_every_case_of_the_program_is_looked_at(results):
    assert results.keys() == {*CASES}
