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


def trained(model):
    model.fit(IDS, LABELS, batch_size=BATCH, shuffle=False, verbose=0)
    return model


def rounded(value):
    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(rounded(value.values), value.indices, value.dense_shape)
    return tf.cast(tf.cast(value, tf.bfloat16), tf.float32)


def trained_with_roundings(model):
    @tf.function
    def step(x, y):
        weights = [rounded(variable.value) for variable in model.trainable_variables]
        with tf.GradientTape() as tape:
            tape.watch(weights)
            states = [variable.value for variable in model.non_trainable_variables]
            outputs, states = model.stateless_call(weights, states, x, training=True)
            loss = model.loss(y, outputs)
        gradients = [rounded(gradient) for gradient in tape.gradient(loss, weights)]
        model.optimizer.apply(gradients, model.trainable_variables)
        for variable, state in zip(model.non_trainable_variables, states, strict=True):
            variable.assign(state)

    model.optimizer.build(model.trainable_variables)
    for begin in range(0, STEPS * BATCH, BATCH):
        step(IDS[begin : begin + BATCH], LABELS[begin : begin + BATCH])
    return model


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
    trained(model)
    here, exact = trained_with_roundings(compiled()), trained(compiled())
    copy = compiled()
    copy.set_weights(model.get_weights())
    results = {"names": [weight.path for weight in model.weights], "sent_as": sent_as(model)}
    for name, other in (("here", here), ("exact", exact)):
        pairs = zip(model.get_weights(), other.get_weights(), strict=True)
        results[name] = [float(np.linalg.norm(a - b)) for a, b in pairs]
    results["loss"] = [float(each.evaluate(IDS, LABELS, batch_size=BATCH, verbose=0)) for each in (model, copy)]
    results["outputs"] = [each.predict(IDS[:40], verbose=0).tolist() for each in (model, copy)]
    with open(sys.argv[1], "w") as file:
        json.dump(results, file)


main()
