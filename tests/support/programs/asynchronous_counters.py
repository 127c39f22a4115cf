"""Trains models whose gradient is 1 for each weight, or that assign: results.json has what asynchronous groups made of it."""

import json

import keras
import numpy as np
import tensorflow as tf

import tfdist

RATE = 0.25  # With powers of 2 all sums are exact.

CLUSTER = (
    "cluster { nworker_groups: 2 nworkers_per_group: 2 nworkers_per_procs: 2 nserver_groups: 1 nservers_per_group: 2 "
    "server_worker_separate: true }"
)
FEW, MANY, ROWS = np.ones((2, 4), "float32"), np.ones((2, 140_000), "float32"), np.array([[0], [1]], "int32")

lost_data = tf.data.Dataset.from_tensors((np.ones((2, 4), "float32"), np.ones((2, 1), "float32")))
lost_table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)

strategy = tfdist.strategy(CLUSTER)


def trained(optimizer_of, steps, parts, steps_per_execution=1):
    """Returns a model after `steps` steps with the means of its outputs as its losses.

    `parts` are pairs of an input and the layers that make an output of it.
    """
    with strategy.scope():
        inputs, outputs = [], []
        for x, layers in parts:
            inputs.append(keras.Input(x.shape[1:], dtype=x.dtype))
            outputs.append(inputs[-1])
            for layer in layers:
                outputs[-1] = layer(outputs[-1])
        model = keras.Model(inputs, outputs)
        losses = [lambda y, p: keras.ops.mean(p, axis=-1)] * len(parts)
        model.compile(optimizer_of(), losses, steps_per_execution=steps_per_execution)
    batch = tuple(x for x, _ in parts), (np.zeros((2, 1), "float32"),) * len(parts)
    model.fit(tf.data.Dataset.from_tensors(batch).repeat(steps), verbose=0)
    return model


class OwnSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Computes with the step itself, as with any number."""

    def __call__(self, step):
        return RATE + 0.0 * step * keras.ops.cast(step != 5, "float32")


def accumulated(steps, names, steps_per_execution=1, rate=RATE):
    """Returns the smallest and the largest sum of all gradients of a weight: in the weight, and still in its accumulator."""
    kinds = {
        "small": (FEW, [dense()]),
        "sharded": (MANY, [dense()]),
        "rows": (ROWS, [keras.layers.Embedding(2, 1, embeddings_initializer="zeros"), keras.layers.Flatten()]),
    }
    optimizer_of = lambda: keras.optimizers.SGD(rate, gradient_accumulation_steps=4)  # noqa: E731
    model = trained(optimizer_of, steps, [kinds[name] for name in names], steps_per_execution)
    sums = {}
    for variable, left in zip(model.trainable_variables, model.optimizer._accumulated_gradients, strict=True):
        sums[id(variable)] = (np.asarray(left) - np.asarray(variable) / RATE * 4).reshape(-1)
    assert int(np.asarray(model.optimizer._iterations)) == steps
    found = {}
    for name in names:
        own = np.concatenate([sums[id(variable)] for layer in kinds[name][1] for variable in layer.trainable_variables])
        found[name] = [float(own.min()), float(own.max())]
    return found


def dense(**arguments):
    return keras.layers.Dense(1, kernel_initializer="zeros", **arguments)


def loss_scale():
    """Returns the loss scale, which doubles after each 50 steps with finite gradients, and the steps since."""
    optimizer_of = lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(RATE), 1.0, 50)  # noqa: E731
    optimizer = trained(optimizer_of, 200, [(FEW, [dense()])]).optimizer
    return [float(np.asarray(optimizer.dynamic_scale)), int(np.asarray(optimizer.step_counter))]


def constrained(steps):
    """Returns the smallest and the largest number of updates that are in a weight, of which a constraint changes nothing.

    And the moving mean of a BatchNormalization whose batches have the mean 10.
    """
    bounded = {"use_bias": False, "kernel_constraint": lambda w: keras.ops.minimum(w, 1.0)}
    layers, normalization = [dense(**bounded) for _ in range(2)], keras.layers.BatchNormalization(momentum=0.995)
    parts = [(FEW, layers[:1]), (MANY, layers[1:]), (10 * FEW, [normalization])]
    trained(lambda: keras.optimizers.SGD(RATE), steps, parts)
    updates = [-layer.get_weights()[0] / RATE for layer in layers]
    return [[float(each.min()), float(each.max())] for each in updates], normalization.moving_mean.numpy().tolist()


def decayed(steps):
    """Returns the smallest and the largest weight after Adam's updates by Muon, of 0.001 each, which decays weights."""
    layer = dense(use_bias=False)
    trained(lambda: keras.optimizers.Muon(1e-3, exclude_layers=["."], adam_lr_ratio=1), steps, [(FEW, [layer])])
    return [float(layer.kernel.numpy().min()), float(layer.kernel.numpy().max())]


def product_of_nadam(steps):
    """Returns the product of the momentum factors of so many updates by Nadam, and what it is in one process."""
    optimizer = trained(lambda: keras.optimizers.Nadam(1e-3, beta_1=0.99), steps, [(FEW, [dense()])]).optimizer
    factors = 0.99 * (1 - 0.5 * 0.96 ** np.arange(1, steps + 1))
    return [float(optimizer._u_product.numpy()), float(np.prod(factors)), int(optimizer.iterations.numpy())]


class Assigning(keras.Model):
    """Each step assigns variables what it computes from their old values.

    An optimizer of its own overwrites weights, which stay 1, by their averages.
    """

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
        self.ones = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
        self.ones.build((None, 1))
        self.own_optimizer = keras.optimizers.SGD(0.0, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=5)
        self.own_optimizer.build(self.ones.trainable_variables)

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
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.ones(x))
        self.own_optimizer.apply(tape.gradient(loss, self.ones.trainable_variables), self.ones.trainable_variables)
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
        "overwritten": model.ones.get_weights()[0].reshape(-1).tolist(),
    }


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


class Clip(keras.callbacks.Callback):
    """Assigns each weight after each batch what it reads of it."""

    def on_train_batch_end(self, batch, logs=None):
        for variable in self.model.trainable_variables:
            variable.assign(keras.ops.clip(variable, -1e6, 1e6))


def clipped(steps):
    """Returns how many updates the weights have of an epoch in which a callback assigns them."""
    model = trained(lambda: keras.optimizers.SGD(RATE), steps, [(FEW, [dense()]), (MANY, [dense()])])
    batch = (FEW, MANY), (np.zeros((2, 1), "float32"),) * 2
    before = model.get_weights()
    model.fit(tf.data.Dataset.from_tensors(batch).repeat(steps), verbose=0, callbacks=[Clip()])
    found = [(a - b) / RATE for a, b in zip(before, model.get_weights(), strict=True)]
    return [[float(each.min()), float(each.max())] for each in found]


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


def lost():
    """Returns the errors of `fit` on data, and with a loss that uses a table, made before the strategy."""
    with strategy.scope():
        model, other = (keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]) for _ in range(2))
        model.compile("sgd", "mse")
        other.compile(
            "sgd", lambda y, p: keras.ops.mean(p, axis=-1) + tf.ensure_shape(lost_table.lookup(tf.constant(1, tf.int64)), [])
        )
    return errors_of(lambda: model.fit(lost_data, verbose=0), lambda: other.fit(FEW, np.ones((2, 1)), verbose=0))


in_loop = accumulated(200, ["small"], steps_per_execution=5)
(few, many), averaged = constrained(100)
results = {
    **accumulated(100, ["small", "sharded", "rows"], rate=OwnSchedule()),
    "several steps per execution": in_loop["small"],
    "loss scale": loss_scale(),
    "constrained": few,
    "constrained and sharded": many,
    "decayed": decayed(200) if hasattr(keras.optimizers, "Muon") else None,
    "nadam": product_of_nadam(100),
    "assigned": assigned(96),
    "assigned in a loop": assigned(96, 4),
    "averaged": averaged,
    "clipped": clipped(60),
    "stateful": stateful(),
    "lost": lost(),
}
with open("results.json", "w") as file:
    json.dump(results, file)
