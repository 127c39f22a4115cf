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


@case("functional")
def functional(strategy):
    def build():
        a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
        both = keras.layers.Dense(4)(keras.layers.Concatenate()([a, b]))
        outputs = {"first": keras.layers.Dense(1, name="first")(both), "second": keras.layers.Dense(1, name="second")(both)}
        return keras.Model({"a": a, "b": b}, outputs)

    model = compiled(strategy, build, slow, {"first": "mse", "second": "mae"})
    history = fit(model, {"a": X, "b": -X}, {"first": Y, "second": -Y}, epochs=2)
    shapes = {name: list(value.shape) for name, value in model.predict({"a": X, "b": -X}, verbose=0).items()}
    result = trained(model, history)
    return result | {"exact": result["exact"] | {"shapes": shapes}}


@case("subclassed", "custom_train_step")
def subclassed(strategy):
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.layer = keras.layers.Dense(1)

        def call(self, x):
            return self.layer(x)

    class Own(Model):
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

    model = compiled(strategy, Model, slow, "mse", ["mae"])
    own = compiled(strategy, Own, slow, loss_without_number, [Seen])
    losses = [own.evaluate(X, NUMBERED, verbose=0, return_dict=True)["loss"]]
    result = once(own, fit(own, X, NUMBERED, epochs=2), 2)
    # The loss of that guide is the loss of one replica, so compare evaluations.
    result["near"] = {"loss": [*losses, own.evaluate(X, NUMBERED, verbose=0, return_dict=True)["loss"]]}
    return {"subclassed": trained(model, fit(model, X, Y, epochs=2)), "custom_train_step": result}


def classified(strategy, layers, optimizer=sgd):
    """Trains a classifier of the numbers of the examples modulo 16. Returns its model and its result."""

    def build():
        return keras.Sequential(
            [keras.Input((3,), dtype="int32"), keras.layers.Embedding(16, 8), *layers(), keras.layers.Dense(2)]
        )

    model = compiled(strategy, build, optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    ids = np.stack([IDS, IDS + 1, IDS + 2], axis=1).astype("int32") % 16
    return model, trained(model, fit(model, ids, LABELS, epochs=3))


@case("embedding")
def embedding(strategy):
    return classified(strategy, lambda: [keras.layers.Flatten()])[1]


@case("batch_normalization", "synchronized_batch_normalization")
def batch_normalization(strategy):
    results = {}
    for name, together in (("batch_normalization", False), ("synchronized_batch_normalization", True)):
        model, results[name] = classified(
            strategy, lambda together=together: [keras.layers.Flatten(), keras.layers.BatchNormalization(synchronized=together)]
        )
        moved = float(np.abs(model.layers[2].moving_variance.numpy() - 1).sum())
        assert moved > 0.1, "the moving averages did not move"
    return results


@case("dropout")
def dropout(strategy):
    return classified(strategy, lambda: [keras.layers.Flatten(), keras.layers.Dropout(0.2)])[1]


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


@case("recurrent")
def recurrent(strategy):
    return classified(strategy, lambda: [keras.layers.LSTM(4)])[1]


@case("added_losses")
def added_losses(strategy):
    class Adds(keras.layers.Layer):
        def call(self, x):
            self.add_loss(0.1 * keras.ops.mean(keras.ops.square(x)))
            return x

    def build():
        dense = keras.layers.Dense(8, kernel_regularizer=keras.regularizers.L2(0.1))
        return keras.Sequential([keras.Input((4,)), dense, Adds(), keras.layers.Dense(1)])

    model = compiled(strategy, build, sgd, "mse")
    return trained(model, fit(model, X[: N - 2], Y[: N - 2], batch_size=8, epochs=2))
