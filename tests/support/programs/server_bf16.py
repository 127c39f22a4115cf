"""Trains a model under parameter_server with `--compression bf16`, and in this process with the same roundings.

    server_bf16.py RESULTS

The model has a sharded table, a sharded kernel, a large kernel on one ps, small variables, and states (BatchNormalization).
"""

import json
import sys

import keras
import numpy as np
import tensorflow as tf

import tfdist

STEPS, BATCH = 6, 32
generator = np.random.default_rng(5)
IDS = generator.integers(0, 20011, size=(STEPS * BATCH, 5)).astype("int32")
LABELS = generator.integers(0, 3, size=STEPS * BATCH)


def compiled():
    keras.utils.set_random_seed(7)
    dense = [keras.layers.Dense(1000, activation="tanh"), keras.layers.Dense(200), keras.layers.BatchNormalization()]
    layers = [keras.Input((5,), dtype="int32"), keras.layers.Embedding(20011, 16), keras.layers.Flatten(), *dense]
    model = keras.Sequential([*layers, keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss)
    return model


def rounded(value, rounds):
    """Returns a weight or gradient as bfloat16 holds it, or if `rounds` is false as it is."""
    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(rounded(value.values, rounds), value.indices, value.dense_shape)
    return tf.where(rounds, tf.cast(tf.cast(value, tf.bfloat16), tf.float32), value)


def step_of(model):
    """Returns a function that makes a step of a model in this process, with roundings or without."""

    @tf.function
    def step(x, y, rounds):
        weights = [rounded(variable.value, rounds) for variable in model.trainable_variables]
        with tf.GradientTape() as tape:
            tape.watch(weights)
            states = [variable.value for variable in model.non_trainable_variables]
            outputs, states = model.stateless_call(weights, states, x, training=True)
            loss = model.loss(y, outputs)
        gradients = [rounded(gradient, rounds) for gradient in tape.gradient(loss, weights)]
        model.optimizer.apply(gradients, model.trainable_variables)
        for variable, state in zip(model.non_trainable_variables, states, strict=True):
            variable.assign(state)

    return step


def trained_here(model, step, rounds):
    """Returns the weights after the same training in this process, and gives the model back what it has begun with."""
    model.optimizer.build(model.trainable_variables)
    variables = [*model.variables, *model.optimizer.variables]
    start = [variable.numpy() for variable in variables]
    for begin in range(0, STEPS * BATCH, BATCH):
        step(IDS[begin : begin + BATCH], LABELS[begin : begin + BATCH], tf.constant(rounds))
    weights = model.get_weights()
    for variable, value in zip(variables, start, strict=True):
        variable.assign(value)
    return weights


def sent_as(model):
    """Returns the dtypes of the tensors with more than 1000 elements, or an unknown number, that travel in a step of fit."""
    (_, function), *_ = model.train_function._steps._function._packed.values()
    operations = function.graph.get_operations()
    # The function runs on the worker, and so does what names no device; but variables are read where they are.
    homes = {True: "ps", False: "worker"}
    jobs = {
        each.name: tf.DeviceSpec.from_string(each.device).job or homes[each.type == "ReadVariableOp"] for each in operations
    }
    found = {("worker", "ps"): set(), ("ps", "worker"): set()}
    for operation in operations:
        for tensor in operation.inputs:
            pair = (jobs[tensor.op.name], jobs[operation.name])
            if pair in found and tensor.dtype != tf.resource and (tensor.shape.num_elements() or 1001) > 1000:
                found[pair].add(tensor.dtype.name)
    return {f"{source} to {target}": sorted(names) for (source, target), names in found.items()}


def main():
    with tfdist.strategy().scope():
        model = compiled()
    model.fit(IDS, LABELS, batch_size=BATCH, shuffle=False, verbose=0)
    copy = compiled()
    step = step_of(copy)
    results = {"names": [weight.path for weight in model.weights], "sent_as": sent_as(model)}
    for name, rounds in (("here", True), ("exact", False)):
        pairs = zip(model.get_weights(), trained_here(copy, step, rounds), strict=True)
        results[name] = [float(np.linalg.norm(a - b)) for a, b in pairs]
    copy.set_weights(model.get_weights())
    exact, begins = copy(IDS), range(0, STEPS * BATCH, BATCH)
    losses = [float(copy.loss(LABELS[begin : begin + BATCH], exact[begin : begin + BATCH])) for begin in begins]
    results["loss"] = [float(model.evaluate(IDS, LABELS, batch_size=BATCH, verbose=0)), float(np.mean(losses))]
    results["outputs"] = [model.predict(IDS[:40], verbose=0).tolist(), exact[:40].numpy().tolist()]
    with open(sys.argv[1], "w") as file:
        json.dump(results, file)


main()
