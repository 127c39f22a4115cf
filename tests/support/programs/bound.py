"""`bound.py`: a training that the ps binds, until the file `go_on` appears, then one that the worker binds, until `end` appears.

In the first, parameters are large and steps short, and another program takes most of the only core that the ps may use. In the
second, parameters are few and steps long.
"""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import keras
import tensorflow as tf

import tfdist

GO_ON = Path("go_on")
BUSY = "import os\nwhile os.getppid() == {}: sum(range(10000))"


def slow_down():
    """Makes the ps share a core with a program of higher priority until the file appears. The other tasks keep to another core.

    So the tasks together never fill the cores that they may use, however slow those are.
    """
    cores, job = os.sched_getaffinity(0), json.loads(os.environ["TF_CONFIG"])["task"]["type"]
    if job != "ps":
        os.sched_setaffinity(0, {max(cores)})
        return
    os.sched_setaffinity(0, {min(cores)})
    other = subprocess.Popen([sys.executable, "-c", BUSY.format(os.getpid())])
    os.nice(5)  # Of this thread, and of those that it starts.

    def wait():
        while not GO_ON.exists():
            time.sleep(0.05)
        other.kill()
        other.wait()

    threading.Thread(target=wait, daemon=True).start()


class Until(keras.callbacks.Callback):
    """Ends a training when a file exists."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def on_train_batch_end(self, batch, logs=None):
        if self.path.exists():
            self.model.stop_training = True


def train(layers, x, path):
    with tfdist.strategy().scope():
        model = keras.Sequential([keras.Input(x.shape[1:]), *layers, keras.layers.Dense(1)])
        model.compile("adam", "mse")
    data = tf.data.Dataset.from_tensors((x, tf.zeros([len(x), 1]))).repeat()
    model.fit(data, epochs=1, steps_per_epoch=10**6, verbose=0, callbacks=[Until(path)])


slow_down()
train([keras.layers.Dense(3000)], tf.zeros([1, 1000]), GO_ON)
convolved = [keras.layers.Conv2D(16, 3) for _ in range(3)]
train([*convolved, keras.layers.GlobalAveragePooling2D()], tf.zeros([16, 64, 64, 16]), Path("end"))
