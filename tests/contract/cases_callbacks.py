"""Callbacks: what they get, and what they write."""

import contextlib
import glob
import io
import json
import os

import keras
import numpy as np
import tensorflow as tf

from contract.common import X, Y, case, fit, plain, regression, steps, trained


def files(pattern):
    return sorted(path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path))


@case(
    "early_stopping",
    "model_checkpoint",
    "csv_logger",
    "learning_rate_scheduler",
    "lambda_callback",
    "tensorboard",
    "history",
    "batch_logs",
)
def callbacks(strategy):
    epochs, batches = [], []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            batches.append((batch, sorted(logs), float(logs["loss"])))

    rates = [0.005, 0.005, -0.005, -0.005]  # Makes the second epoch the best and the fourth the last.
    model = plain(strategy)
    kept = [
        keras.callbacks.EarlyStopping(monitor="val_loss", patience=2, restore_best_weights=True),
        keras.callbacks.ModelCheckpoint("best.keras", monitor="val_loss", save_best_only=True),
        keras.callbacks.ModelCheckpoint(
            "../best.keras", monitor="val_loss", save_best_only=True
        ),  # In the folder that all tasks share.
        keras.callbacks.CSVLogger("log.csv"),
        keras.callbacks.LearningRateScheduler(lambda epoch: rates[epoch]),
        keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: epochs.append([epoch, sorted(logs)])),
        keras.callbacks.TensorBoard("board"),
        Watch(),
    ]
    history = fit(model, X, Y, batch_size=50, epochs=10, validation_data=(X, Y), callbacks=kept)
    restored = model.evaluate(X, Y, verbose=0, return_dict=True)
    assert np.isclose(restored["loss"], history["val_loss"][1], rtol=1e-4), (restored, history)
    series = {name: [*history[f"val_{name}"], value] for name, value in restored.items()}
    result = trained(model, history)
    begun = {name: result["before"].get(f"val_{name}") for name in series}
    with strategy.scope():
        best = keras.saving.load_model("../best.keras")
    assert all(np.array_equal(a, b) for a, b in zip(best.get_weights(), model.get_weights(), strict=True))
    lines = [open(path).read().splitlines() for path in files("log.csv")]
    return {
        "history": result,
        "early_stopping": {"exact": {"epochs": len(history["loss"])}, "near": series, "before": begun},
        "model_checkpoint": {"exact": {}, "chief": {"files": files("best.keras")}},
        "csv_logger": {"exact": {}, "chief": {"lines": [len(each) for each in lines], "names": [each[0] for each in lines]}},
        "learning_rate_scheduler": {"near": {"rates": history["learning_rate"]}, "exact": {}},
        "lambda_callback": {"exact": {"epochs": epochs}},
        "tensorboard": {"exact": {}, "chief": {"curves": curves("board")}},
        "batch_logs": {
            "exact": {
                "numbers": [batch for batch, _, _ in batches],
                "names": [names for _, names, _ in batches],
                "finite": all(np.isfinite(loss) for _, _, loss in batches),
            }
        },
    }


def curves(folder):
    """Returns the curves that TensorBoard would show: folder and name -> steps."""
    found = {}
    for path in files(f"{folder}/**/*.tfevents.*"):
        for record in tf.data.TFRecordDataset(path):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                if value.tag.startswith("e"):  # epoch_loss, evaluation_loss_vs_iterations and so on, but not the graph.
                    found.setdefault(f"{os.path.basename(os.path.dirname(path))} {value.tag}", []).append(event.step)
    return found


@case("progress_bar")
def progress_bar(strategy):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        plain(strategy).fit(X, Y, batch_size=50, epochs=2, verbose=1)
    text = printed.getvalue()
    return {"exact": {}, "chief": {"ends": "5/5" in text, "epochs": text.count("Epoch 2/2")}}


@case("stop_training")
def stop_training(strategy):
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 3:
                self.model.stop_training = True

    model = plain(strategy)
    history = fit(model, X, Y, batch_size=2, epochs=5, callbacks=[Stop()])
    return {"exact": {"epochs": len(history["loss"])}, "late": {"steps": steps(model) - 4}}


@case("backup_and_restore")
def backup_and_restore(strategy):
    class Interrupt(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise KeyboardInterrupt

    def made():
        return regression(strategy, lambda: keras.optimizers.Adam(0.002))

    first = made()
    try:
        fit(first, X, Y, epochs=4, callbacks=[keras.callbacks.BackupAndRestore("backup"), Interrupt()])
    except KeyboardInterrupt:
        pass
    written = {path: json.load(open(path)) if path.endswith(".json") else None for path in files("backup/*")}
    model = made()
    history = model.fit(X, Y, epochs=4, shuffle=False, verbose=0, callbacks=[keras.callbacks.BackupAndRestore("backup")])
    assert not os.path.exists("backup")
    return {
        "exact": {"epochs": history.epoch, "steps": steps(model)},
        "near": {name: np.asarray(values, "float64").tolist() for name, values in history.history.items()},
        "before": getattr(first, "before", {}),
        "chief": {"files": written},
    }


@case("reduce_lr_on_plateau")
def reduce_lr_on_plateau(strategy):
    model = plain(strategy)
    reduce = keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.5, patience=1, min_delta=1e6)
    history = fit(model, X, Y, batch_size=50, epochs=4, callbacks=[reduce])
    return {
        "exact": {},
        "near": {"rates": history["learning_rate"], "at the end": float(model.optimizer.learning_rate.numpy())},
    }


@case("terminate_on_nan")
def terminate_on_nan(strategy):
    model = plain(strategy)
    model.optimizer.learning_rate = 1e30
    history = fit(model, X, Y, batch_size=10, epochs=3, callbacks=[keras.callbacks.TerminateOnNaN()])
    return {"exact": {"epochs": len(history["loss"]), "whole": steps(model) == 25}}
