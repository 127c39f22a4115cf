"""Trains on equal batches with groups that wait for each other, in its own cluster. Writes the weights to a file."""

import json
import sys

import keras
import numpy as np

import tfdist
from tfdist.cluster import Cluster, Task
from tfdist.strategies.hogwild.timing import grace

grace.PERIODS = grace.WITH_SLOWER_PERIODS = 1000.0  # No group continues alone because the machine is busy.
grace.FIRST_SECONDS = 60.0
options = json.loads(sys.argv[1])
rates = {"outer_learning_rate": options["outer_rate"], "outer_momentum": options["outer_momentum"]}
synchronization = tfdist.Synchronization("nesterov", **rates, delay=options["delay"], fragments=options["fragments"])
tasks = (Task("chief", 0), *(Task("worker", index) for index in range(options["groups"])), Task("ps", 0))
strategy = tfdist.strategy(Cluster(tasks, strategy="hogwild", sync_period=options["period"], synchronization=synchronization))
with strategy.scope():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(options["rate"], momentum=options["momentum"]), "mse")
x, y = np.array(options["x"], "float32"), np.array(options["y"], "float32")
steps = options["groups"] * options["updates"]
data = np.tile(x, (steps, 1)), np.tile(y, steps)
model.fit(*data, batch_size=len(x), epochs=options["epochs"], shuffle=False, verbose=0, validation_data=(x, y))
with open(options["file"], "w") as file:
    json.dump([value for weight in model.get_weights() for value in weight.reshape(-1).tolist()], file)
