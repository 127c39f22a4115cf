"""A group of hogwild pushes late to one ps, as if it had not heard of the last rounds there; writes what it knows afterwards.

    python hogwild_late.py OUTPUT

OUTPUT gets, for each batch after that and for each group, the rounds that it has made with each shard of weights and averages.
"""

import json
import sys

import keras
import numpy as np
import own_cluster

import tfdist
from tfdist.strategies.hogwild.synchronization.local_variable import Kind

BATCHES, LATE_AT = 200, (40, 80, 120)

own_cluster.serve({"strategy": "hogwild", "sync_period": 2, "synchronization": {"delay": 1, "grace": 50}}, worker=2, ps=2)
strategy = tfdist.strategy()
with strategy.scope():
    layers = [keras.layers.Dense(64), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((32,)), *layers])
    model.compile(keras.optimizers.SGD(0.01), "mse", jit_compile=False)
made = []


class Late(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        blocks = [block for block in strategy.local_replicas.blocks if block.kind is Kind.SYNCHRONIZED]
        leaders = [group.devices[0] for group in strategy.worker_groups]
        if batch in LATE_AT:
            known = blocks[0].last_rounds.read(leaders[0]).numpy()
            known[-1] -= 1
            blocks[0].last_rounds.assign(known, leaders[0])
        if batch > LATE_AT[-1] + 20:
            shards = [
                [block.last_rounds.read(leader) - block.first_round.read(leader) for block in blocks] for leader in leaders
            ]
            made.append([np.concatenate(each).tolist() for each in shards])


x = np.random.default_rng(1).normal(size=(BATCHES * 4, 32)).astype("float32")
model.fit(x, x[:, :1], batch_size=4, verbose=0, callbacks=[Late()])
with open(sys.argv[1], "w") as file:
    json.dump(made, file)
