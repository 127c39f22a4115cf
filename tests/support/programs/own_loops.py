"""Loops with `strategy.run`, for programs that compare several replicas with one process: functions of the scope."""

import importlib
import os

import keras
import numpy as np
import tensorflow as tf
from cases import Cases

X = np.random.default_rng(4).normal(size=(96, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
case = CASES = Cases()


def trained(strategy, models, optimizers, batches, scales=None):
    """Makes a step of each model with each batch of 24, in a function; returns the losses of each model."""

    def step(batch):
        x, y = batch
        losses = []
        for model, optimizer, scale in zip(models, optimizers, scales or [None] * len(models), strict=True):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(model(x, training=True) - y)) / 24
                scaled = loss if scale is None else scale(loss)
            weights = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(scaled, weights), weights, strict=True))
            losses.append(loss)
        return tf.stack(losses)

    def on_batch(batch):
        return strategy.reduce("SUM", strategy.run(step, args=(batch,)), axis=None)

    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(24).take(batches)
    found = [losses.numpy() for losses in map(tf.function(on_batch), strategy.experimental_distribute_dataset(dataset))]
    return np.transpose(found).tolist()


def weights_of(model):
    return [weights.ravel().tolist() for weights in model.get_weights()]


def linear():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="zeros")])


@case
def updates_of_an_own_loop(scope):
    """With clipped gradients; and in conditions, where Keras accumulates, overwrites weights, or applies scaled gradients."""
    sgd = keras.optimizers.SGD
    make = {
        "clipped by the global norm": lambda: sgd(0.1, global_clipnorm=0.5),
        "clipped by the norm": lambda: sgd(0.1, clipnorm=0.5),
        "clipped by value": lambda: sgd(0.1, clipvalue=0.1),
        "as they are": lambda: sgd(0.1),
        "accumulated": lambda: sgd(0.1, gradient_accumulation_steps=2, global_clipnorm=0.5),
        "overwritten": lambda: sgd(0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2),
        "scaled": lambda: keras.optimizers.LossScaleOptimizer(
            sgd(0.1, momentum=0.9), initial_scale=8.0, dynamic_growth_steps=2
        ),
    }
    with scope():
        strategy, optimizers = tf.distribute.get_strategy(), {name: optimizer_of() for name, optimizer_of in make.items()}
        models = {name: linear() for name in make}
        for name in ("accumulated", "overwritten", "scaled"):
            optimizers[name].build(models[name].trainable_variables)
    scales = [optimizer.scale_loss if name == "scaled" else None for name, optimizer in optimizers.items()]
    losses = trained(strategy, models.values(), optimizers.values(), 4, scales)
    return {
        name: [own, float(optimizer.iterations.numpy()), weights_of(models[name])]
        for own, (name, optimizer) in zip(losses, optimizers.items(), strict=True)
    }


@case
def an_own_loop_that_continues_from_a_checkpoint(scope):
    """Its models are built by their first step, its optimizers are made outside of the scope, and the session is cleared in it."""

    def made():
        with scope():
            importlib.import_module("tensorflow.compat.v1")  # As TensorBoard does: TensorFlow makes another module then.
            keras.utils.clear_session()
            layers = [keras.layers.Dense(3, kernel_initializer="ones"), keras.layers.Dense(1, kernel_initializer="ones")]
            return tf.distribute.get_strategy(), keras.Sequential(layers), keras.optimizers.Adam(0.05)

    strategy, model, _ = made()
    optimizer = keras.optimizers.Adam(0.05)
    (losses,) = trained(strategy, [model], [optimizer], 3)
    path = os.path.abspath(f"loop-of-{type(strategy).__name__}")
    tf.train.Checkpoint(model=model, optimizer=optimizer).write(path)
    strategy, model, optimizer = made()
    tf.train.Checkpoint(model=model, optimizer=optimizer).read(path)
    losses += trained(strategy, [model], [optimizer], 4)[0]
    return {"losses": losses, "weights": weights_of(model), "steps": int(optimizer.iterations.numpy())}


def draws(strategy):
    """Returns what each replica draws in two calls, without seeds of the operations: with `tf.random` and `keras.random`."""
    tf.random.set_seed(5)

    def on_replica():
        inner = tf.function(lambda: tf.random.normal([1]))
        numbers = [tf.random.normal([1]), tf.random.normal([1], seed=7), inner(), keras.random.normal([1])]
        return tf.distribute.get_replica_context().all_gather(tf.stack(numbers, axis=1), axis=0)

    def on_all():
        return strategy.experimental_local_results(strategy.run(on_replica))[0]

    function = tf.function(on_all)
    return [function().numpy().ravel().tolist() for _ in range(2)]


def refused(strategy):
    """Returns the messages of loops that cannot work."""
    outside = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    with strategy.scope():
        inside = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        scaling = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    messages = {}
    for name, arguments in {"model_outside": (outside, keras.optimizers.SGD()), "unbuilt_scale": (inside, scaling)}.items():
        try:
            trained(strategy, *([each] for each in arguments), 1, [getattr(arguments[1], "scale_loss", None)])
        except Exception as error:
            messages[name] = str(error)
    try:
        with strategy.scope(), tf.GradientTape() as tape:
            loss = keras.ops.sum(inside(np.ones((2, 4), "float32")))
        with strategy.scope():
            tape.gradient(loss, inside.trainable_variables)
    except ValueError as error:
        messages["gradients_in_the_scope"] = str(error)
    return messages
