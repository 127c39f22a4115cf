"""Trains models without a layout map, and writes what they give to RANK.json: `python unchanged_models.py [FOLDER …]`.

The description of the cluster may partition them. With folders, it also predicts with the models that were saved there.
"""

import contextlib
import gc
import itertools
import json
import logging.handlers
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import tfdist

RNG = np.random.default_rng(0)
RNG_OF_TABLES = np.random.default_rng(1)
X = RNG.integers(0, 24, size=(72, 6))
Y = RNG.integers(0, 10, size=(72,))
DTYPES = {"net": None, "mixed": "mixed_bfloat16"}


def model(name="net", dtype=None):
    return keras.Sequential(
        [
            keras.Input((6,), dtype="int32"),
            layers.Embedding(24, 8, name="words", dtype=dtype),
            layers.Flatten(),
            layers.Dense(32, "relu", name="up", dtype=dtype),
            layers.Dense(12, "gelu", name="down", dtype=dtype),
            layers.Dense(10, name="head", dtype="float32"),
        ],
        name=name,
    )


def compiled(built, optimizer):
    built.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return built


def side_by_side():
    """Returns a compiled model whose outputs are those of a model in float32 and of one in mixed precision."""
    inputs = keras.Input((6,), dtype="int32")
    both = keras.Model(inputs, {name: model(name, dtype)(inputs) for name, dtype in DTYPES.items()})
    losses = {name: keras.losses.SparseCategoricalCrossentropy(from_logits=True) for name in DTYPES}
    both.compile(keras.optimizers.Adam(0.003), losses, metrics={name: ["accuracy"] for name in DTYPES})
    return both


def held(variables, strategy):
    """Returns the bytes of variables, without scalars, on each device that holds some; under hogwild on those of the workers."""
    found = {}
    parts = [part for v in variables if len(v.shape) for part in getattr(v._value, "shards", [v._value])]
    if hasattr(strategy, "local_replicas"):
        devices = [each.name for each in tf.config.list_logical_devices() if "/job:worker" in each.name]
        for part, device in itertools.product(parts, devices):
            with contextlib.suppress(tf.errors.FailedPreconditionError, tf.errors.NotFoundError):
                found[device] = found.get(device, 0) + part.replica.read(device).numpy().nbytes
        return found
    for part in parts:
        for local in getattr(part, "values", [part]):
            found[local.device] = found.get(local.device, 0) + int(np.prod(local.shape)) * local.dtype.size
    return found


def train(strategy):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        trained = side_by_side()
    labels = dict.fromkeys(DTYPES, Y)
    history = trained.fit(X, labels, batch_size=12, epochs=8, shuffle=False, verbose=0).history
    evaluated, predicted = (
        trained.evaluate(X, labels, batch_size=12, verbose=0, return_dict=True),
        trained.predict(X, verbose=0),
    )
    if tfdist.is_chief():
        trained.save("model.keras")

    def of(name):
        return {
            "history": {key: value for key, value in history.items() if key.startswith(name)},
            "evaluate": {key: value for key, value in evaluated.items() if key.startswith(name)},
            "predict": predicted[name].ravel().tolist(),
            "weights": [w.numpy().ravel().tolist() for w in trained.weights if w.path.startswith(name)],
            "slots": [np.asarray(v.numpy(), "float64").ravel().tolist() for v in trained.optimizer.variables if name in v.path],
            "sharded": sorted(v.path for v in trained.weights if v.path.startswith(name) and hasattr(v._value, "shards")),
        }

    return {name: of(name) for name in DTYPES} | {"bytes": held([*trained.weights, *trained.optimizer.variables], strategy)}


def tables(strategy, partitioned):
    """Trains a model with two large tables, one by rows and one by columns, and finds out how its steps read them.

    Another weight in shards has a constraint that needs all of it.
    """
    warnings = logging.handlers.BufferingHandler(100)
    logging.getLogger("tfdist").addHandler(warnings)
    rows = RNG_OF_TABLES.integers(-10000, 10000, size=(64, 6))

    def fitted(regularizer=None):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            numbers = keras.Input((6,), dtype="int32")
            words = layers.Embedding(10000, 16, name="words", embeddings_regularizer=regularizer)(numbers)
            found = layers.Concatenate()([words, layers.Embedding(10000, 16, name="up")(numbers)])
            constraint = keras.constraints.MaxNorm(0.5)
            down = layers.Dense(12, "gelu", name="down", kernel_constraint=constraint)(layers.Flatten()(found))
            built = compiled(keras.Model(numbers, layers.Dense(10)(down)), keras.optimizers.Adam(0.003))
        built.compile(built.optimizer, built.loss, steps_per_execution=2)
        built.fit(rows, rows[:, 0] % 10, batch_size=16, epochs=3, shuffle=False, verbose=0)
        return built

    trained = fitted()
    result = {"predict": trained.predict(rows, verbose=0).ravel().tolist()}
    result["weights"] = [np.abs(weight).sum(axis=-1).ravel().tolist() for weight in trained.get_weights()]
    graphs = [each for each in gc.get_objects() if isinstance(each, tf.Graph)]
    operations = [each for graph in graphs for each in graph.get_operations() if "/job:worker" in each.device]
    read = [each.outputs[0].shape for each in operations if each.type == "ReadVariableOp"]
    result["gathers"] = sum(each.type == "ResourceGather" for each in operations)
    result["whole"] = [shape.as_list() for shape in read if shape.is_fully_defined() and shape.num_elements() >= 10000 * 8]
    result["warnings"] = [[record.getMessage() for record in warnings.buffer]]
    if partitioned:
        fitted("l2")
    result["warnings"].append([record.getMessage() for record in warnings.buffer])
    return result


def refused(strategy):
    """Returns what programs say that a partition cannot be applied to."""
    found = {}

    def attempt(name, function):
        try:
            function()
        except ValueError as error:
            found[name] = str(error)

    def other_layers():
        with strategy.scope():
            compiled(keras.Sequential([keras.Input((6,)), layers.Dense(10, name="other")]), "sgd").fit(X, Y, verbose=0)

    def own_distribution():
        keras.distribution.set_distribution(keras.distribution.DataParallel(devices=["cpu:0"]))
        try:
            with strategy.scope():
                compiled(model(), "sgd").fit(X, Y, verbose=0)
        finally:
            keras.distribution.set_distribution(None)

    def own_loop():
        with strategy.scope():
            own = compiled(model(), "sgd")
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(own(X))
        own.optimizer.apply_gradients(zip(tape.gradient(loss, own.trainable_variables), own.trainable_variables, strict=True))

    def constrained():
        with strategy.scope():
            own = model()
            own.get_layer("up").kernel.constraint = keras.constraints.MaxNorm(0.5)
            compiled(own, "sgd").fit(X, Y, verbose=0)

    attempt("other_layers", other_layers)
    attempt("outside", lambda: compiled(model(), "sgd").fit(X, Y, verbose=0))
    attempt("own_distribution", own_distribution)
    if hasattr(strategy, "worker_groups"):
        attempt("own_loop", own_loop)
    if hasattr(strategy, "local_replicas"):
        attempt("constrained", constrained)
    return found


def main():
    strategy = tfdist.strategy()
    partitioned = getattr(strategy.extended, "described", None) is not None
    results = {"refused": refused(strategy)} if partitioned else {}
    results |= train(strategy)
    if not partitioned or hasattr(strategy, "rounded"):  # One process, and parameter_server.
        results["tables"] = tables(strategy, partitioned)
    for folder in sys.argv[1:]:
        outputs = keras.models.load_model(Path(folder, "model.keras"))(X)
        results.setdefault("loaded", {})[folder] = {name: output.numpy().ravel().tolist() for name, output in outputs.items()}
    Path(f"{tfdist.rank()}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
