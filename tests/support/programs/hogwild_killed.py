"""Trains under the launcher, and kills a task that holds global parameters: `hogwild_killed.py TASK RESULTS`.

In the tenth epoch; a ps also in `evaluate`, and before saves. Writes what it finds as JSON.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import h5py

import tfdist

KILLED, RESULTS = sys.argv[1:]
me = json.loads(os.environ["TF_CONFIG"])["task"]
Path(f"pid-{me['type']}:{me['index']}").write_text(str(os.getpid()))
strategy = tfdist.strategy()

import keras  # noqa: E402
import numpy as np  # noqa: E402

random = np.random.default_rng(1)
x, weights, others = random.normal(size=(512, 8)), random.normal(size=(8, 1)) + 3.0, random.normal(size=(8, 1))
losses: list[float] = []
killed: dict[str, int] = {}

RATE = 0.999
"""How Adam's second moment decays. With gradients of 1 it is 1 - RATE ** n after n updates."""


def kill(when, task=KILLED):
    if when not in killed:
        killed[when] = int(Path(f"pid-{task}").read_text())
        os.kill(killed[when], signal.SIGKILL)


class Examples(keras.metrics.Sum):
    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(keras.ops.ones_like(y_true))


class KillInTraining(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.004)
        if len(losses) == 9 and batch == 9:
            kill("in training")

    def on_epoch_end(self, epoch, logs=None):
        losses.append(logs["loss"])


class KillInEvaluate(keras.callbacks.Callback):
    def on_test_batch_end(self, batch, logs=None):
        if batch == 4:
            kill("in evaluate")


def killed_again(model):
    """Trains toward other weights, evaluates and saves."""
    model.optimizer.learning_rate = 0.01
    data = {"x": x, "y": x @ others, "verbose": 0}
    found = {"losses": model.fit(**data, batch_size=16, epochs=4).history["loss"]}
    found["evaluated"] = model.evaluate(**data, batch_size=4, callbacks=[KillInEvaluate()])[0]
    found["losses"] += model.fit(**data, batch_size=16, epochs=4).history["loss"]
    kill("before a save")  # What the groups have trained since their last push is still theirs.
    model.save("model.keras")
    loaded = keras.saving.load_model("model.keras", custom_objects={"Examples": Examples})
    found["error"] = max(float(np.abs(a - b).max()) for a, b in zip(loaded.get_weights(), model.get_weights(), strict=True))
    found["after"] = model.evaluate(**data)[0]
    return found | {"updates": int(model.optimizer.iterations), "killed": len(set(killed.values()))}


def slots():
    """Returns Adam's second moment, and what it should be: in a file that is saved at once, and after the next epoch."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, use_bias=False)])
        model.compile(keras.optimizers.Adam(1e-3, beta_2=RATE), lambda y_true, y_pred: y_pred)
    ones = np.ones((512, 4), "float32"), np.zeros((512, 1), "float32")
    model.fit(*ones, batch_size=8, epochs=3, verbose=0)
    kill("before a save of slots", "ps:0")
    model.save_weights("slots.weights.h5")
    found = []
    with h5py.File("slots.weights.h5") as file:
        saved = {name: each[()] for name, each in file["tfdist_training_state/own/optimizer/2"].items()}
        updates = {name: each[()] for name, each in file["tfdist_training_state/own/optimizer/0"].items()}
        assert saved.keys() == updates.keys() == {"0", "1"}
        found += [[float(np.ravel(saved[name])[0]), 1 - RATE ** int(updates[name])] for name in saved]
    model.fit(*ones, batch_size=8, verbose=0)
    state = strategy.training_state(model)
    for group in range(2):
        second_moment, updates = state[f"own/optimizer/2/{group}"], state[f"own/optimizer/0/{group}"]
        found.append([float(np.ravel(second_moment)[0]), 1 - RATE ** int(updates)])
    return found, int(model.optimizer.iterations)


with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.02), "mse", metrics=[Examples(name="examples")])
examples = model.fit(x, x @ weights, batch_size=16, epochs=20, verbose=0, callbacks=[KillInTraining()]).history["examples"]
error = float(np.abs(model.get_weights()[0] - weights).max())
results = {"losses": losses, "updates": int(model.optimizer.iterations), "error": error, "examples": examples}
if KILLED.startswith("ps:"):
    results |= {"again": killed_again(model), "slots": slots()}
Path(RESULTS).write_text(json.dumps(results))
