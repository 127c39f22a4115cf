"""Trains models on one device and split over a mesh of four, and writes what both give to MESH.json.

`python split_models.py MESH [CASE …]`, where MESH is 1x4 or 2x2; `split_models.py refused` writes errors. Under the launcher each task writes MESH-RANK.json,
and the chief alone trains on one device.
"""

import contextlib
import json
import os
import sys
import traceback

import keras
import numpy as np
import tensorflow as tf
from split_cases import CASES, OBJECTS, PAIR, REFUSED, X, Y, compiled, mlp

import tfdist

MESHES = {"1x4": (1, 4), "2x2": (2, 2)}


def own_loop(scope, run, reduce):
    """Returns the losses of a training loop without `fit`."""
    keras.utils.set_random_seed(1)
    with scope:
        model, optimizer = mlp(), keras.optimizers.SGD(0.05, momentum=0.9)
        optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    together = tf.function(lambda x, y: reduce(run(step, (x, y))))
    return [float(together(X[:16], Y[:16])) for _ in range(5)]


def refused():
    """Returns what each refused program says, what happens without a scope, and the losses of a loop without `fit`."""
    strategy = tfdist.strategy("cluster { nworkers_per_group: 4 nworkers_per_procs: 4 }")
    found = {}
    mesh = MESHES["1x4"]
    for name, (layout, build) in REFUSED.items():
        keras.distribution.set_distribution(distribution(mesh, layout))
        try:
            with strategy.scope():
                model = build()
            model.fit(X, Y, verbose=0)
        except ValueError as error:
            found[name] = str(error)
    keras.distribution.set_distribution(distribution(mesh, PAIR))
    for name, scope in {"export": strategy.scope, "a_model_outside_the_scope": contextlib.nullcontext}.items():
        try:
            with scope():
                model = compiled(mlp())
            model.fit(X, Y, verbose=0)
            model.export("exported")
        except (ValueError, NotImplementedError) as error:
            found[name] = str(error)
    found["own_loop"] = [
        own_loop(
            strategy.scope(), lambda step, args: strategy.run(step, args), lambda loss: strategy.reduce("SUM", loss, axis=None)
        ),
        own_loop(contextlib.nullcontext(), lambda step, args: step(*args), lambda loss: loss),
    ]
    keras.distribution.set_distribution(None)
    try:
        with strategy.scope(), distribution(mesh, PAIR).scope():
            mlp()
    except ValueError as error:
        found["a_distribution_set_in_the_scope"] = str(error)
    keras.distribution.set_distribution(distribution((2, 2), PAIR))
    try:
        strategy.scope()
    except ValueError as error:
        found["another_mesh"] = str(error)
    return found


def refused_over_tasks(strategy):
    """Returns what is refused if a replica has devices in several tasks. After the last of it there are no collectives."""
    found = {}
    keras.distribution.set_distribution(distribution((2, 2), PAIR))
    with strategy.scope():
        model = compiled(mlp())
    other = X + tfdist.rank()
    attempts = {
        "calls": lambda: model(X[:4]) if tfdist.is_chief() else None,
        "reads": lambda: model.get_weights() if tfdist.is_chief() else None,  # The others go on, to the next `fit`.
        "histograms": lambda: model.fit(X, Y, verbose=0, callbacks=[keras.callbacks.TensorBoard("logs", histogram_freq=1)]),
        "other_examples": lambda: model.fit(other, Y, verbose=0),
    }
    for name, attempt in attempts.items():
        try:
            attempt()
        except (ValueError, RuntimeError, tf.errors.OpError) as error:  # A task whose peers have ended says that.
            found[name] = str(error)
    return found


def bytes_by_device(model):
    """Returns the bytes of weights and optimizer slots on each device."""
    found = {}
    for variable in [*model.weights, *model.optimizer.variables]:
        value = variable._value
        for part in getattr(value, "shards", [value]):
            for local in getattr(part, "values", [part]):
                size = int(np.prod(local.shape)) * local.dtype.size
                found[local.device] = found.get(local.device, 0) + size
    return found


@contextlib.contextmanager
def noting_sums(shapes):
    """Appends the shapes of the tensors that the traced function with most sums over tasks adds up."""
    original, found = tf.raw_ops.CollectiveReduceV2, {}

    def noted(**arguments):
        shape = arguments["input"].shape
        if not tf.executing_eagerly():
            found.setdefault(tf.compat.v1.get_default_graph(), []).append(None if shape.rank is None else shape.as_list())
        return original(**arguments)

    tf.raw_ops.CollectiveReduceV2 = noted
    try:
        yield
    finally:
        tf.raw_ops.CollectiveReduceV2 = original
        shapes += max(found.values(), key=len, default=[])


def train(name, scope):
    build, _, x, y, fitted = CASES[name]
    keras.utils.set_random_seed(1)
    sums = []
    with scope:
        model = build()
    if not model.built and name != "built_in_fit":
        model.build((None, *x.shape[1:]))
    if name == "a_pair_of_dense_layers":  # Outside of the scope, for all replicas.
        model.set_weights([weight + 0.05 for weight in model.get_weights()])
    with noting_sums(sums):
        history = model.fit(x, y, shuffle=False, verbose=0, **fitted).history
    result = {"history": history, "sums": sums, "weights": [w.ravel().tolist() for w in model.get_weights()]}
    result["evaluate"] = model.evaluate(x, y, verbose=0, return_dict=True)
    result["predict"] = model.predict(x, verbose=0).ravel().tolist()
    result["called"] = model(x[:4]).numpy().ravel().tolist()
    result["saliency"] = saliency(model, x[:4])
    result["slots"] = [np.asarray(v.numpy(), "float64").ravel().tolist() for v in model.optimizer.variables]
    result["bytes"] = bytes_by_device(model)
    result["split"] = sorted(v.path for v in model.weights if hasattr(v._value, "shards"))
    model.save(f"{name}.keras")
    return result


def saliency(model, x):
    """Returns the gradient of the sum of all outputs by the inputs, if there is one."""
    x = tf.convert_to_tensor(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs = model(x)
    return [] if x.dtype.is_integer else tape.gradient(outputs, x).numpy().ravel().tolist()


@contextlib.contextmanager
def both_scopes(followed, strategy):
    with followed.scope(), strategy.scope():
        yield


def distribution(shape, layout):
    mesh = keras.distribution.DeviceMesh(shape, ("batch", "model"), keras.distribution.list_devices())
    layout_map = keras.distribution.LayoutMap(mesh)
    for pattern, axes in layout.items():
        layout_map[pattern] = axes
    return keras.distribution.ModelParallel(layout_map=layout_map, batch_dim_name="batch")


def main():
    mesh, *names = sys.argv[1:]
    if mesh == "refused":
        with open("refused.json", "w") as file:
            json.dump(refused(), file)
        return
    alone = "TF_CONFIG" not in os.environ
    strategy = tfdist.strategy("cluster { nworkers_per_group: 4 nworkers_per_procs: 4 }" if alone else None)
    results = {}
    for name in names or CASES:
        try:
            keras.backend.clear_session()
            one = train(name, contextlib.nullcontext()) if tfdist.is_chief() else None
            keras.backend.clear_session()
            followed = distribution(MESHES[mesh], CASES[name][1])
            if name != "built_in_fit":
                keras.distribution.set_distribution(followed)
            split = train(name, both_scopes(followed, strategy))
            keras.distribution.set_distribution(None)
            results[name] = {"one": one, "split": split, "loaded": loaded(name, strategy)}
        except Exception:
            results[name] = {"error": traceback.format_exc()}
    if strategy.extended.mesh.others:
        results["refused"] = refused_over_tasks(strategy)
    with open(f"{mesh}.json" if alone else f"{mesh}-{tfdist.rank()}.json", "w") as file:
        json.dump(results, file)


def loaded(name, strategy):
    """Predicts with the saved model, without a layout map and outside of the scope."""
    if tfdist.size() > 1:  # The chief alone writes the file.
        strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.constant(1.0)))
    model = keras.models.load_model(f"{name}.keras", custom_objects=OBJECTS, compile=False)
    return model.predict(CASES[name][2], verbose=0).ravel().tolist()


if __name__ == "__main__":
    main()
