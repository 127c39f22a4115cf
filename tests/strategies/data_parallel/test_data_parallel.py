"""Keras under mirrored and multi_worker_mirrored equals Keras in one process: all cases of programs/data_parallel.py.

Four clusters, each started once: one task with two replicas, and with three; two tasks with one replica each, and with two (a
few cases). test_contract.py has some of these cases too, with the tolerance of its table for many steps.
"""

import functools
import json
import subprocess

import numpy as np
import pytest
import selection
from programs import together
from rounding import equal
from support_paths import PROGRAMS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

PROGRAM = str(PROGRAMS / "data_parallel.py")
TOGETHER = {name: (name, *parts) for name, parts in together.TOGETHER.items()}
"""Case of the program -> the cases that it trains in one model, and what it gives as a whole."""
IN_ONE_TASK = (  # Two replicas. What they compute of several replicas, other cases compute of several tasks, by the same code.
    "all_of_these",
    "loss_scaling",
    "regularizers_and_weights_of_classes",
    "steps_of_an_execution_before_a_read_that_fails",
    "trainable_that_changes_without_compile",
    "functions_of_a_model_that_the_program_calls",
    "losses",
    "losses_without_a_reduction",
    "losses_by_class_without_a_reduction",
    "layers",
    "one_number_of_a_loss_that_reads_weights_and_gets_infinite_logits",
    "metric_functions_of_one_number",
    "a_loss_and_a_metric_that_read_what_call_keeps",
    "a_weighted_metric_function_that_compares_examples",
    "losses_and_metrics_with_a_number_for_each_class_of_known_rows",
    "logs_of_an_own_step_under_the_name_of_a_metric",
    "logs_that_a_step_computes_from_metrics",
    "an_own_train_step_at_a_lower_level",
    "an_own_train_step_with_optimizers_in_layers",
    "a_loss_for_each_example_in_an_own_train_step",
    "an_own_train_step_whose_batches_the_model_does_not_take",
    "losses_that_tensorflow_scales",
    "metrics_that_get_numbers_of_a_batch",
    "metrics_of_an_own_train_step_whose_batches_are_pairs",
    "metrics_of_an_own_train_step_that_makes_probabilities_of_classes",
    "a_metric_whose_methods_are_functions",
    "fewer_examples_than_replicas_for_a_layer_that_refuses_unknown_ones",
    "a_build_that_makes_variables_of_values",
    "an_average_that_a_layer_keeps_in_predict",
    "two_updates_of_a_loss_of_sequences_in_a_step",
    "random_numbers_of_own_loops",
    "sums_over_the_batch",
    "a_model_of_the_same_weights_with_another_loss",
    "optimizers_that_change_gradients",
    "predictions_that_are_no_rows",
    "predictions_of_other_forms_than_dense_tensors",
    "a_metric_outside_of_the_scope_beside_one_by_name",
    "numbers_of_a_batch_that_predict_returns",
    "what_predict_counts",
    "metrics_that_a_model_does_not_list",
)
OF_THREE = (
    "last_batch_smaller_than_the_number_of_replicas",
    "small_batches",
)  # Rows of one replica are between those of others.
OF_TASKS = (  # As above, the other way round.
    "each_example_once_with_no_seed_set",  # The first: later ones set seeds.
    "last_batch_smaller_than_the_number_of_replicas",
    "run_eagerly",
    "embedding",
    "positions_in_a_sequence",
    "on_batch_functions",
    "models_built_outside_the_scope",
    "a_loss_function_that_returns_a_mean",
    "a_metric_that_makes_its_variables_itself",
    "an_own_train_step_with_two_optimizers_in_compiled_functions",
    "an_own_train_step_that_assigns_a_trainable_weight",
    "ragged_batches_of_fewer_examples_than_replicas",
    "updates_of_an_own_loop",
    "an_own_loop_that_continues_from_a_checkpoint",
    "random_numbers_of_own_loops",
    "a_large_variable_has_the_value_of_the_chief",
    "moving_averages_are_the_same_everywhere",
    "callbacks_see_the_same_everywhere",
    "sharding_that_the_user_has_set",
    "what_cannot_work_says_so",
    "spectrograms",
    "what_predict_counts",
    "predictions_of_other_forms_than_dense_tensors",
    "a_metric_that_predict_alone_updates",
    "numbers_of_a_batch_that_predict_returns",
    "losses_of_whole_batches_of_changing_sizes",
)
OF_BOTH = (  # Where several tasks with several replicas differ from both.
    "predictions_of_other_forms_than_dense_tensors",
    "the_same_with_steps_per_execution",
    "a_large_variable_has_the_value_of_the_chief",
    "random_numbers_of_own_loops",
)
FOR_A_RELEASE = (  # Other arguments of the same functions as in cases that run for each change.
    "what_call_keeps_until_replicas_have_added_up",
    "masks_of_a_recurrent_layer",
    "sgd_momentum",
    "steps_per_execution",
    "other_losses",
    "inputs_and_outputs_by_name",
    "an_own_mean_of_losses_without_a_reduction",
    "one_number_for_a_batch_with_weights_of_classes",
    "sums_over_batches_and_examples",
    "an_own_train_step_with_optimizers_in_a_dict",
    "an_own_train_step_with_an_optimizer_for_later",
    "added_losses_that_are_sums",
    "a_loss_that_keeps_a_variable",
    "losses_that_override_call",
    # test_contract.py has these for each change.
    "own_train_step",
    "an_own_compute_loss",
    "a_model_without_call",
)
ALL_CASES = tuple(dict.fromkeys((*OF_TASKS, *IN_ONE_TASK, *OF_THREE, *OF_BOTH, *FOR_A_RELEASE)))
NOT_COMPARED = (
    "each_example_once_with_no_seed_set",
    "random_numbers_of_own_loops",
    "a_large_variable_has_the_value_of_the_chief",
    "moving_averages_are_the_same_everywhere",
    "callbacks_see_the_same_everywhere",
    "sharding_that_the_user_has_set",
    "what_cannot_work_says_so",
)
IN_TASKS_ONLY = (  # Of several replicas in a task they say something else.
    "each_example_once_with_no_seed_set",
    "sharding_that_the_user_has_set",
    "what_cannot_work_says_so",
)
CLUSTERS = {
    "mirrored": (1, 2, [name for name in ALL_CASES if name not in IN_TASKS_ONLY] if selection.ALL else IN_ONE_TASK),
    "mirrored, three replicas": (1, 3, OF_THREE),
    "multi_worker_mirrored": (2, 2, ALL_CASES if selection.ALL else OF_TASKS),
    "multi_worker_mirrored, two replicas each": (2, 4, OF_BOTH),
}
"""Name of a cluster -> the numbers of its tasks and replicas, and the cases that it runs."""
N = 250
ONCE = [N, N * (N - 1) / 2, (N - 1) * N * (2 * N - 1) / 6]


def names_of(cases):
    """Returns the names of the tests of some cases of the program."""
    return [name for case in cases for name in TOGETHER.get(case, [case])]


def pytest_generate_tests(metafunc):
    """Runs a test on the clusters that have its case: that of its parameter `name`, or of its own name."""
    of_clusters = {cluster: names_of(cases) for cluster, (*_, cases) in CLUSTERS.items()}
    if "name" in metafunc.fixturenames:
        compared = [(cluster, name) for cluster, names in of_clusters.items() for name in names if name not in NOT_COMPARED]
        metafunc.parametrize(("cluster", "name"), dict.fromkeys(compared))
    elif "results" in metafunc.fixturenames:
        own = metafunc.function.__name__.removeprefix("test_")
        metafunc.parametrize("cluster", [cluster for cluster, names in of_clusters.items() if own in names])
    elif "ran" in metafunc.fixturenames:
        metafunc.parametrize("cluster", CLUSTERS)


@pytest.fixture(scope="module")
def run(tmp_path_factory, run_python):
    """Returns a function that runs a cluster, once, and returns the results of its tasks and its folder."""

    @functools.cache
    def run(cluster):
        folder = tmp_path_factory.mktemp("data_parallel")
        tasks, replicas, cases = CLUSTERS[cluster]
        (folder / "workers.conf").write_text(
            f"cluster {{ nworkers_per_group: {replicas} nworkers_per_procs: {replicas // tasks} }}"
        )
        launch = ["-m", "tfdist.launch", "--cluster", "workers.conf", PROGRAM]
        command = [PROGRAM, f"{replicas}"] if tasks == 1 else launch
        try:
            run_python(folder, *command, *cases, timeout=880)
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


def test_equals_one_process(results, name):
    for task in results:
        assert equal(results[0]["one"], task["ours"])


def test_the_cluster_has_its_replicas(ran):
    cluster, tasks, _ = ran
    assert [task["replicas"] for task in tasks] == [CLUSTERS[cluster][1]] * len(tasks)


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
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {*NOT_COMPARED} <= tested and {*tasks[0]["cases"]} == {*names_of(ALL_CASES)}
    assert {*tasks[0]} == {*names_of(CLUSTERS[cluster][2]), "replicas", "cases"}
