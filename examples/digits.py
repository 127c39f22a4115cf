"""Trains a small convolutional network on scikit-learn's handwritten digits (1797 images of 8 x 8 pixels).

python -m tfdist.launch --tier STANDARD_1                      this program on 1 chief, 4 workers and 3 ps
python examples/digits.py --tier STANDARD_1                    the same without the launcher
python examples/digits.py                                      in a single process
"""

import os
import sys

import keras
import numpy as np
from absl import app, flags

import tfdist

FLAGS = flags.FLAGS
tfdist.define_flags()
flags.DEFINE_integer("epochs", 30, "Passes over the training images.", lower_bound=1)
flags.DEFINE_integer("batch_size", 32, "Images per step.", lower_bound=1)
flags.DEFINE_float("learning_rate", 1e-3, "Step size of Adam.", lower_bound=0.0)


def main(_: list[str]) -> None:
    """Trains, evaluates on held-out images, and saves the model in the folder --job_dir."""
    with tfdist.strategy(FLAGS).scope():
        # Only the chief runs the following lines: workers and ps serve inside tfdist.strategy until the chief has finished.
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
                keras.layers.MaxPooling2D(),
                keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
                keras.layers.MaxPooling2D(),
                keras.layers.Flatten(),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        model.compile(
            # Clipped: with 19 workers, a gradient may be 18 updates old.
            optimizer=keras.optimizers.Adam(FLAGS.learning_rate, clipnorm=1.0),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    (x_train, y_train), (x_test, y_test) = load_digits()
    verbose = "auto" if sys.stdout.isatty() else 2
    # Smaller steps in the second half reduce the noise of asynchronous updates.
    decay = keras.callbacks.LearningRateScheduler(lambda epoch: FLAGS.learning_rate * 0.9 ** max(0, epoch - FLAGS.epochs // 2))
    # With --evaluator, the evaluator evaluates every epoch. The chief evaluates at the end.
    validation_data = (x_test, y_test) if tfdist.role() == "evaluator" else None
    model.fit(
        x_train,
        y_train,
        batch_size=FLAGS.batch_size,
        epochs=FLAGS.epochs,
        validation_data=validation_data,
        verbose=verbose,
        callbacks=[decay],
    )
    loss, accuracy = model.evaluate(x_test, y_test, verbose=0)
    print(f"held-out digits: accuracy {accuracy:.4f}, loss {loss:.4f}")
    if FLAGS.job_dir:
        os.makedirs(FLAGS.job_dir, exist_ok=True)
        model.save(os.path.join(FLAGS.job_dir, "digits.keras"))


def load_digits() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Returns ((x, y), (x, y)) for training (1437 images) and test (360): x float32 (n, 8, 8, 1) in 0..1, y int (n,)."""
    from sklearn.datasets import load_digits as load
    from sklearn.model_selection import train_test_split

    digits = load()
    images = (digits.images / 16.0).astype("float32")[..., None]
    x_train, x_test, y_train, y_test = train_test_split(
        images, digits.target, test_size=0.2, random_state=0, stratify=digits.target
    )
    return (x_train, y_train), (x_test, y_test)


if __name__ == "__main__":
    app.run(main)
