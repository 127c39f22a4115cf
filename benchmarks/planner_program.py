"""The programs whose speed planner.py predicts and measures: `python benchmarks/planner_program.py MODEL`.

Each is an ordinary Keras program. Nothing in it knows about the planner.
"""

import sys

import keras
import numpy as np

import tfdist


def perceptron(units, layers):
    hidden = [keras.layers.Dense(units, activation="relu") for _ in range(layers)]
    return keras.Sequential([keras.Input((784,)), *hidden, keras.layers.Dense(10)])


def convolutions():
    def convolved(filters):
        return keras.layers.Conv2D(filters, 3, padding="same", activation="relu")

    middle = [convolved(16), keras.layers.MaxPooling2D(), convolved(32), keras.layers.MaxPooling2D(), keras.layers.Flatten()]
    dense = [keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10)]
    return keras.Sequential([keras.Input((784,)), keras.layers.Reshape((28, 28, 1)), *middle, *dense])


MODELS = {
    "wide": (lambda: perceptron(900, 2), 48),
    "deep": (lambda: perceptron(300, 8), 96),
    "convolutions": (convolutions, 24),
    "trial": (lambda: perceptron(512, 2), 64),
}
"""Name -> a function that makes the model, and the size of a batch. `trial` is for trying things: its cells do not count."""


def main(name):
    make, batch = MODELS[name]
    with tfdist.strategy().scope():
        model = make()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss)
    generator = np.random.default_rng(1)
    x = generator.normal(size=(400 * batch, 784)).astype("float32")
    model.fit(x, generator.integers(0, 10, size=len(x)), batch_size=batch, epochs=1000, verbose=0)


if __name__ == "__main__":
    main(sys.argv[1])
