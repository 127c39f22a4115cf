"""Trains in epochs that are shorter than a sync period, with groups that wait for each other without end: `... BATCHES EPOCHS`.

Prints the number of rounds, and how far the loss is from the least one.
"""

import sys

import keras
import numpy as np
import own_cluster

import tfdist

batches, epochs = map(int, sys.argv[1:])
own_cluster.serve({"strategy": "hogwild", "sync_period": 16, "synchronization": {"grace": 1e9}}, worker=3, ps=1)
strategy = tfdist.strategy()
generator = np.random.default_rng(1)
x = generator.normal(size=(12 * batches, 4))
y = x @ [1.0, -2.0, 0.5, 3.0] + 0.05 * generator.normal(size=12 * batches)
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.05, batches * epochs)), "mse")
model.fit(x, y, batch_size=12, epochs=epochs, verbose=0)
least = np.mean((x @ np.linalg.lstsq(x, y)[0] - y) ** 2)
(block, *_) = strategy.synchronized_blocks
print("ROUNDS", block.shards[0][0].state["round"].read().numpy(), flush=True)
print("EXCESS", model.evaluate(x, y, verbose=0) / least - 1, flush=True)
