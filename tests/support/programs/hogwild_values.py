"""Values that no optimizer trains, under hogwild: moving averages, scales, and what a callback assigns. And slots that the first
step makes, and an export.

Two groups and a ps. Writes what it finds to results.json.
"""

import json
from pathlib import Path

import h5py
import keras
import numpy as np
import own_cluster
import tensorflow as tf

import tfdist

own_cluster.serve({"strategy": "hogwild", "sync_period": 16}, worker=2, ps=1)
strategy = tfdist.strategy()


class Gate(keras.layers.Layer):
    """Has a weight that is not trained."""

    def build(self, shape):
        self.gate = self.add_weight(name="gate", shape=(), initializer="zeros", trainable=False)

    def call(self, x):
        return x * (1.0 + self.gate)


def averages_and_scales():
    """Returns the least and the greatest moving variance after each epoch, and the scales of a layer that trains in float8.

    The variance of each batch is 0.04.
    """
    keras.utils.set_random_seed(1)
    strategy.steps_per_synchronization = 1  # A reply comes when the group has moved the numbers of float8's histories.
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.BatchNormalization(momentum=0.9), keras.layers.Dense(1)])
        model.quantize("float8")
        model.compile("sgd", "mse")
    found = []

    class Look(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            variances = model.layers[0].moving_variance.numpy()
            found.append([float(variances.min()), float(variances.max())])

    batch = np.random.default_rng(1).normal(size=(16, 8)).astype("float32")
    x = np.tile(0.2 * (batch - batch.mean(axis=0)) / batch.std(axis=0), (32, 1))  # It matters not which group takes which.
    model.evaluate(x[:16], x[:16, :1], verbose=0)  # Each group has its own scales when the training begins.
    model.fit(x, x[:, :1], batch_size=16, epochs=4, shuffle=False, verbose=0, callbacks=[Look()])
    strategy.steps_per_synchronization = 16
    return found, [float(v.numpy()) for v in model.trainable_variables if v.path.endswith("_scale")]


class Bank(keras.layers.Layer):
    """Has a weight of which others assign parts."""

    def build(self, shape):
        self.bank = self.add_weight(name="bank", shape=(6,), initializer="zeros", trainable=False)

    def call(self, x):
        return x * (1.0 + self.bank[4])


def assigned():
    """Returns what a callback has assigned, as a file and the model have it after a save in the same moment; the updates in that
    file, as the optimizer has them and of all groups together; and a weight of which a callback has assigned parts, after the
    next epoch and in a group.
    """
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), Gate(), Bank(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    bank = model.layers[1].bank.value

    class Assign(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch
            if epoch == 1:
                bank[0:2].assign([1.0, 2.0])
                bank.scatter_nd_update([[3]], [5.0])
                bank.scatter_add(tf.IndexedSlices([7.0], [5]))

        def on_train_batch_end(self, batch, logs=None):
            if (self.epoch, batch) == (0, 41):
                model.layers[0].gate.assign(0.5)
                model.save_weights("gate.weights.h5")
            if (self.epoch, batch) == (0, 3):
                bank.batch_scatter_update(tf.IndexedSlices([9.0], [2]))

    model.fit(np.ones((512, 4)), np.ones((512, 1)), batch_size=8, epochs=2, verbose=0, callbacks=[Assign()])
    with h5py.File("gate.weights.h5") as file:
        own = file["tfdist_training_state/own/optimizer/0"].values()
        counts = int(file["optimizer/vars/0"][()]), sum(int(each[()]) for each in own)
        gates = float(file["layers/gate/vars/0"][()]), float(model.layers[0].gate.numpy())
    return gates, counts, [bank.numpy().tolist(), bank.replica.read(strategy.worker_groups[0].devices[0]).numpy().tolist()]


class OwnOptimizer(keras.Model):
    """Trains with an optimizer of its own, which its first step builds."""

    def __init__(self):
        super().__init__()
        self.dense, self.own = keras.layers.Dense(1), keras.optimizers.Adafactor(0.1)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = keras.ops.mean((self(data[0]) - data[1]) ** 2)
        self.own.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def built_by_the_step():
    """Returns the updates of an optimizer that the first step builds, and whether they moved all weights."""
    with strategy.scope():
        model = OwnOptimizer()
        model.dense.build((None, 4))
        model.compile(loss="mse")
    before = model.get_weights()
    model.fit(np.ones((64, 4)), np.ones((64, 1)), batch_size=8, verbose=0)
    moved = [bool(np.all(a != b)) for a, b in zip(before, model.get_weights(), strict=True)]
    return int(model.own.iterations), moved


def variables_as_arguments():
    """Returns what a function computes with two variables, before and after assignments, and how often it is traced."""
    with strategy.scope():
        one, other = tf.Variable([1.0, 2.0]), tf.Variable([3.0, 4.0])
    function = tf.function(lambda variable, factor: tf.reduce_sum(variable * factor))
    factor, found = tf.constant(2.0), []
    for _ in range(2):
        found += [float(function(one, factor)), float(function(other, factor))]
        one.assign_add(other)
    return [*found, function.experimental_get_tracing_count()]


class Annealed(keras.layers.Layer):
    """Has a weight that a callback counts up, one that is trained, and a generator of TensorFlow's."""

    def build(self, shape):
        self.generator = tf.random.Generator.from_seed(3)
        self.weight = self.add_weight(shape=(), initializer="zeros", trainable=False)
        self.kernel = self.add_weight(shape=(4, 1), initializer="zeros")

    def call(self, inputs):
        return inputs @ self.kernel + 0.0 * (self.weight + self.generator.normal(()))


def assigned_after_each_batch():
    """Returns the last loss, the kernel, a weight to which a callback adds 1 after each of 640 batches, the counted updates, to
    which it adds 4 times 1000, and the keys with which the groups draw random numbers.
    """
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), Annealed()])
        model.compile(keras.optimizers.SGD(0.05), "mse")
    layer = model.layers[-1]

    class Anneal(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

        def on_train_batch_end(self, batch, logs=None):
            layer.weight.assign(layer.weight + 1.0)
            if batch == 50:  # Others are in flight.
                iterations = self.model.optimizer.iterations
                iterations.assign_add(1000) if self.epoch % 2 else iterations.assign(iterations + 1000)

    x = np.random.default_rng(0).normal(size=(1280, 4)).astype("float32")
    losses = model.fit(x, x.sum(1, keepdims=True), batch_size=8, epochs=4, verbose=0, callbacks=[Anneal()]).history["loss"]
    state, updates = layer.generator.state.replica, int(model.optimizer.iterations)
    keys = [int(state.read(group.devices[0]).numpy()[-1]) for group in strategy.worker_groups]
    return losses[-1], layer.kernel.numpy().ravel().tolist(), float(layer.weight), updates, keys


def slots_scaled():
    """Returns the momentum of a kernel, as the norm that a callback reads within an epoch, and after it has halved all slots."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
    norms = []

    class Halve(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 3:  # No group has sent any slots so far.
                slots = model.optimizer.momentums
                norms.append(float(keras.ops.norm(slots[0])))
                for slot in slots:
                    slot.assign(slot * 0.5)
                norms.append(float(keras.ops.norm(slots[0])))

    x = np.random.default_rng(0).normal(size=(1024, 4)).astype("float32")
    model.fit(x, x.sum(1, keepdims=True), batch_size=8, verbose=0, callbacks=[Halve()])
    return norms


def exported():
    """Returns the kernel of a model with a constraint, and how far what it exports after `fit` is from it."""
    with strategy.scope():
        dense = keras.layers.Dense(1, kernel_constraint="non_neg", kernel_initializer="ones")
        model = keras.Sequential([keras.Input((4,)), dense])
        model.compile(keras.optimizers.SGD(0.05), "mse")
    x = np.random.default_rng(0).normal(size=(320, 4)).astype("float32")
    model.fit(x, x @ np.float32([[1], [-1], [1], [-1]]), batch_size=8, epochs=3, verbose=0)
    model.export("exported")  # Without a predict or evaluate before.
    loaded = tf.saved_model.load("exported")
    return dense.kernel.numpy().ravel().tolist(), float(np.abs(loaded.serve(x) - model.predict(x, verbose=0)).max())


def loaded():
    """Returns the kernel of a layer from a SavedModel after `fit`, and how far the outputs of an export and of the layer are from
    it.
    """
    with strategy.scope():
        keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, use_bias=False)]).export("loaded", verbose=False)
        layer = keras.layers.TFSMLayer("loaded")
        model = keras.Sequential([keras.Input((4,)), layer])
        model.compile(keras.optimizers.SGD(0.05), "mse")
    x = np.random.default_rng(0).normal(size=(320, 4)).astype("float32")
    model.fit(x, x.sum(1, keepdims=True), batch_size=8, epochs=4, verbose=0)
    model.export("loaded again", verbose=False)
    again = tf.saved_model.load("loaded again")
    found = again.serve(x), model(x), tf.function(layer)(x), model.predict(x, verbose=0)
    kernel = layer.weights[0].numpy()
    return kernel.ravel().tolist(), [float(np.abs(x @ kernel - each).max()) for each in found]


def of_other_models():
    """Returns the kernels of two models that the step of a third one trains and averages, how far what they predict is from
    these, also after they have trained by themselves, and how the slots of the step's optimizer are kept.
    """
    with strategy.scope():
        trained, average = (
            keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, use_bias=False)], name=name)
            for name in ("trained", "average")
        )
        optimizer = keras.optimizers.SGD(0.05, momentum=0.5)

        class Shell(keras.Model):
            def call(self, x):
                return trained(x)

            def train_step(self, data):
                x, y = data
                weights = trained.trainable_weights
                with tf.GradientTape() as tape:
                    loss = keras.ops.mean((trained(x) - y) ** 2)
                optimizer.apply(tape.gradient(loss, weights), weights)
                average.weights[0].assign(0.8 * average.weights[0] + 0.2 * weights[0])
                return {"loss": loss}

        shell = Shell()
        shell.compile()
    x = np.random.default_rng(0).normal(size=(320, 4)).astype("float32")
    y = x.sum(1, keepdims=True)

    def differences():
        return [float(np.abs(each.predict(x, verbose=0) - x @ each.get_weights()[0]).max()) for each in (trained, average)]

    shell.fit(x, y, batch_size=8, epochs=4, verbose=0)
    kernels, far = [each.get_weights()[0].ravel().tolist() for each in (trained, average)], differences()
    for each in (trained, average):
        each.compile(keras.optimizers.SGD(0.05), "mse")
        each.fit(x, -y, batch_size=8, epochs=4, verbose=0)
        kernels.append(each.get_weights()[0].ravel().tolist())
    return kernels, far + differences(), [slot._value.kind.value for slot in optimizer.momentums]


def counts_of_slots():
    """Returns how far a gradient of zero moves a weight by Adam's slots, which the program has assigned as those of 1000 updates,
    what two groups have counted after two updates each, also after a file of one process, and how far a step differs that is
    repeated from the same state.
    """

    def adam():
        with strategy.scope():
            model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
            model.compile(keras.optimizers.Adam(0.1), "mse")
            model.optimizer.build(model.trainable_variables)
        return model

    zeros, ones = np.zeros((1, 1), "float32"), np.ones((1, 1), "float32")
    model = adam()
    for slot in model.optimizer._momentums + model.optimizer._velocities:
        slot.assign(ones)
    model.optimizer.iterations.assign(1000)
    before = model.get_weights()[0].item()
    model.train_on_batch(zeros, zeros)
    moved = before - model.get_weights()[0].item()
    counter, counts = model.optimizer.iterations._value.replica, []
    for file in (None, "counts.weights.h5"):
        model.optimizer.iterations.assign(1000)
        if file:
            model.save_weights(file)
            with h5py.File(file, "a") as saved:
                del saved["tfdist_training_state"]
                saved["optimizer/vars/0"][()] = 5000
            model.load_weights(file)
        model.fit(np.zeros((4, 1)), np.zeros((4, 1)), batch_size=1, verbose=0)
        counts += [int(counter.read(group.devices[0])) for group in strategy.worker_groups]
    model, after = adam(), []
    model.train_on_batch(ones, 9 * ones)
    state = model.get_state_tree(value_format="numpy_array")
    for again in (False, True):
        if again:
            model.set_state_tree(state)
        model.train_on_batch(ones, -ones)
        after.append(model.get_weights()[0].item())
        model.train_on_batch(ones, ones)
    return moved, counts, after[0] - after[1]


cases = (
    averages_and_scales,
    assigned,
    built_by_the_step,
    variables_as_arguments,
    assigned_after_each_batch,
    slots_scaled,
    exported,
    loaded,
    of_other_models,
    counts_of_slots,
)
results = {case.__name__: case() for case in cases}
Path("results.json").write_text(json.dumps(results))
