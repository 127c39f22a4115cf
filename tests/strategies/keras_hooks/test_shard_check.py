"""A step that replicas compute differently from one process is warned of, by the name of its model; no other step is."""

import json

import pytest
import selection
from support_paths import PROGRAMS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

ONE_BY_ONE = "what an example adds to an update depends on the other examples of its batch"
WARNED = {
    "contrastive": ONE_BY_ONE,
    "a_comparison_whose_weight_grows": ONE_BY_ONE,
    "a_contrastive_step_that_assigns_in_a_branch": ONE_BY_ONE,
    "a_trained_weight_that_the_step_sets_first": ONE_BY_ONE,
    "a_mean_in_a_sum_over_the_replicas": 'has aggregation="sum", something that is no sum over the examples',
    "normalized_by_hand": ONE_BY_ONE,
    "a_sum_and_a_regularizer": "an update depends on the number of examples",
    "a_sum_beside_the_larger_mean_of_another_optimizer": "an update depends on the number of examples",
    "a_sum_of_keras_divided_by_hand": "an update depends on the number of examples",
    "clips_gradients_when_they_are_large": "it clips its gradients, which are those of a shard",
    "scales_gradients_by_their_norm": "the step computes with its gradients",
    "sharpness_aware": "the step computes with its gradients",
    "a_queue_of_examples": "it assigns a_queue_of_examples/rows something that is no mean over the examples",
    "a_number_of_examples": "it assigns a_number_of_examples/seen something that is no mean over the examples",
    "a_codebook_that_follows_its_averages": ONE_BY_ONE,
    "operations_over_the_batch": ONE_BY_ONE,
    "circle_loss": ONE_BY_ONE,
    "a_compute_loss_without_training": ONE_BY_ONE,
    "a_mean_over_what_a_mask_leaves": ONE_BY_ONE,
    "a_mean_over_what_is_no_padding": ONE_BY_ONE,
    "a_sum_of_what_call_keeps": "an update depends on the number of examples",
    "a_product_with_what_call_keeps": "that returns one number, of its arguments alone",
    "a_mean_by_weights_of_its_own": 'A mean by the weights of examples is that of a Keras loss with reduction="mean_with',
    "a_layer_that_balances_over_the_batch": ONE_BY_ONE,
    "an_activation_over_the_batch": ONE_BY_ONE,
    "a_softmax_over_the_batch": ONE_BY_ONE,
    "a_regularizer_that_compares_examples": ONE_BY_ONE,
    "an_average_that_the_step_uses": ONE_BY_ONE,
    "a_step_that_computes_with_its_metric": "an update depends on the result of the metric so_far, and every replica counts",
    "noise_on_its_gradients": "it adds random numbers to its gradients. Every replica draws its own",
    "a_truth_value_of_an_example": "last something that is no mean over the examples",
    "batch_normalization": "BatchNormalization (bn) normalizes each replica's part",
    "a_step_that_sets_trainable_of_a_normalization": "BatchNormalization (bn) normalizes each replica's part",
}
UNCHECKED = {
    "ragged_rows": "its batches hold values that are not dense tensors",
    "random_numbers_without_a_seed": "it draws random numbers that no seed fixes (RandomStandardNormal)",
    "an_assignment_in_a_branch_by_the_batch": "by a value that it computes from the examples of the batch",
    "a_weight_that_begins_by_the_batch_in_a_branch": "/norm/scale in a branch or loop (ops.cond), by the examples of the batch",
    "a_branch_by_the_batch": "by a value that it computes from the examples of the batch",
    "an_update_without_apply": "it changes variables itself, not by the apply of an optimizer",
    "a_variable_of_tensorflow": "it assigns the tf.Variable queue, of which every replica keeps its own value",
}
TESTS = {
    "evaluate_a_comparison": "what the model returns for an example depends on the other examples of its batch",
    "predict_a_comparison": "what the model returns for an example depends on the other examples of its batch",
    "evaluate_with_a_variable_of_tensorflow": "a metric or layer assigns the tf.Variable its_total, of which every replica keeps its own",
}
LOGS = {"logs_that_compare_examples": "each batch: norm depends on which examples are together in a batch"}
METRICS = {
    "a_metric_of_what_call_keeps": "what an example adds to the metric",
    "a_metric_that_compares_examples": "what an example adds to the metric centered_error depends on the other examples",
}
EQUAL = (
    "a_mean_of_the_examples",
    "a_mean_whose_weight_grows",
    "evaluate_each_example",
    "predict_each_example",
    "gradients_of_each_example_that_are_clipped",
    "a_sum_of_the_examples",
    "a_sum_with_random_numbers",
    "an_optimizer_that_changes_gradients",
    "random_numbers",
    "few_random_numbers",
    "a_moving_average",
    "a_sum_over_the_replicas",
    "a_mean_that_assigns_in_a_branch",
    "an_optimizer_that_centralizes_gradients",
    "connectionist_temporal_losses_that_a_layer_adds",
    "numbers_for_each_example_and_a_mean_that_a_layer_adds",
    "two_optimizers",
    "losses_of_keras",
    "a_mask",
    "a_mean_by_weights",
    "a_mean_of_what_call_keeps",
    "a_loss_of_one_number_that_adds_up",
    "a_loss_that_compares_examples_and_is_one_number",
    "a_loss_for_each_example_that_compares_them",
    "a_metric_function_that_compares_examples",
    "synchronized_normalization",
    "a_normalization_that_only_infers",
    "an_embedding",
    "a_metric_with_variables_of_its_own",
)
WARNED_IN_A_STEP = (  # Or not: not only the first trial could.
    "a_comparison_whose_weight_grows",
    "a_mean_whose_weight_grows",
    "predict_a_comparison",
    "predict_each_example",
    "batch_normalization",
    "a_step_that_sets_trainable_of_a_normalization",
    "a_normalization_that_only_infers",
    "synchronized_normalization",
    "connectionist_temporal_losses_that_a_layer_adds",
    "numbers_for_each_example_and_a_mean_that_a_layer_adds",
    "a_loss_that_compares_examples_and_is_one_number",
    "a_metric_with_variables_of_its_own",
    *TESTS,
)


def only_tried_out(cases):
    return [case if case in WARNED_IN_A_STEP else f"{case}:trial" for case in cases]


FEW = ("contrastive", "a_mean_of_the_examples", "batch_normalization")
PREDICTIONS = ("evaluate_a_comparison", "predict_a_comparison", "predict_each_example")
GROWING = ("a_comparison_whose_weight_grows", "a_mean_whose_weight_grows")
FEW_EXAMPLES = "an_average_that_the_step_uses"  # Tasks have one or two each, and the step is tried out on all.
SHARDED = (*FEW, "sharpness_aware", "a_sum_of_the_examples", "clips_gradients_when_they_are_large")

GROUPS = "cluster { nworker_groups: 2 nworkers_per_group: 2 nserver_groups: 1 nservers_per_group: 1 }"
ALL_STEPS = (*WARNED, *UNCHECKED, *LOGS, *METRICS, *TESTS, *EQUAL)
CLUSTERS = {
    "mirrored": (
        "cluster { nworkers_per_group: 2 nworkers_per_procs: 2 }",
        ALL_STEPS if selection.ALL else only_tried_out(ALL_STEPS),
    ),
    "mirrored, 2 x 2": (
        "cluster { nworkers_per_group: 4 nworkers_per_procs: 4 }",
        only_tried_out(SHARDED),
        *("--partition=kernel=rows", "--partition_devices=2"),
    ),
    "multi_worker_mirrored, 2 x 2": (  # A replica is in two tasks.
        "cluster { nworkers_per_group: 4 }",
        SHARDED,
        *("--partition=kernel=rows", "--partition_tasks=2"),
    ),
    "multi_worker_mirrored": (
        "cluster { nworkers_per_group: 2 }",
        ALL_STEPS if selection.ALL else (*FEW, *GROWING, *PREDICTIONS, FEW_EXAMPLES),
    ),
    "parameter_server": (GROUPS, (*FEW, *PREDICTIONS)),
    "hogwild": (GROUPS, FEW),
}


FOR_A_RELEASE = ("hogwild", "multi_worker_mirrored, 2 x 2")


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.release) if name in FOR_A_RELEASE else name for name in CLUSTERS],
)
def messages(request, tmp_path_factory, run_python):
    """What the first task of a cluster logs, by case."""
    description, cases, *flags = CLUSTERS[request.param]
    folder = tmp_path_factory.mktemp("shared_batches")
    (folder / "cluster.conf").write_text(description)
    strategy = request.param.partition(",")[0]
    launch = ("-m", "tfdist.launch", "--cluster", "cluster.conf", "--strategy", strategy, *flags)
    assert run_python(folder, *launch, str(PROGRAMS / "shared_batches.py"), "--", *cases, timeout=250) == 0, (
        folder / "output.txt"
    ).read_text()[-5000:]
    return json.loads((folder / "warnings.json").read_text())


def test_steps_that_differ_are_named(messages):
    for name in WARNED.keys() & messages.keys():
        (message,) = [each for each in messages[name] if "differs from that in one process" in each]
        assert message.startswith(f"the training of {name} ") and WARNED[name] in message
        assert "because 2 replicas share each batch" in message


def test_steps_that_cannot_be_tried_out_are_named_with_the_reason(messages):
    for name in UNCHECKED.keys() & messages.keys():
        (message,) = messages[name]
        assert message.startswith(f"it was not checked whether the training of {name} (")
        assert ") equals that in one process: " in message and UNCHECKED[name] in message


def test_logs_that_differ_are_named(messages):
    for name in LOGS.keys() & messages.keys():
        (message,) = messages[name]
        assert message.startswith(f"logs of {name} (") and LOGS[name] in message


def test_metrics_that_differ_are_named(messages):
    for name in METRICS.keys() & messages.keys():
        (message,) = messages[name]
        assert message.startswith(f"a metric of {name} (") and METRICS[name] in message


def test_evaluations_that_differ_are_named(messages):
    for name in TESTS.keys() & messages.keys():
        (message,) = messages[name]
        assert message.startswith(f"{name.partition('_')[0]} of {name} (") and TESTS[name] in message


def test_other_steps_are_not(messages):
    for name in EQUAL:
        assert not messages.get(name)
