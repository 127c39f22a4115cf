"""Cases of losses.py, own_steps.py and sums_and_classes.py under parameter_server with one group, and in one process."""

import contextlib
import json

import keras
import losses
import own_steps
import sums_and_classes

import tfdist

ONE_GROUP = (
    "cluster { nworker_groups: 1 nserver_groups: 1 nworkers_per_group: 2 nservers_per_group: 2 server_worker_separate: true }"
)
OF_REPLICAS = (
    own_steps.metrics_that_get_numbers_of_a_batch,
    own_steps.losses_that_tensorflow_scales,
    own_steps.losses_that_override_call,
    own_steps.metrics_of_an_own_train_step_whose_batches_are_pairs,
    *sums_and_classes.CASES,
)


def main():
    strategy = tfdist.strategy(ONE_GROUP)
    for case in (*losses.CASES, *OF_REPLICAS):
        results = []
        for scope in (contextlib.nullcontext, strategy.scope):
            keras.utils.set_random_seed(1)
            results.append(case(scope))
        print("CASE", json.dumps([case.__name__, *results]), flush=True)


if __name__ == "__main__":
    main()
