"""Trains on equal batches with groups that wait for each other's rounds, in a cluster of its own; writes the weights to a file."""

import json
import sys

import keras
import numpy as np

import tfdist
from tfdist.cluster import Cluster, Task
from tfdist.strategies.hogwild import rounds

rounds.PERIODS, rounds.FIRST_SECONDS = 1000.0, 60.0  # Nobody goes on alone because the machine is busy.
given = json.loads(sys.argv[1])
options = tfdist.Synchronization("nesterov", given["outer_rate"], given["outer_momentum"], overlap=False)
tasks = (Task("chief", 0), *(Task("worker", index) for index in range(given["groups"])), Task("ps", 0))
strategy = tfdist.strategy(Cluster(tasks, strategy="hogwild", sync_period=given["period"], synchronization=options))
with strategy.scope():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(given["rate"], momentum=given["momentum"]), "mse")
x, y = np.array(given["x"], "float32"), np.array(given["y"], "float32")
steps = given["groups"] * given["updates"]
model.fit(np.tile(x, (steps, 1)), np.tile(y, steps), batch_size=len(x), shuffle=False, verbose=0)
with open(given["file"], "w") as file:
    json.dump(model.get_weights()[0].reshape(-1).tolist(), file)
