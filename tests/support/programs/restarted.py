"""Trains under the launcher, and kills a task in the middle of its first attempt: `restarted.py TASK KILLED_AT`.

The first model is interrupted and continues after the restart. The second one trains without an interruption, from the same
seeds. The file out-TASK.json of each task that trains has what became of both.
"""

import json
import os
import pathlib
import signal
import sys
import time

import tfdist

KILLED, AT = sys.argv[1], int(sys.argv[2])
me = json.loads(os.environ["TF_CONFIG"])["task"]
pathlib.Path(f"pid-{me['type']}:{me['index']}").write_text(str(os.getpid()))
strategy = tfdist.strategy()

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

EXAMPLES, BATCH, EPOCHS = 60, 6, 4
X = np.random.default_rng(1).random((EXAMPLES, 3), "float32")
Y = X.sum(axis=1, keepdims=True)
FIRST_ATTEMPT = not os.path.exists("killed")
steps: list[float] = []


class Kill(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        steps.append(time.time())
        if FIRST_ATTEMPT and len(steps) == AT and me["index"] == 0:
            pathlib.Path("killed").write_text(str(time.time()))
            os.kill(int(pathlib.Path(f"pid-{KILLED}").read_text()), signal.SIGKILL)


class Examples(keras.metrics.Sum):
    """Counts examples."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        del y_pred, sample_weight
        return super().update_state(tf.ones_like(y_true[:, 0]))


class Net(keras.Sequential):
    """Updates its last bias once more, with an optimizer of its own."""

    def __init__(self, layers):
        super().__init__(layers, name="net")
        self.own = {"bias": keras.optimizers.Adam(0.001)}

    def train_step(self, data):
        logs = super().train_step(data)
        bias = self.layers[-1].bias
        self.own["bias"].apply_gradients([(tf.zeros_like(bias) + 0.01, bias)])
        return logs


def train(name, callbacks):
    keras.utils.set_random_seed(7)
    with strategy.scope():
        layers = [keras.layers.Dense(8, activation="relu"), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
        model = Net([keras.Input((3,)), *layers])
        rate = keras.optimizers.schedules.ExponentialDecay(0.01, 7, 0.8)
        model.compile(keras.optimizers.Adam(rate), "mse", metrics=[Examples(name="examples")])
    data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(EXAMPLES).batch(BATCH)
    early = keras.callbacks.EarlyStopping("loss", patience=50)
    callbacks = [early, keras.callbacks.CSVLogger(f"{name}.csv"), *callbacks]
    history = model.fit(data, epochs=EPOCHS, verbose=0, callbacks=callbacks, validation_data=(X, Y))
    return {
        "epochs": history.epoch,
        "history": history.history,
        "weights": [weight.tolist() for weight in model.get_weights()],
        "iterations": int(model.optimizer.iterations.numpy()),
        "own_iterations": int(model.own["bias"].iterations.numpy()),
        "best_epoch": early.best_epoch,
    }


out = {"interrupted": train("interrupted", [Kill()]), "resumed_at": min(steps), "whole": train("whole", [])}
pathlib.Path(f"out-{me['type']}-{me['index']}.json").write_text(json.dumps(out))
