"""Trains on equal batches with groups that wait for each other: `hogwild_rounds.py OPTIONS RESULTS`, both of JSON.

Writes the weights, for each delay and number of fragments.
"""

import json
import sys

import keras
import numpy as np
import own_cluster
from held_parameters import LIMIT
from hogwild_events import begin_training

import tfdist

options = json.loads(sys.argv[1])
own_cluster.serve({"strategy": "hogwild"}, worker=options["groups"], ps=1)
strategy = tfdist.strategy()
x, y = np.array(options["x"], "float32"), np.array(options["y"], "float32")
steps = options["groups"] * options["updates"]
data = np.tile(x, (steps, 1)), np.tile(y, steps)
rates = {"outer_learning_rate": options["outer_rate"], "outer_momentum": options["outer_momentum"]}
shared = {"period": options["period"], "servers": ((0,),), "grace": LIMIT, "shard_bytes": 2**21, "outer": "nesterov", **rates}


def trained(delay, fragments):
    begin_training(strategy, options["groups"], **shared, delay=delay, fragments=fragments)
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="zeros")])
        model.compile(keras.optimizers.SGD(options["rate"], momentum=options["momentum"]), "mse")
    fitted = {"epochs": options["epochs"], "shuffle": False, "verbose": 0, "validation_data": (x, y)}
    model.fit(*data, batch_size=len(x), **fitted)
    return [value for weight in model.get_weights() for value in weight.reshape(-1).tolist()]


with open(sys.argv[2], "w") as file:
    json.dump([trained(*way) for way in options["ways"]], file)
