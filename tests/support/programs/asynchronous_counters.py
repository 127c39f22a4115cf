"""Trains models whose gradient is 1 for each weight, or that assign, and writes what asynchronous worker groups made of it.

asynchronous_counters.py RESULTS
"""

import json
import sys

import keras
import numpy as np
import tensorflow as tf

import tfdist

RATE = 0.25  # With powers of 2 all sums are exact.

lost_data = tf.data.Dataset.from_tensors((np.ones((2, 4), "float32"), np.ones((2, 1), "float32")))
lost_table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)

strategy = tfdist.strategy()


def trained(optimizer_of, steps, layers, x, steps_per_execution=1):
    """Returns a model after `steps` steps with the mean of its outputs as its loss."""
    with strategy.scope():
        model = keras.Sequential([keras.Input(x.shape[1:], dtype=x.dtype), *layers])
        model.compile(optimizer_of(), lambda y, p: keras.ops.mean(p, axis=-1), steps_per_execution=steps_per_execution)
    model.fit(tf.data.Dataset.from_tensors((x, np.zeros((2, 1), "float32"))).repeat(steps), verbose=0)
    return model


class OwnSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Computes with the step itself, as with any number."""

    def __call__(self, step):
        return RATE + 0.0 * step * keras.ops.cast(step != 5, "float32")


def accumulated(steps, layers, x, steps_per_execution=1, rate=RATE):
    """Returns the smallest and the largest sum of all gradients of a weight: in the weight, and still in its accumulator."""
    optimizer_of = lambda: keras.optimizers.SGD(rate, gradient_accumulation_steps=4)  # noqa: E731
    model, sums = trained(optimizer_of, steps, layers, x, steps_per_execution), []
    for variable, left in zip(model.trainable_variables, model.optimizer._accumulated_gradients, strict=True):
        sums.append((np.asarray(left) - np.asarray(variable) / RATE * 4).reshape(-1))
    assert int(np.asarray(model.optimizer._iterations)) == steps
    return [float(np.concatenate(sums).min()), float(np.concatenate(sums).max())]


def dense():
    return keras.layers.Dense(1, kernel_initializer="zeros")


def loss_scale():
    """Returns the loss scale, which doubles after each 50 steps with finite gradients, and the steps since."""
    optimizer_of = lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(RATE), 1.0, 50)  # noqa: E731
    optimizer = trained(optimizer_of, 200, [dense()], np.ones((2, 4), "float32")).optimizer
    return [float(np.asarray(optimizer.dynamic_scale)), int(np.asarray(optimizer.step_counter))]


def constrained(steps, x):
    """Returns the smallest and the largest number of updates that are in a weight, of which a constraint changes nothing."""
    layer = keras.layers.Dense(
        1, use_bias=False, kernel_initializer="zeros", kernel_constraint=lambda w: keras.ops.minimum(w, 1.0)
    )
    trained(lambda: keras.optimizers.SGD(RATE), steps, [layer], x)
    updates = -layer.get_weights()[0] / RATE
    return [float(updates.min()), float(updates.max())]


def decayed(steps, x):
    """Returns the smallest and the largest weight after Adam's updates by Muon, of 0.001 each, which decays weights a little."""
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    trained(lambda: keras.optimizers.Muon(1e-3, exclude_layers=["."], adam_lr_ratio=1), steps, [layer], x)
    return [float(layer.kernel.numpy().min()), float(layer.kernel.numpy().max())]


class Overwriting(keras.Model):
    """An optimizer of its own overwrites its weights, which stay 1, by their averages."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
        self.dense.build((None, 4))
        self.own = keras.optimizers.SGD(0.0, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=5)
        self.own.build(self.dense.trainable_variables)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self(keras.utils.unpack_x_y_sample_weight(data)[0], training=True))
        variables = self.dense.trainable_variables
        self.own.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def overwritten(x):
    """Returns the weights of `Overwriting` after 40 steps."""
    with strategy.scope():
        model = Overwriting()
        model.compile()
    model.fit(np.repeat(x, 40, axis=0), batch_size=len(x), verbose=0)
    return model.dense.get_weights()[0].reshape(-1).tolist()


class Assigning(keras.Model):
    """Each step assigns variables what it computes from their old values."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        # A reader of steps, in one message with other variables, and in large shards.
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False, name="count")
        self.twice = self.add_weight(shape=(), initializer="zeros", trainable=False, name="twice")
        self.average = self.add_weight(shape=(), initializer="zeros", trainable=False, name="average")
        # As the weights of an averaged network, trainable, and no optimizer updates it.
        self.follows = self.add_weight(shape=(), initializer="zeros", name="follows")
        self.own = tf.Variable(0, trainable=False)
        self.table = tf.Variable(tf.zeros([300_000]), trainable=False)
        self.most = self.add_weight(shape=(), initializer="zeros", trainable=False, name="most")
        self.last = self.add_weight(shape=(), initializer="zeros", trainable=False, name="last")
        self.bank = tf.Variable(tf.zeros([200_000, 2]), trainable=False)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x = data[0]
        self.count.assign(self.count + 1)
        self.twice.assign(self.twice + 1)
        self.twice.assign(self.twice + 2)
        self.average.assign(0.9 * self.average + 0.1 * 8.0)
        self.follows.assign(0.9 * self.follows + 0.1 * 8.0)
        self.own.assign(self.own + 1)
        self.table.assign(self.table + 1)
        self.most.assign(tf.maximum(self.most, tf.reduce_max(x)))
        self.last.assign(tf.reduce_max(x) * 0 + 3)
        begin = tf.cast(x[0, 0], tf.int32)
        self.bank[begin : begin + 2].assign(tf.ones([2, 2]))
        return super().train_step(data)


def assigned(steps, steps_per_execution=1):
    """Returns what the variables of `Assigning` are after so many steps."""
    with strategy.scope():
        model = Assigning()
        model.compile(keras.optimizers.SGD(0.0), "mse", steps_per_execution=steps_per_execution)
    x = np.linspace(0, 199_998, 2 * steps, dtype="float32")[:, None]
    model.fit(x, np.zeros_like(x), batch_size=2, verbose=0)
    found = {name: np.unique(np.asarray(getattr(model, name))).tolist() for name in ("count", "twice", "own", "table", "last")}
    return {
        **found,
        "average": float(model.average.numpy()),
        "follows": float(model.follows.numpy()),
        "rows": int((model.bank.numpy()[:, 0] == 1).sum()),
    }


def averaged():
    """Returns the moving mean of a BatchNormalization after 60 steps whose batches have the mean 10."""
    with strategy.scope():
        layer = keras.layers.BatchNormalization()
        model = keras.Sequential([keras.Input((4,)), layer])
        model.compile(keras.optimizers.SGD(0.0), "mse")
    model.fit(np.full((240, 4), 10, "float32"), np.zeros((240, 4), "float32"), batch_size=4, verbose=0)
    return layer.moving_mean.numpy().tolist()


def errors_of(*calls):
    """Returns the text of the ValueError of each call, empty for a call that raises none."""
    errors = []
    for call in calls:
        try:
            call()
            errors.append("")
        except ValueError as error:
            errors.append(str(error))
    return errors


def stateful():
    """Returns the errors of the methods of a model with a stateful layer."""
    with strategy.scope():
        layer = keras.layers.SimpleRNN(1, stateful=True, name="memory")
        model = keras.Sequential([keras.Input(batch_shape=(4, 1, 1)), layer])
        model.compile("sgd", "mse")
    x, y = np.ones((16, 1, 1), "float32"), np.ones((16, 1), "float32")
    return errors_of(
        lambda: model.predict(x, batch_size=4), lambda: model.evaluate(x, y, batch_size=4), lambda: model.fit(x, y)
    )


def lost(x):
    """Returns the errors of `fit` on data, and with a loss that uses a table, made before the strategy."""
    with strategy.scope():
        model, other = (keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]) for _ in range(2))
        model.compile("sgd", "mse")
        other.compile(
            "sgd", lambda y, p: keras.ops.mean(p, axis=-1) + tf.ensure_shape(lost_table.lookup(tf.constant(1, tf.int64)), [])
        )
    return errors_of(lambda: model.fit(lost_data, verbose=0), lambda: other.fit(x, np.ones((2, 1)), verbose=0))


few, many = np.ones((2, 4), "float32"), np.ones((2, 140_000), "float32")
table = keras.layers.Embedding(2, 1, embeddings_initializer="zeros")
results = {
    "small": accumulated(200, [dense()], few),
    "several steps per execution": accumulated(200, [dense()], few, 5),
    "a schedule of one's own": accumulated(200, [dense()], few, rate=OwnSchedule()),
    "sharded": accumulated(24, [dense()], many),
    "rows": accumulated(24, [table, keras.layers.Flatten()], np.array([[0], [1]], "int32")),
    "loss scale": loss_scale(),
    "overwritten": overwritten(few),
    "constrained": constrained(200, few),
    "constrained and sharded": constrained(24, many),
    "decayed": decayed(200, few) if hasattr(keras.optimizers, "Muon") else None,
    "assigned": assigned(96),
    "assigned in a loop": assigned(96, 4),
    "averaged": averaged(),
    "stateful": stateful(),
    "lost": lost(few),
}
with open(sys.argv[1], "w") as file:
    json.dump(results, file)
