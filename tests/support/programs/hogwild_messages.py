"""Trains under hogwild, and lets TensorFlow write the graphs of the tasks: `hogwild_messages.py FOLDER COMPRESSION ...`.

Each COMPRESSION gets a folder of its name. The environment has TF_CPP_VMODULE=optimization_registry=4 from the start.
"""

import os
import sys

import keras
import numpy as np
import own_cluster
from hogwild_events import begin_training

import tfdist

folder, *compressions = sys.argv[1:]
own_cluster.serve({"strategy": "hogwild"}, worker=2, ps=2)
strategy = tfdist.strategy()
for compression in compressions:
    os.environ["TF_DUMP_GRAPH_PREFIX"] = path = os.path.join(folder, compression)
    os.mkdir(path)
    begin_training(strategy, 2, period=4, shard_bytes=2**21, outer="nesterov", compression=compression)
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(np.ones([64, 3], "float32"), np.ones([64, 2], "float32"), batch_size=4, verbose=0)
os._exit(0)  # Without the end of the servers, which wait for each other.
