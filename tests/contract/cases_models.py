"""The functions of a model, and different models."""

import keras
import numpy as np
import tensorflow as tf

from contract.common import (
    IDS,
    LABELS,
    NUMBERED,
    RATE,
    N,
    Seen,
    X,
    Y,
    case,
    check_seen,
    compiled,
    counting,
    fit,
    loss_without_number,
    once,
    part_of,
    plain,
    trained,
)


def sgd():
    return keras.optimizers.SGD(RATE)


def slow():
    return keras.optimizers.SGD(RATE / 5)


@case("evaluate", "predict")
def evaluate_and_predict(strategy):
    model = plain(strategy)
    kernel, bias, kernel2, bias2 = model.get_weights()
    expected = np.tanh(X @ kernel + bias) @ kernel2 + bias2
    dataset = tf.data.Dataset.from_tensor_slices(X).batch(100)
    outputs = {
        "arrays": model.predict(X, batch_size=32, verbose=0),
        "steps": model.predict(X, batch_size=32, steps=2, verbose=0),
        "dataset": model.predict(dataset, verbose=0),
        "batch": model.predict_on_batch(X[:7]),
    }
    for name, output in outputs.items():  # Each output belongs to its own input.
        assert np.allclose(output, expected[: len(output)], atol=1e-5), name
    with strategy.scope():
        x = keras.Input((1,), dtype="int32")
        texts = keras.layers.StringLookup(vocabulary=["ä", "words of", ""], invert=True, oov_token="?")(x)
        texts = keras.Model(x, texts).predict(np.arange(5)[:, np.newaxis], batch_size=4, verbose=0)
        table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([0, 1], [5.0, 7.0]), 0.0)

        @tf.function
        def found(n):
            return tf.cond(n < 1, lambda: table.lookup(n), lambda: table.lookup(n))

        def add_all(x):
            return tf.while_loop(lambda n, x: n < 2, lambda n, x: (n + 1, x + found(n)), (0, x))[1]

        x = keras.Input((1,))
        adder = keras.Model(x, keras.layers.Lambda(add_all, output_shape=(1,))(x))
        looked_up = adder.predict(tf.data.Dataset.from_tensor_slices([[0.0], [1.0]]).map(add_all).batch(2), verbose=0)
    got = model.evaluate(X, Y, batch_size=32, verbose=0, return_dict=True)
    assert np.isclose(got["loss"], np.mean((expected - Y) ** 2), rtol=1e-4), got
    return {
        "evaluate": {"exact": {"names": sorted(got)}, "near": got},
        "predict": {
            "exact": {
                "shapes": {name: list(output.shape) for name, output in outputs.items()},
                "texts": [text.decode() for text in texts.ravel()],
                "looked up": looked_up.ravel().tolist(),
            },
            "near": {name: np.asarray(output).tolist() for name, output in outputs.items()},
        },
    }


@case("on_batch")
def on_batch(strategy):
    model = plain(strategy)
    before = model.test_on_batch(X, Y, return_dict=True)
    losses = [float(model.train_on_batch(X, Y, return_dict=True)["loss"]) for _ in range(5)]
    after = model.evaluate(X, Y, batch_size=50, verbose=0)
    return {
        "exact": {"steps": int(model.optimizer.iterations.numpy())},
        "near": {"before": {name: float(value) for name, value in before.items()}, "losses": losses, "after": after},
    }


@case("evaluation_inside_a_fit")
def evaluation_inside_a_fit(strategy):
    model = counting(strategy)
    model.optimizer.learning_rate = 0.0
    alone = model.evaluate(X, NUMBERED, batch_size=50, verbose=0, return_dict=True)
    inside = []

    class Evaluate(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 3:
                inside.append(self.model.evaluate(X, NUMBERED, batch_size=50, verbose=0, return_dict=True))

    fit(model, X, NUMBERED, batch_size=10, epochs=1, callbacks=[Evaluate()])
    assert np.isclose(alone["loss"], inside[0]["loss"], rtol=1e-5), (alone, inside)
    return {"exact": {"count": inside[0]["count"], "ids": inside[0]["ids"]}, "near": {"loss": inside[0]["loss"]}}


@case("after_an_interrupted_fit")
def after_an_interrupted_fit(strategy):
    class Interrupt(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 5:
                raise KeyboardInterrupt

    names = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            names.append(sorted(logs))

    try:
        fit(plain(strategy), X, Y, batch_size=2, epochs=1, callbacks=[Interrupt()])
    except KeyboardInterrupt:
        pass
    model = counting(strategy)
    check_seen(fit(model, X, NUMBERED, batch_size=50, epochs=1, callbacks=[Watch()]), 1)
    return {"exact": {"names": names}}


@case("custom_train_step")
def custom_train_step(strategy):
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.layer = keras.layers.Dense(1)

        def call(self, x):
            return self.layer(x)

        def train_step(self, data):  # From Keras' guide to customizing fit.
            x, y = data
            with tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                loss = self.compute_loss(y=y, y_pred=y_pred)
            variables = self.trainable_variables
            self.optimizer.apply(tape.gradient(loss, variables), variables)
            for metric in self.metrics:
                if metric.name == "loss":
                    metric.update_state(loss)
                else:
                    metric.update_state(y, y_pred)
            return {metric.name: metric.result() for metric in self.metrics}

    model = compiled(strategy, Model, slow, loss_without_number, [Seen])
    losses = [model.evaluate(X, NUMBERED, verbose=0, return_dict=True)["loss"]]
    result = once(model, fit(model, X, NUMBERED, epochs=2), 2)
    # The loss of that guide is the loss of one replica, so compare evaluations.
    return result | {"near": {"loss": [*losses, model.evaluate(X, NUMBERED, verbose=0, return_dict=True)["loss"]]}}


BRANCHES = {
    "embedding": lambda: [keras.layers.Flatten()],
    "batch_normalization": lambda: [keras.layers.Flatten(), keras.layers.BatchNormalization(name="normalized")],
    "synchronized_batch_normalization": lambda: [
        keras.layers.Flatten(),
        keras.layers.BatchNormalization(synchronized=True, name="normalized_together"),
    ],
    "dropout": lambda: [keras.layers.Flatten(), keras.layers.Dropout(0.2)],
    "recurrent": lambda: [keras.layers.LSTM(4)],
}


@case(*BRANCHES)
def layers_side_by_side(strategy):
    """Trains five classifiers of the numbers of the examples modulo 16, which share nothing, as five outputs of one model."""

    def build():
        numbers, outputs = keras.Input((3,), dtype="int32"), {}
        for name, layers in BRANCHES.items():
            x = keras.layers.Embedding(16, 8)(numbers)
            for layer in layers():
                x = layer(x)
            outputs[name] = keras.layers.Dense(2)(x)
        return keras.Model(numbers, outputs)

    losses = {name: keras.losses.SparseCategoricalCrossentropy(from_logits=True) for name in BRANCHES}
    model = compiled(strategy, build, sgd, losses)
    ids = np.stack([IDS, IDS + 1, IDS + 2], axis=1).astype("int32") % 16
    result = trained(model, fit(model, ids, dict.fromkeys(BRANCHES, LABELS), epochs=3))
    for name in ("normalized", "normalized_together"):
        moved = float(np.abs(model.get_layer(name).moving_variance.numpy() - 1).sum())
        assert moved > 0.1, "the moving averages did not move"
    return {name: part_of(result, f"{name}_loss") for name in BRANCHES}


@case("unseeded_random_operations")
def unseeded_random_operations(strategy):
    class Noisy(keras.Model):
        def __init__(self):
            super().__init__()
            self.layer = keras.layers.Dense(1)

        def call(self, x):  # As the sampling layer of a VAE.
            return self.layer(x) + 0.1 * keras.random.normal((keras.ops.shape(x)[0], 1))

    model = compiled(strategy, Noisy, slow, "mse")
    history = fit(model, X, Y, epochs=2)
    first, second = (model.predict(X, verbose=0) for _ in range(2))
    noise = float(np.std(first - second))  # Of two normal numbers with a deviation of 0.1 each: 0.14.
    assert 0.1 < noise < 0.2 and len(np.unique(first - second)) > 0.3 * N, noise
    return {"exact": {"names": sorted(history), "steps": int(model.optimizer.iterations.numpy())}}
