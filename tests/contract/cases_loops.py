"""Training loops of the user's own, and what is made outside of the scope."""

import keras
import numpy as np
import tensorflow as tf

from contract.common import LABELS, RATE, X, Y, case, fit, trained, two_layers

BATCHES = tf.data.Dataset.from_tensor_slices((X[:240], Y[:240])).batch(16)


def made(strategy):
    with strategy.scope():
        keras.utils.set_random_seed(3)
        return two_layers(), keras.optimizers.Adam(RATE)


def result(model, optimizer, losses):
    weights = [np.abs(weight).sum().tolist() for weight in model.get_weights()]
    return {"exact": {"steps": int(optimizer.iterations.numpy())}, "near": {"losses": losses, "weights": weights}}


def step_of(model, optimizer, loss_of=None):
    loss_of = loss_of or keras.losses.MeanSquaredError()

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    return step


@case("own_loop")
def own_loop(strategy):
    model, optimizer = made(strategy)
    step = step_of(model, optimizer)
    losses = [float(step(x, y)) for x, y in BATCHES]
    function = tf.function(step)
    losses += [float(function(x, y)) for x, y in BATCHES]
    return result(model, optimizer, losses)


@case("own_loop_in_the_scope")
def own_loop_in_the_scope(strategy):
    model, optimizer = made(strategy)
    with strategy.scope():
        step = step_of(model, optimizer)
        losses = [float(step(x, y)) for x, y in BATCHES]
        function = tf.function(step)
        losses += [float(function(x, y)) for x, y in BATCHES]
    predicted = model.predict(X, verbose=0)  # The workers see what the chief has assigned.
    return result(model, optimizer, [*losses, float(np.square(predicted).sum())])


@case("own_loop_with_strategy_run")
def own_loop_with_strategy_run(strategy):
    model, optimizer = made(strategy)
    each = keras.losses.MeanSquaredError(reduction="none")
    step = step_of(model, optimizer, lambda y, p: tf.nn.compute_average_loss(each(y, p), global_batch_size=16))

    @tf.function
    def together(batch):
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(step, args=batch), axis=None)

    losses = [float(together(batch)) for batch in strategy.experimental_distribute_dataset(BATCHES)]
    return result(model, optimizer, losses)


@case("compile_outside_the_scope", "clipnorm")
def compile_outside_the_scope(strategy):
    model, _ = made(strategy)
    optimizer = keras.optimizers.SGD(RATE, momentum=0.5, clipnorm=0.5)
    model.compile(optimizer, "mse", metrics=["mae", keras.metrics.RootMeanSquaredError()])
    history = fit(model, X, Y, epochs=2)
    del history["root_mean_squared_error"]  # Not a mean over the groups.
    return dict.fromkeys(("compile_outside_the_scope", "clipnorm"), trained(model, history))


@case("augmentation_in_the_scope")
def augmentation_in_the_scope(strategy):
    with strategy.scope():
        layers = [keras.layers.GaussianNoise(0.1, seed=3), keras.layers.RandomFlip("horizontal", seed=5)]
    images = tf.data.Dataset.from_tensor_slices((np.arange(960, dtype="float32").reshape(20, 4, 4, 3), LABELS[:20]))
    for layer in layers:
        images = images.map(lambda x, y, layer=layer: (layer(x, training=True), y))
    images = images.batch(4)
    seen = [float(tf.reduce_sum(x * x[:, :, :1])) for _ in range(2) for x, _ in images]
    return {"exact": {}, "near": {"seen": seen}}
