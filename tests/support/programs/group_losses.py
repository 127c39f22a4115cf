"""`group_losses.py`: the cases of losses.py under parameter_server with one synchronous group of two workers, and in one process."""

import contextlib
import json

import keras
import losses

import tfdist

ONE_GROUP = (
    "cluster { nworker_groups: 1 nserver_groups: 1 nworkers_per_group: 2 nservers_per_group: 2 server_worker_separate: true }"
)


def main():
    strategy = tfdist.strategy(ONE_GROUP)
    for case in losses.CASES:
        results = []
        for scope in (contextlib.nullcontext, strategy.scope):
            keras.utils.set_random_seed(1)
            results.append(case(scope))
        print("CASE", json.dumps([case.__name__, *results]), flush=True)


if __name__ == "__main__":
    main()
