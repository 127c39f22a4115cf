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
from keras import layers, ops

import tfdist

MESHES = {"1x4": (1, 4), "2x2": (2, 2)}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(104, 16)).astype("float32")
Y = RNG.integers(0, 10, size=(104,))
IMAGES = RNG.normal(size=(40, 8, 8, 4)).astype("float32")
TEXTS = RNG.integers(0, 32, size=(40, 6))
CASES = {}


def case(layout, x=X, y=Y, **fitted):
    """Registers a function that returns a compiled model, with its layout map."""

    def register(function):
        CASES[function.__name__] = (function, layout, x, y, {"batch_size": 16, "epochs": 4, **fitted})
        return function

    return register


def compiled(model, optimizer=None, **settings):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer or keras.optimizers.SGD(0.05, momentum=0.9), loss, metrics=["accuracy"], **settings)
    return model


PAIR = {".*up/kernel": (None, "model"), ".*up/bias": ("model",), ".*down/kernel": ("model", None)}


def mlp(kind=keras.Sequential, dtype=None, **up):
    return kind(
        [
            keras.Input((16,)),
            layers.Dense(32, "relu", name="up", dtype=dtype, **up),
            layers.Dense(12, "gelu", name="down", dtype=dtype),
            layers.Dense(10, name="head", dtype="float32" if dtype else None),
        ]
    )


@case(PAIR)
def a_pair_of_dense_layers():
    return compiled(mlp())


@case(PAIR, epochs=20)
def many_steps_of_adam():
    return compiled(mlp(), keras.optimizers.Adam(0.003))


@case({".*kernel": (None, "model")}, x=X, y=Y % 4)
def every_kernel_by_columns_also_the_last():
    model = keras.Sequential([keras.Input((16,)), layers.Dense(8, "tanh"), layers.Dense(4, "softmax")])
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    return model


@case(PAIR)
def adamw_with_decay_clipping_and_averages():
    return compiled(
        mlp(), keras.optimizers.AdamW(0.003, weight_decay=0.01, clipnorm=0.1, use_ema=True, ema_overwrite_frequency=3)
    )


@case(PAIR)
def clipping_by_the_norm_of_all_gradients():
    return compiled(mlp(), keras.optimizers.SGD(0.1, global_clipnorm=0.5))


@case(PAIR)
def gradient_accumulation():
    return compiled(mlp(), keras.optimizers.Adam(0.003, gradient_accumulation_steps=2))


@case(PAIR)
def rmsprop_with_regularized_kernels():
    return compiled(
        mlp(kernel_regularizer="l2", bias_regularizer="l1"),
        keras.optimizers.RMSprop(0.002),
    )


@case(PAIR)
def steps_per_execution():
    return compiled(mlp(), steps_per_execution=3)


@case(PAIR, epochs=2)
def run_eagerly():
    return compiled(mlp(), run_eagerly=True)


@case(PAIR, epochs=1)
def mixed_precision():
    return compiled(mlp(dtype="mixed_bfloat16"))


@case(PAIR)
def jit_compile():
    return compiled(mlp(), jit_compile=True)


@case(PAIR)
def loss_scaling():
    return compiled(mlp(), keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05), initial_scale=4.0))


class OwnStep(keras.Sequential):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


@case(PAIR)
def own_train_step():
    model = mlp(OwnStep)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


class Gated(keras.Model):
    """Uses split tensors in ways that only some rules know: products, slices, reductions, TensorFlow's own operations."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.up, self.gate = layers.Dense(32, name="up"), layers.Dense(32, "sigmoid", name="gate")
        self.down, self.head = layers.Dense(12, name="down"), layers.Dense(10)

    def call(self, x):
        hidden = self.up(x) * self.gate(x) + 1.0
        hidden = tf.nn.relu(hidden) - ops.mean(hidden, axis=-1, keepdims=True)
        return self.head(ops.concatenate([self.down(hidden), hidden[:, :3], ops.exp(-hidden[:, 3:5])], axis=-1))


@case({**PAIR, ".*gate/kernel": (None, "model")})
def a_gated_subclassed_model():
    return compiled(Gated())


@case(
    {
        ".*filters/kernel": (None, None, None, "model"),
        ".*filters/bias": ("model",),
        ".*channels/kernel": (None, None, "model", None),
    },
    x=IMAGES,
    y=Y[:40],
)
def convolutions():
    return compiled(
        keras.Sequential(
            [
                keras.Input((8, 8, 4)),
                layers.Conv2D(8, 3, activation="relu", padding="same", name="filters"),
                layers.Conv2D(6, 3, strides=2, name="channels"),
                layers.BatchNormalization(),
                layers.GlobalAveragePooling2D(),
                layers.Dense(10),
            ]
        )
    )


def text_model():
    inputs = keras.Input((6,), dtype="int32")
    return keras.Model(inputs, layers.Dense(10)(layers.Flatten()(layers.Embedding(32, 8, name="words")(inputs))))


@case({".*embeddings": (None, "model")}, x=TEXTS, y=Y[:40])
def an_embedding_by_columns():
    return compiled(text_model())


@case({".*embeddings": ("model", None)}, x=TEXTS, y=Y[:40])
def an_embedding_by_rows():
    return compiled(text_model(), keras.optimizers.Adam(0.01))


ATTENTION = {
    ".*(query|key|value)/kernel": (None, "model", None),
    ".*(query|key|value)/bias": ("model", None),
    ".*attention_output/kernel": ("model", None, None),
    ".*embeddings": ("model", None),
    **PAIR,
}


def transformer(dropout, causal):
    inputs = keras.Input((6,), dtype="int32")
    x = layers.Embedding(32, 16, name="words")(inputs)
    for number in range(2):
        normal = layers.LayerNormalization()(x)
        attention = layers.MultiHeadAttention(4, 4, dropout=dropout, seed=number, name=f"attention_{number}")
        x = x + attention(normal, normal, use_causal_mask=causal)
        hidden = layers.Dense(32, "gelu", name=f"block_{number}_up")(layers.LayerNormalization()(x))
        x = x + layers.Dropout(dropout, seed=7)(layers.Dense(16, name=f"block_{number}_down")(hidden))
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))


@case(ATTENTION, x=TEXTS, y=Y[:40])
def a_transformer():
    return compiled(transformer(0.0, causal=True), keras.optimizers.Adam(0.003))


@case(ATTENTION, x=TEXTS, y=Y[:40])
def a_transformer_with_dropout():
    return compiled(transformer(0.3, causal=False), keras.optimizers.SGD(0.05))


@case({".*kernel": (None, "model"), "(sequential.*/)?first": (None, "model"), "(sequential.*/)?second": ("batch", None)})
def layouts_of_activations():
    return compiled(
        keras.Sequential([keras.Input((16,)), layers.Dense(8, name="first"), layers.Dense(12, name="second"), layers.Dense(12)])
    )


class Own(layers.Layer):
    """Multiplies with an operation of TensorFlow's that has no rule."""

    def build(self, shape):
        self.kernel = self.add_weight(name="kernel", shape=(shape[-1], 12))

    def call(self, x):
        return tf.tensordot(x, self.kernel, 1)


REFUSED = {
    "an_optimizer_that_needs_whole_variables": (PAIR, lambda: compiled(mlp(), keras.optimizers.Lamb(0.01))),
    "an_operation_without_a_rule": (
        {".*kernel": (None, "model")},
        lambda: compiled(keras.Sequential([keras.Input((16,)), Own()])),
    ),
    "a_dimension_that_four_devices_cannot_share": ({".*head/kernel": (None, "model")}, lambda: compiled(mlp())),
    "a_constraint": (PAIR, lambda: compiled(mlp(kernel_constraint=keras.constraints.MaxNorm(1.0)))),
}


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
    if not model.built:
        model.build((None, *x.shape[1:]))
    with noting_sums(sums):
        history = model.fit(x, y, shuffle=False, verbose=0, **fitted).history
    result = {"history": history, "sums": sums, "weights": [w.ravel().tolist() for w in model.get_weights()]}
    result["evaluate"] = model.evaluate(x, y, verbose=0, return_dict=True)
    result["predict"] = model.predict(x, verbose=0).ravel().tolist()
    result["slots"] = [np.asarray(v.numpy(), "float64").ravel().tolist() for v in model.optimizer.variables]
    result["bytes"] = bytes_by_device(model)
    result["split"] = sorted(v.path for v in model.weights if hasattr(v._value, "shards"))
    model.save(f"{name}.keras")
    return result


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
            keras.distribution.set_distribution(distribution(MESHES[mesh], CASES[name][1]))
            split = train(name, strategy.scope())
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
    model = keras.models.load_model(f"{name}.keras", custom_objects={"OwnStep": OwnStep, "Gated": Gated}, compile=False)
    return model.predict(CASES[name][2], verbose=0).ravel().tolist()


if __name__ == "__main__":
    main()
