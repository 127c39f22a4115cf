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


def text():
    """Embedding, attention and dense layers, on 64 words of a vocabulary of 4000."""
    words = keras.Input((64,), dtype="int32")
    x = keras.layers.Embedding(4000, 96)(words)
    x = keras.layers.LayerNormalization()(x + keras.layers.MultiHeadAttention(4, 24)(x, x))
    x = keras.layers.Dense(192, activation="relu")(keras.layers.GlobalAveragePooling1D()(x))
    return keras.Model(words, keras.layers.Dense(10)(x))


def tower():
    x = keras.Input((784,))
    y = keras.layers.BatchNormalization()(keras.layers.Dense(1500, activation="relu")(x))
    return keras.Model(x, keras.layers.Dense(10)(keras.layers.Dense(300, activation="relu")(y)))


def numbers(generator, examples):
    return generator.normal(size=(examples, 784)).astype("float32")


def words(generator, examples):
    return generator.integers(0, 4000, size=(examples, 64)).astype("int32")


def momentum():
    return keras.optimizers.SGD(0.01, momentum=0.9)


def adam():
    return keras.optimizers.Adam(0.001)


def adamw():
    return keras.optimizers.AdamW(0.001)


MODELS = {
    "wide": (lambda: perceptron(900, 2), 48, numbers, momentum),
    "deep": (lambda: perceptron(300, 8), 96, numbers, momentum),
    "convolutions": (convolutions, 24, numbers, momentum),
    "text": (text, 32, words, adam),
    "tower": (tower, 100, numbers, adamw),
    "trial": (lambda: perceptron(512, 2), 64, numbers, momentum),
}
"""Name -> functions that make the model, the data and the optimizer, with the size of a batch as the second.

`trial` is for trying things: its cells do not count.
"""


def main(name):
    make, batch, data, optimizer = MODELS[name]
    with tfdist.strategy().scope():
        model = make()
        model.compile(optimizer(), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    generator = np.random.default_rng(1)
    x = data(generator, 400 * batch)
    model.fit(x, generator.integers(0, 10, size=len(x)), batch_size=batch, epochs=1000, verbose=0)


if __name__ == "__main__":
    main(sys.argv[1])
