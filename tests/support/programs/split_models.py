"""Trains models on one device, or split over a mesh, and writes what that gives to MESH.json.

`python split_models.py MESH CASE …`, where MESH is `one`, 1x2, 1x4 or 2x2; `split_models.py refused` writes errors. Under the
launcher each task writes MESH-RANK.json.
"""

import contextlib
import json
import math
import os
import sys
import time
import traceback

import keras
import numpy as np
import tensorflow as tf
from split_cases import CASES, OBJECTS, PAIR, REFUSED, X, Y, compiled, mlp

import tfdist

MESHES = {"1x2": (1, 2), "1x4": (1, 4), "2x2": (2, 2)}
ALONE = "cluster {{ nworkers_per_group: {0} nworkers_per_procs: {0} }}"
EVALUATED = ("many_steps_of_a_subclass_of_adam", "own_train_step_that_assigns_weights", "mixed_precision")
"""Cases that also evaluate and predict. In others the layers compute the same in `fit`, and in a call of the model."""


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
    strategy = tfdist.strategy(ALONE.format(4))
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
    with strategy.scope():
        model = compiled(mlp())
    attempts = {
        "export": lambda: model.export("exported"),
        "a_model_outside_the_scope": lambda: compiled(mlp()).fit(X, Y, verbose=0),
    }
    for name, attempt in attempts.items():
        try:
            attempt()
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
    if not model.built and not name.startswith("built_in_fit"):
        model.build((None, *x.shape[1:]))
    if name == "blocks":  # Outside of the scope, for all replicas.
        model.set_weights([weight + 0.05 for weight in model.get_weights()])
    with noting_sums(sums):
        history = model.fit(x, y, shuffle=False, verbose=0, **fitted).history
    few = tf.nest.map_structure(lambda each: each[:4], x)
    result = {"history": history, "sums": sums, "called": lists(model(few)), "saliency": saliency(model, few)}
    result["weights"] = {
        w.path: np.asarray(v).ravel().tolist() for w, v in zip(model.weights, model.get_weights(), strict=True)
    }
    result["slots"] = {v.path: np.asarray(v.numpy(), "float64").ravel().tolist() for v in model.optimizer.variables}
    result["bytes"] = bytes_by_device(model)
    result["split"] = sorted(v.path for v in model.weights if hasattr(v._value, "shards"))
    if name in EVALUATED:
        result["evaluate"] = model.evaluate(x, y, verbose=0, return_dict=True)
        result["predict"] = model.predict(x, verbose=0).ravel().tolist()
    model.save(f"{name}.keras")
    return result


def loaded(name):
    """Returns the weights of the saved model, without a layout map and outside of the scope."""
    model = keras.models.load_model(f"{name}.keras", custom_objects=OBJECTS, compile=False)
    return lists(model.get_weights())


def lists(tensors):
    return tf.nest.map_structure(lambda each: tf.convert_to_tensor(each).numpy().ravel().tolist(), tensors)


def saliency(model, x):
    """Returns the gradients of the sum of all outputs by the inputs that are floats."""
    x = tf.nest.map_structure(tf.convert_to_tensor, x)
    floats = [each for each in tf.nest.flatten(x) if each.dtype.is_floating]
    with tf.GradientTape() as tape:
        tape.watch(floats)
        outputs = tf.nest.flatten(model(x))
    return lists(tape.gradient(outputs, floats))


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
    results, alone = {}, "TF_CONFIG" not in os.environ
    if mesh != "one":
        strategy = tfdist.strategy(ALONE.format(math.prod(MESHES[mesh])) if alone else None)
    for name in names:
        begin = time.monotonic()
        try:
            keras.backend.clear_session()
            if mesh == "one":
                results[name] = train(name, contextlib.nullcontext())
            else:
                followed = distribution(MESHES[mesh], CASES[name][1])
                if not name.startswith("built_in_fit"):
                    keras.distribution.set_distribution(followed)
                results[name] = train(name, both_scopes(followed, strategy))
                keras.distribution.set_distribution(None)
            if tfdist.is_chief():  # It alone has written the file.
                results[name]["loaded"] = loaded(name)
        except Exception:
            results[name] = {"error": traceback.format_exc()}
        print(f"{time.monotonic() - begin:5.1f} s {name}", flush=True)
    if mesh != "one" and strategy.extended.mesh.others:
        results["refused"] = refused_over_tasks(strategy)
    with open(f"{mesh}.json" if alone else f"{mesh}-{tfdist.rank()}.json", "w") as file:
        json.dump(results, file)


if __name__ == "__main__":
    main()
