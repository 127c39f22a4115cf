"""Keras under mirrored and multi_worker_mirrored equals Keras in one process: all cases of programs/data_parallel.py.

Three clusters, each started once: one task with three replicas; two tasks with one replica each; two tasks with two each (a few
cases). test_contract.py has some of these cases too, with the tolerance of its table for many steps.
"""

import functools
import json
import subprocess

import numpy as np
import pytest
import selection
from rounding import equal
from support_paths import PROGRAMS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

PROGRAM = str(PROGRAMS / "data_parallel.py")
LOSSES = (  # tests/support/programs/losses.py and own_losses.py
    "a_loss_function_that_returns_a_mean",
    "a_loss_function_that_returns_a_mean_with_steps_per_execution",
    "a_loss_function_that_returns_a_sum",
    "a_loss_class_that_returns_neither",
    "a_loss_class_with_a_sum_inside",
    "a_reduction_by_sum",
    "no_reduction",
    "no_reduction_of_one_of_two_outputs",
    "an_own_mean_of_losses_without_a_reduction",
    "a_mean_over_sample_weights",
    "a_mean_over_what_a_mask_leaves",
    "one_number_for_a_batch_with_sample_weights",
    "one_number_for_a_batch_with_weights_of_classes",
    "one_number_for_a_batch_with_sample_weights_and_no_reduction",
    "one_number_for_a_batch_with_a_mask",
    "one_number_for_a_batch_of_probabilities",
    "one_number_that_compares_two_views",
    "one_number_of_more_rows_than_examples_in_any_order",
    "one_number_of_a_loss_that_reads_weights_and_gets_infinite_logits",
    "a_loss_of_keras_with_a_number_for_each_class",
    "metric_functions_of_one_number",
    "sums_over_batches_and_examples",
    "logs_of_an_own_step_under_the_name_of_a_metric",
    "a_keras_loss_in_add_loss",
    "an_added_loss_beside_one_number_for_a_batch",
    "regularizers_of_kernels_and_activities",
    "an_own_compute_loss",
    "an_own_train_step_at_a_lower_level",
    "a_model_without_call",
    "fewer_examples_than_replicas_for_a_layer_that_refuses_unknown_ones",
    "ragged_batches_of_fewer_examples_than_replicas",
)
SUMS_AND_CLASSES = (  # tests/support/programs/sums_and_classes.py
    "added_losses_that_are_sums",
    "losses_and_metrics_with_a_number_for_each_class",
    "a_loss_that_keeps_a_variable",
    "an_average_that_a_layer_keeps_in_predict",
    "normalization_of_the_whole_batch",
    "a_build_that_makes_variables_of_values",
    "positions_in_a_sequence",
    "variables_that_gradients_overwrite",
    "logs_that_a_step_computes_from_metrics",
    "two_updates_of_a_loss_of_sequences_in_a_step",
)
OWN_STEPS = (
    "an_own_train_step_with_optimizers_in_a_dict",
    "an_own_train_step_with_optimizers_in_layers",
    "an_own_train_step_with_an_optimizer_for_later",
    "an_own_train_step_that_assigns_a_trainable_weight",
    "metrics_that_get_numbers_of_a_batch",
    "losses_that_tensorflow_scales",
    "losses_that_override_call",
    "metrics_of_an_own_train_step_whose_batches_are_pairs",
)
OWN_LOOPS = ("updates_in_conditions_of_an_own_loop", "an_own_loop_that_continues_from_a_checkpoint")
FEW = (
    "adam",
    "last_batch_smaller_than_the_number_of_replicas",
    "all_of_these",
    "embedding",
    "a_large_variable_has_the_value_of_the_chief",
    "callbacks_see_the_same_everywhere",
    "models_built_outside_the_scope",
    "an_own_train_step_whose_batches_the_model_does_not_take",
    "an_own_train_step_with_two_optimizers_in_compiled_functions",
    "a_metric_that_makes_its_variables_itself",
    "clipping_in_a_loop_of_the_users_own",
    *OWN_LOOPS,
    "random_numbers_of_own_loops",
)
IN_ONE_TASK = (  # What they compute of several replicas, other cases compute of several tasks, by the same code.
    "sgd_momentum",
    "steps_per_execution",
    "steps_of_an_execution_before_a_read_that_fails",
    "jit_compile",
    "ema_overwrite_frequency",
    "loss_scaling",
    "loss_that_is_a_sum",
    "own_train_step",
    "inputs_and_outputs_by_name",
    "a_loss_that_keeps_a_variable",
    "an_average_that_a_layer_keeps_in_predict",
    "a_build_that_makes_variables_of_values",
    "normalization_of_the_whole_batch",
    "an_added_loss_beside_one_number_for_a_batch",
    "a_reduction_by_sum",
    "a_mean_over_sample_weights",
    "metric_functions_of_one_number",
    "logs_of_an_own_step_under_the_name_of_a_metric",
    "a_keras_loss_in_add_loss",
    "an_own_compute_loss",
    "a_loss_function_that_returns_a_mean_with_steps_per_execution",
    "a_loss_function_that_returns_a_sum",
    "a_loss_class_that_returns_neither",
    "a_loss_class_with_a_sum_inside",
    "no_reduction",
    "no_reduction_of_one_of_two_outputs",
    "an_own_mean_of_losses_without_a_reduction",
    "a_mean_over_what_a_mask_leaves",
    "one_number_for_a_batch_with_sample_weights",
    "one_number_for_a_batch_with_weights_of_classes",
    "one_number_for_a_batch_with_sample_weights_and_no_reduction",
    "one_number_for_a_batch_with_a_mask",
    "one_number_for_a_batch_of_probabilities",
    "one_number_of_more_rows_than_examples_in_any_order",
    "one_number_of_a_loss_that_reads_weights_and_gets_infinite_logits",
    "a_loss_of_keras_with_a_number_for_each_class",
    "sums_over_batches_and_examples",
    "regularizers_of_kernels_and_activities",
    "trainable_that_changes_without_compile",
    "functions_of_a_model_that_the_program_calls",
    "an_own_train_step_at_a_lower_level",
    "a_model_without_call",
    "an_own_train_step_with_optimizers_in_a_dict",
    "an_own_train_step_with_optimizers_in_layers",
    "an_own_train_step_with_an_optimizer_for_later",
    "losses_that_tensorflow_scales",
    "losses_that_override_call",
    "metrics_of_an_own_train_step_whose_batches_are_pairs",
    "losses_and_metrics_with_a_number_for_each_class",
    "two_updates_of_a_loss_of_sequences_in_a_step",
)
OF_BOTH = (  # Where several tasks with several replicas differ from both.
    "last_batch_smaller_than_the_number_of_replicas",
    "a_large_variable_has_the_value_of_the_chief",
    "random_numbers_of_own_loops",
)
OF_TASKS = (  # As above, the other way round.
    "embedding",
    "models_built_outside_the_scope",
    "an_own_train_step_whose_batches_the_model_does_not_take",
    "an_own_train_step_with_two_optimizers_in_compiled_functions",
    "a_metric_that_makes_its_variables_itself",
    "clipping_in_a_loop_of_the_users_own",
    *OWN_LOOPS,
)
FOR_A_RELEASE = (  # Other arguments of the same functions as in cases that run for each change.
    "sgd_momentum",
    "steps_per_execution",
    "inputs_and_outputs_by_name",
    "loss_that_is_a_sum",
    "a_loss_function_that_returns_a_mean_with_steps_per_execution",
    "a_loss_class_with_a_sum_inside",
    "no_reduction",
    "no_reduction_of_one_of_two_outputs",
    "an_own_mean_of_losses_without_a_reduction",
    "a_mean_over_sample_weights",
    "one_number_for_a_batch_with_weights_of_classes",
    "one_number_for_a_batch_with_sample_weights_and_no_reduction",
    "one_number_for_a_batch_with_a_mask",
    "a_loss_of_keras_with_a_number_for_each_class",
    "sums_over_batches_and_examples",
    "an_own_train_step_with_optimizers_in_a_dict",
    "an_own_train_step_with_an_optimizer_for_later",
    "losses_that_override_call",
    "a_loss_function_that_returns_a_sum",
    # test_contract.py has these for each change.
    "jit_compile",
    "ema_overwrite_frequency",
    "own_train_step",
    "an_own_compute_loss",
    "a_model_without_call",
    "the_same_with_steps_per_execution",
    "gradient_accumulation_steps",
    "clipping_by_the_norm_of_all_gradients",
)
EACH_ONCE = tuple(case for case in (*FEW, *IN_ONE_TASK) if case not in (*FOR_A_RELEASE, *OF_TASKS))
CLUSTERS = {
    "mirrored": (1, (*FEW, *SUMS_AND_CLASSES, *OWN_STEPS, *LOSSES) if selection.ALL else EACH_ONCE),
    "multi_worker_mirrored": (
        2,
        tuple(f"not:{case}" for case in dict.fromkeys((*IN_ONE_TASK, *FOR_A_RELEASE)) if not selection.ALL),
    ),
    "multi_worker_mirrored, two replicas each": (2, FEW if selection.ALL else OF_BOTH),
}
"""Name of a cluster -> the number of its tasks, and the cases that it runs, or after `not:` those that it does not."""
N = 250
ONCE = [N, N * (N - 1) / 2, (N - 1) * N * (2 * N - 1) / 6]


def clusters_of(case):
    def has(cases):
        leaves_out = all(each.startswith("not:") for each in cases)
        return f"not:{case}" not in cases if leaves_out else case in cases

    return [name for name, (_, cases) in CLUSTERS.items() if has(cases)]


def pytest_generate_tests(metafunc):
    """Runs a test on the clusters that have its case: that of its parameter `name`, or of its own name."""
    if "name" in metafunc.fixturenames:
        metafunc.parametrize(("cluster", "name"), [(cluster, name) for name in COMPARED for cluster in clusters_of(name)])
    elif "results" in metafunc.fixturenames:
        metafunc.parametrize("cluster", clusters_of(metafunc.function.__name__.removeprefix("test_")))
    elif "ran" in metafunc.fixturenames:
        metafunc.parametrize("cluster", CLUSTERS)


@pytest.fixture(scope="module")
def run(tmp_path_factory, run_python):
    """Returns a function that runs a cluster, once, and returns the results of its tasks and its folder."""

    @functools.cache
    def run(cluster):
        folder = tmp_path_factory.mktemp("data_parallel")
        wide = "each" in cluster
        (folder / "workers.conf").write_text(
            f"cluster {{ nworkers_per_group: {4 if wide else 2} nworkers_per_procs: {2 if wide else 1} }}"
        )
        command = [PROGRAM, "3"] if cluster == "mirrored" else ["-m", "tfdist.launch", "--cluster", "workers.conf", PROGRAM]
        try:
            run_python(folder, *command, *CLUSTERS[cluster][1], timeout=880)
        except subprocess.TimeoutExpired:
            pass  # `ran` reports what is missing, once for all tests.
        return [json.loads(path.read_text()) for path in sorted(folder.glob("data_parallel-*.json"))], folder

    return run


@pytest.fixture
def ran(run, cluster):
    """(name of the cluster, results of each task, folder of the run)"""
    tasks, folder = run(cluster)
    assert len(tasks) == CLUSTERS[cluster][0], (folder / "output.txt").read_text()[-5000:]
    return cluster, tasks, folder


@pytest.fixture
def results(ran, request):
    """The results of every task in the case with the name of the test, or of its parameter."""
    name = request.node.callspec.params.get("name", request.node.originalname.removeprefix("test_"))
    got = [task[name] for task in ran[1]]
    for result in got:
        assert "error" not in result, result["error"]
    return got


COMPARED = (
    "sgd_momentum",
    "adam",
    "steps_per_execution",
    "last_batch_smaller_than_the_number_of_replicas",
    "the_same_with_steps_per_execution",
    "steps_of_an_execution_before_a_read_that_fails",
    "jit_compile",
    "run_eagerly",
    "ema_overwrite_frequency",
    "gradient_accumulation_steps",
    "all_of_these",
    "clipping_by_the_norm_of_all_gradients",
    "loss_scaling",
    "regularizers_and_weights_of_classes",
    "loss_that_is_a_sum",
    "embedding",
    "on_batch_functions",
    "own_train_step",
    "inputs_and_outputs_by_name",
    "many_small_variables",
    "models_built_outside_the_scope",
    "an_own_train_step_whose_batches_the_model_does_not_take",
    "an_own_train_step_with_two_optimizers_in_compiled_functions",
    *OWN_STEPS,
    "a_metric_that_makes_its_variables_itself",
    "trainable_that_changes_without_compile",
    "functions_of_a_model_that_the_program_calls",
    "clipping_in_a_loop_of_the_users_own",
    *OWN_LOOPS,
    *LOSSES,
    *SUMS_AND_CLASSES,
)


def test_equals_one_process(results, name):
    for task in results:
        assert equal(results[0]["one"], task["ours"])


def test_the_cluster_has_its_replicas(ran):
    cluster, tasks, _ = ran
    expected = 4 if "each" in cluster else 2 if "multi" in cluster else 3
    assert [task["replicas"] for task in tasks] == [expected] * len(tasks)


def test_each_example_once_with_no_seed_set(results):
    assert len(results[0]) == 13
    for name, seen in results[0].items():
        if name not in ("weights", "random"):
            assert seen == [[value] * len(seen[0]) for value in ONCE], name
    assert all(task == results[0] for task in results)


def test_moving_averages_are_the_same_everywhere(results):
    assert all(task == results[0] for task in results)
    for name in ("of each 1", "of each 4"):
        mean, variance = results[0][name]
        assert len(set(mean)) == len(set(variance)) == 1
        assert np.isfinite([*mean, *variance]).all() and mean[0] != 0


def test_a_large_variable_has_the_value_of_the_chief(results):
    assert all(task == results[0] for task in results)
    assert len(results[0]["own"][0]) == 11 and all(replica == results[0]["own"][0] for replica in results[0]["own"])


def test_callbacks_see_the_same_everywhere(results, ran):
    _, _, folder = ran
    assert all(task["seen"] == results[0]["seen"] and task["weights"] == results[0]["weights"] for task in results)
    assert 2 <= results[0]["epochs"] < 20
    # Only the first task writes files and shows progress.
    assert len((folder / "log.csv").read_text().splitlines()) == results[0]["epochs"] + 1
    assert (folder / "output.txt").read_text().count("Epoch 1/20") == 1
    assert ["TensorBoard" in task["writers"] for task in results] == [True] + [False] * (len(results) - 1)


def test_sharding_that_the_user_has_set(results):
    # Ten batches of 24. OFF: each of two tasks reads the whole dataset, in batches of 12.
    assert results == [{"OFF": [240.0 * len(results)], "DATA": [240.0], "distributed": [240.0]}] * len(results)


def test_custom_training_loop(results):
    losses = results[0]["losses"]
    assert len(losses) == 8 and losses[-1] < 0.1 * losses[0]
    assert all(task == results[0] for task in results)


def test_random_numbers_of_own_loops(results, ran):
    for calls in results:  # In each call four numbers of each replica, each of another operation.
        for numbers in (call[operation::4] for call in calls for operation in range(4)):
            assert len(set(numbers)) == len(numbers) == ran[1][0]["replicas"]
        assert not {*calls[0]} & {*calls[1]}


def test_what_cannot_work_says_so(results):
    for task in results:
        assert "was built outside the strategy's scope, and its variables cannot move; make it" in task["outside"]
        assert "BatchNormalization(synchronized=True) does: XLA cannot compile that" in task["synchronized"]
        assert "this train_step applies gradients twice; leave jit_compile at 'auto'" in task["two_updates"]
        assert (
            "the step applies gradients in a tf.cond, an `if` on a tensor, or a loop of TensorFlow, whose condition"
            in task["condition"]
        )
        assert (
            "the loss nt_xent depends on the order of its rows, and that of the whole batch is not known" in task["two_views"]
        )
        assert "kernel was made outside the strategy's scope, and strategy.run cannot train it" in task["model_outside"]
        assert "would keep its first scale for ever; call optimizer.build" in task["unbuilt_scale"]
        assert "computes or applies gradients outside of strategy.run" in task["gradients_in_the_scope"]
        assert (
            "was created outside the strategy's scope" in task["lora"]
            and "call enable_lora or quantize, inside" in task["lora"]
        )


def test_every_case_of_the_program_is_looked_at_here(ran):
    cluster, tasks, _ = ran
    left_out = sum(case.startswith("not:") for case in CLUSTERS[cluster][1])
    looked_at = {*COMPARED, *(name.removeprefix("test_") for name in globals() if name.startswith("test_"))}
    assert tasks[0].keys() - {"replicas"} <= looked_at
    assert cluster != "multi_worker_mirrored" or len(tasks[0]) == len(COMPARED) + 9 - left_out
