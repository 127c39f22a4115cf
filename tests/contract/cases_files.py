"""Files: the chief writes them into the folder that all tasks share, and every task loads them."""

import contextlib
import os
import time
import traceback

import keras
import numpy as np
import tensorflow as tf

from contract.common import X, Y, case, fit, regression, trained
from contract.table import FILES_OF_REFERENCE

FILES = "../files"


def adam():
    return keras.optimizers.Adam(0.002)


@contextlib.contextmanager
def slow_chief(strategy):
    """Delays the files of the chief where other tasks load them too."""
    import tfdist  # Not above: differences() runs without it.

    rename = os.replace
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) and tfdist.is_chief():
        os.replace = lambda *paths: time.sleep(0.3) or rename(*paths)
    try:
        yield
    finally:
        os.replace = rename


@case("keras_file", "weights_file", "tensorflow_checkpoint", "exported")
def saving(strategy):
    model, other = regression(strategy, adam), regression(strategy, adam)
    fit(model, X, Y, epochs=1)
    prediction = model.predict(X, verbose=0)
    os.makedirs(FILES, exist_ok=True)
    with slow_chief(strategy):
        model.save(f"{FILES}/model.keras")
        assert os.path.exists(f"{FILES}/model.keras")
        model.save_weights(f"{FILES}/model.weights.h5")
    refused = None
    try:
        model.export(f"{FILES}/exported", verbose=False)
    except NotImplementedError as error:
        refused = {"error": str(error), "trace": traceback.format_exc()}
    checkpoint = tf.train.Checkpoint(model=model)
    manager = tf.train.CheckpointManager(checkpoint, f"{FILES}/checkpoints", max_to_keep=1)
    manager.save()
    manager.save()
    model.save("own.keras")  # In the folder of this task.
    np.save(f"{FILES}/prediction-{os.getpid()}.npy", prediction)
    os.replace(f"{FILES}/prediction-{os.getpid()}.npy", f"{FILES}/prediction.npy")

    with strategy.scope():
        loaded = keras.saving.load_model(f"{FILES}/model.keras")
    after = fit(loaded, X, Y, epochs=1)
    found = {folder: differences(strategy, other, folder) for folder in (FILES, os.environ.get(FILES_OF_REFERENCE)) if folder}
    assert max(difference for each in found.values() for difference in each.values()) < 1e-5, found
    checkpoint = tf.train.Checkpoint(model=other)
    checkpoint.restore(tf.train.latest_checkpoint(f"{FILES}/checkpoints")).assert_existing_objects_matched()
    if refused is None:
        exported = tf.saved_model.load(f"{FILES}/exported")
        assert np.allclose(exported.serve(X), prediction, atol=1e-5)
    return {
        "keras_file": trained(loaded, after) | {"chief": {"files": [name for name in os.listdir() if name.startswith("own")]}},
        "weights_file": {"exact": {}},
        "tensorflow_checkpoint": {"exact": {"latest": os.path.basename(manager.latest_checkpoint)}},
        "exported": refused or {"exact": {}},
    }


def differences(strategy, model, folder):
    """Returns the largest difference to the predictions of the column that wrote `folder`, by kind of file.

    `model` gets its weights from each file, and predicts.
    """
    prediction = np.load(f"{folder}/prediction.npy")
    with strategy.scope():
        loaded = keras.saving.load_model(f"{folder}/model.keras")
    checkpoint = tf.train.Checkpoint(model=model)
    loads = {
        "model.keras": lambda: model.set_weights(loaded.get_weights()),
        "model.weights.h5": lambda: model.load_weights(f"{folder}/model.weights.h5"),
        "checkpoints": lambda: checkpoint.restore(tf.train.latest_checkpoint(f"{folder}/checkpoints")).expect_partial(),
    }
    found = {}
    for name, load in loads.items():
        model.set_weights([weight + 1 for weight in model.get_weights()])
        load()
        found[name] = float(np.abs(model.predict(X, verbose=0) - prediction).max())
    return found
