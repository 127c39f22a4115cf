"""Files: the chief writes them into the folder that all tasks share, and every task loads them."""

import contextlib
import os
import time
import traceback

import keras
import numpy as np
import tensorflow as tf

from contract.common import X, Y, case, fit, regression, trained

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
    assert np.allclose(loaded.predict(X, verbose=0), prediction, atol=1e-5)
    after = fit(loaded, X, Y, epochs=1)
    other.load_weights(f"{FILES}/model.weights.h5")
    assert np.allclose(other.predict(X, verbose=0), prediction, atol=1e-5)
    other.set_weights([weight + 1 for weight in other.get_weights()])
    assert not np.allclose(other.predict(X, verbose=0), prediction, atol=1e-5)
    checkpoint = tf.train.Checkpoint(model=other)
    checkpoint.restore(tf.train.latest_checkpoint(f"{FILES}/checkpoints")).assert_existing_objects_matched()
    assert np.allclose(other.predict(X, verbose=0), prediction, atol=1e-5)
    if refused is None:
        exported = tf.saved_model.load(f"{FILES}/exported")
        assert np.allclose(exported.serve(X), prediction, atol=1e-5)
    return {
        "keras_file": trained(loaded, after) | {"chief": {"files": [name for name in os.listdir() if name.startswith("own")]}},
        "weights_file": {"exact": {}},
        "tensorflow_checkpoint": {"exact": {"latest": os.path.basename(manager.latest_checkpoint)}},
        "exported": refused or {"exact": {}},
    }


def differences(strategy, folder):
    """Returns the largest difference to the predictions of the column that wrote `folder`, by kind of file."""
    prediction = np.load(f"{folder}/prediction.npy")
    with strategy.scope():
        models = {"model.keras": keras.saving.load_model(f"{folder}/model.keras")}
    for name in ("model.weights.h5", "checkpoints"):
        models[name] = regression(strategy, adam)
    models["model.weights.h5"].load_weights(f"{folder}/model.weights.h5")
    checkpoint = tf.train.Checkpoint(model=models["checkpoints"])
    checkpoint.restore(tf.train.latest_checkpoint(f"{folder}/checkpoints")).expect_partial()
    return {name: float(np.abs(model.predict(X, verbose=0) - prediction).max()) for name, model in models.items()}
