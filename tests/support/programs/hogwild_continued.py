"""Models that are compiled again, loaded and called in other ways between and within trainings, under hogwild.

Two groups and a ps. Writes what it finds to results.json.
"""

import gc
import json
from pathlib import Path

import keras
import numpy as np
import own_cluster
import tensorflow as tf

import tfdist

own_cluster.serve({"strategy": "hogwild", "sync_period": 4}, worker=2, ps=1)
strategy = tfdist.strategy()
keras.utils.set_random_seed(1)
x = np.random.default_rng(1).normal(size=(256, 8)).astype("float32")
y = (x @ np.arange(8.0)[:, None]).astype("float32")


def compiled(rate=0.003):
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(rate), "mse")
    return model


def compile_again(model, rate=0.003):
    with strategy.scope():
        model.compile(keras.optimizers.SGD(rate), "mse")


def fit(model, **options):
    return model.fit(x, y, batch_size=8, verbose=0, **options)


def moved(before, after):
    """Returns how far the values have moved at most."""
    return max(float(np.abs(old - new).max()) for old, new in zip(before, after, strict=True))


def compiled_again():
    """Returns what becomes of one model that is loaded, and compiled again with other weights frozen and with other rates.

    The loss of a training whose weights are loaded after a batch with NaN; how far weights move that are frozen after a training,
    and how far the others do; how far a kernel moves that LoRA has frozen after a training; and how far a new optimizer with
    learning rate 0 moves weights.
    """
    model = compiled()
    base, head = model.layers
    fit(model, epochs=2)
    loss = loaded_within_an_epoch(model)
    before = base.get_weights(), head.get_weights()
    base.trainable = False
    compile_again(model)
    fit(model, epochs=2)
    found = {"loaded": loss, "frozen": [moved(before[0], base.get_weights()), moved(before[1], head.get_weights())]}
    with strategy.scope():
        head.enable_lora(2)
    compile_again(model)
    kernel = head._kernel.numpy()
    fit(model, epochs=2)
    found["adapted"] = moved([kernel], [head._kernel.numpy()])
    weights = model.get_weights()
    compile_again(model, rate=0.0)
    fit(model, epochs=1)
    return found | {"without_rate": moved(weights, model.get_weights())}


def loaded_within_an_epoch(model):
    """Returns the loss of a training whose weights are loaded after a batch with NaN."""
    model.save_weights("good.weights.h5")
    bad = x.copy()
    bad[80:88] = np.nan

    class Load(keras.callbacks.Callback):
        done = False

        def on_train_batch_end(self, batch, logs=None):
            if np.isnan(logs["loss"]) and not self.done:
                self.done = True
                model.load_weights("good.weights.h5")

    callback = Load()
    model.fit(bad, y, batch_size=8, shuffle=False, verbose=0, callbacks=[callback])
    assert callback.done
    fit(model, epochs=1)
    return float(model.evaluate(x, y, verbose=0))


def shared():
    """Returns how far a head moves while another model trains the layer that was put into a block with it."""
    model = compiled()
    base, head = model.layers
    with strategy.scope():
        other = keras.Sequential([keras.Input((8,)), base, keras.layers.Dense(1)])
        other.compile(keras.optimizers.SGD(0.003), "mse")
    found = []
    for _ in range(2):  # The second time both models go on with what they have traced.
        fit(model, epochs=1)
        before = head.get_weights()
        fit(other, epochs=1)
        found.append(moved(before, head.get_weights()))
    return found


class Calls(keras.layers.Layer):
    """Counts its calls."""

    def build(self, shape):
        self.calls = self.add_weight(name="calls", shape=(), initializer="zeros", trainable=False)
        self.whole = self.add_weight(name="whole", shape=(), dtype="int32", initializer="zeros", trainable=False)

    def call(self, x):
        self.calls.assign_add(1.0)
        self.whole.assign_add(1)
        return x


def counted_calls():
    """Returns what a layer has counted after `predict`, then after `evaluate`: the mean of the groups, and one group's."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), Calls(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    layer, found = model.layers[0], []
    for run in (lambda: model.predict(x, batch_size=32, verbose=0), lambda: model.evaluate(x, y, batch_size=32, verbose=0)):
        run()
        found.append([float(layer.calls.numpy()), int(layer.whole.numpy())])
    return found


def blocks():
    """Returns the number of blocks after each training of one model with a new optimizer."""
    model, found = compiled(), []
    for _ in range(2):
        with strategy.scope():
            model.compile(keras.optimizers.Adam(1e-3), "mse")
        gc.collect()
        fit(model)
        found.append(len(strategy.local_replicas.blocks))
    return found


class Count(keras.optimizers.schedules.LearningRateSchedule):
    """The number of the update, so small that it trains nothing."""

    def __call__(self, step):
        return 1e-9 * tf.cast(step, tf.float32)

    def get_config(self):
        return {}


def without_name(step):
    """A decorator that gives a step another name, because it lacks `functools.wraps`."""

    def inner(self, data):
        return step(self, data)

    return inner


class Critic(keras.Model):
    """Makes two updates in each step, with the optimizer of `compile`, and two with one of its own, in a dict.

    The step has another name.
    """

    def __init__(self):
        super().__init__()
        self.layer, self.other = keras.layers.Dense(1), keras.layers.Dense(1)
        self.own = {"critic": keras.optimizers.SGD(Count())}

    def build(self, shape):
        self.layer.build(shape)
        self.other.build(shape)

    def call(self, x):
        return self.layer(x)

    @without_name
    def train_step(self, data):
        x, y = data
        own = self.own["critic"]
        numbers = {"number": self.optimizer.learning_rate * 1e9, "own": own.learning_rate * 1e9}
        for optimizer, layer in ((self.optimizer, self.layer), (own, self.other)) * 2:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((layer(x) - y) ** 2)
            optimizer.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)
        return {"loss": loss, **numbers}

    def test_step(self, data):
        return {"number": self.optimizer.learning_rate * 1e9}


def schedules():
    """Returns for each optimizer the numbers of the updates at which steps of 3 epochs have asked its schedule, and its count.

    And the number at which a test step has asked that of `compile`.
    """
    with strategy.scope():
        model = Critic()
        model.build((None, 8))
        model.compile(keras.optimizers.SGD(Count()))
    numbers = {"number": [], "own": []}

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            for name, asked in numbers.items():
                asked.append(round(float(logs[name])))

    fit(model, epochs=3, callbacks=[Look()])
    tested = round(model.evaluate(x, y, batch_size=8, verbose=0, return_dict=True)["number"])
    counts = [int(optimizer.iterations.numpy()) for optimizer in (model.optimizer, model.own["critic"])]
    return {"numbers": numbers["number"], "own": numbers["own"], "counts": counts, "tested": tested}


def used_by_a_loss():
    """Returns how far a model moves that trains after the loss of another model has used it, and its least moving variance."""
    with strategy.scope():
        layers = keras.layers.Dense(4), keras.layers.BatchNormalization(momentum=0.5), keras.layers.Dense(1)
        judge = keras.Sequential([keras.Input((8,)), *layers])
        judge.compile(keras.optimizers.SGD(0.003), "mse")
        other = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8)])
        other.compile("sgd", lambda wanted, found: keras.ops.mean((judge(wanted) - judge(found)) ** 2, axis=-1))
    other.fit(x, x, batch_size=8, verbose=0)
    before = judge.get_weights()
    try:
        fit(judge, epochs=2)
    except AssertionError as error:
        return repr(error), None
    other.fit(x, x, batch_size=8, verbose=0)
    return moved(before, judge.get_weights()), float(layers[1].moving_variance.numpy().min())


class Assigns(keras.Model):
    """Assigns the learning rate in each step."""

    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(1)

    def build(self, shape):
        self.layer.build(shape)

    def call(self, x):
        return self.layer(x)

    def train_step(self, data):
        self.optimizer.learning_rate.assign(0.0)
        return super().train_step(data)


def assigned_rate():
    """Returns the error of a step that assigns the learning rate."""
    with strategy.scope():
        model = Assigns()
        model.build((None, 8))
        model.compile("sgd", "mse")
    try:
        fit(model)
    except ValueError as error:
        return str(error)


cases = compiled_again, shared, counted_calls, blocks, schedules, assigned_rate, used_by_a_loss
results = {case.__name__: case() for case in cases}
Path("results.json").write_text(json.dumps(results))
