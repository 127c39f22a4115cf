"""Cases of losses, own_losses, own_step_metrics and sums_and_classes under parameter_server with one group, and in one process.

Those with other arguments of the same functions, which tests/strategies/data_parallel has too, run for a release.
"""

import contextlib
import json

import keras
import losses
import own_losses
import own_step_metrics
import sums_and_classes

import tfdist

ONE_GROUP = (
    "cluster { nworker_groups: 1 nserver_groups: 1 nworkers_per_group: 2 nservers_per_group: 2 server_worker_separate: true }"
)
OF_REPLICAS = (
    own_step_metrics.metrics_that_get_numbers_of_a_batch,
    own_step_metrics.losses_that_tensorflow_scales,
    own_step_metrics.losses_that_override_call,
    own_step_metrics.metrics_of_an_own_train_step_whose_batches_are_pairs,
    *sums_and_classes.CASES,
)
FOR_EACH_CHANGE = (
    "a_loss_function_that_returns_a_mean",
    "a_loss_class_that_returns_neither",
    "a_mean_over_what_a_mask_leaves",
    "one_number_for_a_batch_with_sample_weights",
    "a_keras_loss_in_add_loss",
    "an_added_loss_beside_one_number_for_a_batch",
    "losses_that_tensorflow_scales",
    "metrics_of_an_own_train_step_whose_batches_are_pairs",
    "added_losses_that_are_sums",
    "a_loss_that_keeps_a_variable",
    "logs_that_a_step_computes_from_metrics",
    "variables_that_gradients_overwrite",
    "positions_in_a_sequence",
    "two_updates_of_a_loss_of_sequences_in_a_step",
)
CASES = {
    case.__name__: case
    for case in (*losses.CASES, *own_losses.CASES, *OF_REPLICAS)
    if losses.ALL or case.__name__ in FOR_EACH_CHANGE
}


def main():
    strategy = tfdist.strategy(ONE_GROUP)
    for case in CASES.values():
        results = []
        for scope in (contextlib.nullcontext, strategy.scope):
            keras.utils.set_random_seed(1)
            results.append(case(scope))
        print("CASE", json.dumps([case.__name__, *results]), flush=True)


if __name__ == "__main__":
    main()
