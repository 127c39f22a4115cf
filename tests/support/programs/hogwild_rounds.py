"""Trains on equal batches with groups that wait for each other, in its own cluster. Writes the weights to a file."""

import json
import sys
import time

import keras
import numpy as np

import tfdist
from tfdist.cluster import Cluster, Task
from tfdist.strategies.hogwild import rounds

rounds.PERIODS, rounds.FIRST_SECONDS = 1000.0, 60.0  # No group continues alone because the machine is busy.
answer_of = rounds.Rounds.wait


def late(self, block, group, live):
    """Lets the first group get the answer to its push last, so that the push of another has completed the round on the ps."""
    time.sleep(0.3 if group == 0 else 0.0)
    return answer_of(self, block, group, live)


rounds.Rounds.wait = late
options = json.loads(sys.argv[1])
synchronization = tfdist.Synchronization("nesterov", options["outer_rate"], options["outer_momentum"], overlap=False)
tasks = (Task("chief", 0), *(Task("worker", index) for index in range(options["groups"])), Task("ps", 0))
strategy = tfdist.strategy(Cluster(tasks, strategy="hogwild", sync_period=options["period"], synchronization=synchronization))
with strategy.scope():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(options["rate"], momentum=options["momentum"]), "mse")
x, y = np.array(options["x"], "float32"), np.array(options["y"], "float32")
steps = options["groups"] * options["updates"]
model.fit(np.tile(x, (steps, 1)), np.tile(y, steps), batch_size=len(x), shuffle=False, verbose=0)
with open(options["file"], "w") as file:
    json.dump(model.get_weights()[0].reshape(-1).tolist(), file)
