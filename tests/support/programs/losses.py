"""Losses of every form, for programs that compare several replicas with one process.

Each is a part of a model, with outputs of its own: a program trains several side by side, because a model takes seconds to
trace, or each alone. The cases are functions of the scope to train under.
"""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from cases import Cases
from keras import ops

BATCH = 13  # Replicas cannot share it evenly.
N = 5 * BATCH + 1  # The last batch has a single example.
SHORT = 4 * BATCH + 8  # So many have no such batch, but two sizes, so that no step is traced for one.
X = np.random.default_rng(0).normal(size=(N, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
IS_POSITIVE = (Y > 0).astype("float32")
WEIGHTS = np.random.default_rng(1).uniform(0.5, 2, size=N).astype("float32")
TOKENS = np.random.default_rng(2).integers(0, 4, size=(N, 5)).astype("int32")  # 0 is masked.
SEQUENCES = np.random.default_rng(2).normal(size=(N, 5, 4)).astype("float32")
SEQUENCES[np.arange(5) > np.arange(N)[:, None] % 5] = 0
RATE = 0.05
ALL = os.environ.get("TFDIST_TESTS") == "all"  # As tests/support/selection.py has it for tests.
case = CASES = Cases()
whole_batch_case = WHOLE_BATCH_CASES = Cases()  # Of data-parallel strategies only.


def dense(units=1, activation=None, **arguments):
    """Returns a function of an input: a dense layer that begins with zeros."""
    return lambda x: keras.layers.Dense(units, activation, **{"kernel_initializer": "zeros", **arguments})(x)


class Part(NamedTuple):
    """A part of a model.

    Attributes:
        loss: makes its loss.
        outputs: makes its outputs of its inputs.
        x: the data of each input. Parts share an input that has the same.
        y: its targets.
        rate: its learning rate.
        weights: of its examples.
        metrics: makes its metrics.
    """

    loss: Callable[[], Any]
    outputs: Callable[..., Any] = dense()
    x: Any = (X,)
    y: Any = Y
    rate: float = RATE
    weights: Any = None
    metrics: Callable[[], Any] | None = None


PARTS: dict[str, Part] = {}


def trained_together(scope, names, data=None, rate=RATE, batch=BATCH, rows=N, evaluates=True, **compiled):
    """Trains parts side by side for three epochs; returns the results of each by its name, and those of the model as "all".

    Args:
        scope: the scope to train under.
        names: the parts.
        data: makes a dataset of those of all parts; batches of `batch` by default.
        rate: of the optimizer, for losses that layers add.
        batch: the size of a batch.
        rows: how many examples there are. With `SHORT` of them no batch has a single example, for which a step is traced.
        evaluates: whether to evaluate, too, without the last batch of `N` examples.
        compiled: arguments of `compile`.
    """
    parts = {name: PARTS[name] for name in names}
    losses = {name: part.loss() for name, part in parts.items()}  # Outside of the scope, as in many programs.
    arrays = {id(x): x for part in parts.values() for x in part.x}
    with scope():
        inputs = {key: keras.Input(x.shape[1:], dtype=x.dtype.name) for key, x in arrays.items()}
        models = {}
        for name, part in parts.items():
            own = [keras.Input(x.shape[1:], dtype=x.dtype.name) for x in part.x]
            models[name] = keras.Model(own, part.outputs(*own), name=name)
        outputs = {name: model([inputs[id(x)] for x in parts[name].x]) for name, model in models.items()}
        model = keras.Model(list(inputs.values()), outputs)
        model.compile(
            keras.optimizers.SGD(rate),
            losses if any(losses.values()) else None,  # Else a layer adds the only one.
            loss_weights={name: part.rate / rate for name, part in parts.items()},
            metrics={name: part.metrics() for name, part in parts.items() if part.metrics is not None},
            **compiled,
        )
    x, y = tuple(arrays.values()), {name: part.y for name, part in parts.items()}
    weights = {name: part.weights for name, part in parts.items()}
    if data is None:
        weighted = {"sample_weight": weights} if any(value is not None for value in weights.values()) else {}
        (x, y), weighted = tf.nest.map_structure(lambda v: None if v is None else v[:rows], ((x, y), weighted))
        history = model.fit(x, y, batch_size=batch, epochs=3, shuffle=False, verbose=0, **weighted).history
        x, y = tf.nest.map_structure(lambda v: v[:SHORT], (x, y))
        found = model.evaluate(x, y, batch_size=batch, verbose=0, return_dict=True) if evaluates else {}
    else:
        history, found = model.fit(data((x, y)), epochs=2, verbose=0).history, {}

    def of(name, results):
        return {key.removeprefix(f"{name}_"): value for key, value in results.items() if key.startswith(f"{name}_")}

    results = {"all": {"loss": history["loss"], "evaluate": found.get("loss", 0.0)}}
    for name, part in models.items():
        kept = [value for value in getattr(losses[name], "__dict__", {}).values() if isinstance(value, keras.Variable)]
        values = [np.ravel(value).tolist() for value in (*part.get_weights(), *(each.numpy() for each in kept))]
        results[name] = {"fit": of(name, history), "evaluate": of(name, found), "weights": values}
    return results


def alone(name):
    """Returns the case of a part in a model of its own."""

    def case(scope):
        return trained_together(scope, [name])

    case.__name__ = name
    return case


def trained(scope, build, x=X[:SHORT], y=Y[:SHORT], rate=RATE, **compiled):
    """Trains a model three epochs; returns history, evaluation and weights."""
    fitted = {key: compiled.pop(key) for key in ("class_weight",) if key in compiled}
    with scope():
        model = build()
        model.compile(optimizer=keras.optimizers.SGD(rate), **compiled)
    record = model.fit(x, y, batch_size=BATCH, epochs=3, shuffle=False, verbose=0, **fitted).history
    return {
        **record,
        "evaluate": model.evaluate(x, y, batch_size=BATCH, verbose=0),
        "weights": [w.ravel().tolist() for w in model.get_weights()],
    }


def linear(kind=keras.Model, **arguments):
    inputs = keras.Input((4,))
    return kind(inputs, dense(**arguments)(inputs))


# Losses that count every example by itself, or are one number for a batch.


def mean_of_the_batch(y_true, y_pred):
    return ops.mean(ops.square(y_true - y_pred))


def sum_of_the_batch(y_true, y_pred):
    return ops.sum(ops.square(y_true - y_pred))


class LogSumExp(keras.losses.Loss):
    """Neither a mean over examples nor a sum."""

    def call(self, y_true, y_pred):
        return ops.logsumexp(ops.square(y_true - y_pred))


class SumInside(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return 0.1 * keras.losses.MeanSquaredError(reduction="sum")(y_true, y_pred)


def of_kinds(y_true, y_pred):
    return ops.mean(keras.losses.sparse_categorical_crossentropy(y_true, y_pred))


def of_odds(y_true, y_pred):
    return ops.mean(keras.losses.binary_crossentropy(y_true, y_pred))


def embedded(x):
    table = keras.layers.Embedding(4, 3, mask_zero=True, embeddings_initializer="ones")
    return dense(kernel_initializer="ones")(table(x))


LARGE = keras.initializers.RandomNormal(stddev=20, seed=1)
MSE, DICE = keras.losses.MeanSquaredError, keras.losses.Dice
SIGMOID = dense(activation="sigmoid")
PARTS |= {
    "a_loss_function_that_returns_a_mean": Part(lambda: mean_of_the_batch),
    "a_loss_function_that_returns_a_sum": Part(lambda: sum_of_the_batch, rate=0.002),
    "a_loss_class_that_returns_neither": Part(LogSumExp),
    "a_loss_class_with_a_sum_inside": Part(SumInside),
    "a_reduction_by_sum": Part(lambda: MSE(reduction="sum"), rate=0.002),
    "a_mean_over_sample_weights": Part(lambda: MSE(reduction="mean_with_sample_weight"), weights=WEIGHTS),
    "a_mean_over_what_a_mask_leaves": Part(lambda: "mse", embedded, (TOKENS,), TOKENS[:, :, None].astype("float32")),
    "one_number_for_a_batch_with_sample_weights": Part(DICE, SIGMOID, y=IS_POSITIVE, weights=WEIGHTS, rate=0.5),
    "one_number_for_a_batch_with_a_mask": Part(
        lambda: mean_of_the_batch,
        lambda x: dense()(keras.layers.Masking()(x)),
        (SEQUENCES,),
        SEQUENCES.sum(axis=-1, keepdims=True),
    ),
    # Keras takes the logits of a softmax or sigmoid, because probabilities may be rounded to 0 and 1.
    "one_number_for_a_batch_of_probabilities_of_kinds": Part(
        lambda: of_kinds, dense(3, "softmax", kernel_initializer=LARGE), y=IS_POSITIVE
    ),
    "one_number_for_a_batch_of_probabilities": Part(
        lambda: of_odds, dense(1, "sigmoid", kernel_initializer=LARGE), y=IS_POSITIVE
    ),
}
PARTS_WITHOUT_REDUCTION = {
    "no_reduction": Part(lambda: MSE(reduction=None), rate=0.002),
    "a_mean_beside_losses_without_a_reduction": Part(MSE, rate=0.002),
    "one_number_for_a_batch_with_sample_weights_and_no_reduction": Part(
        lambda: DICE(reduction=None), SIGMOID, y=IS_POSITIVE, weights=WEIGHTS, rate=0.01
    ),
}
CASES += map(alone, (*PARTS, *PARTS_WITHOUT_REDUCTION))
PARTS |= PARTS_WITHOUT_REDUCTION


# Losses that only data-parallel strategies compute on the whole batch.


def views(combine, axis):
    """Returns a function of an input: two views of each example, one below the other or side by side."""

    def outputs(x):
        layer = keras.layers.Dense(3, kernel_initializer=keras.initializers.GlorotUniform(seed=1))
        return combine([layer(x), layer(x * 1.1 + 0.1)], axis=axis)

    return outputs


def nt_xent(_, z):
    """The loss of SimCLR: rows i and i + n are views of one example."""
    if len(z.shape) == 3:
        z = ops.concatenate([z[:, 0], z[:, 1]], axis=0)
    z = ops.normalize(z, axis=-1)
    n = ops.shape(z)[0] // 2
    logits = ops.matmul(z, ops.transpose(z)) - 1e9 * ops.eye(2 * n)
    pairs = ops.concatenate([ops.arange(n) + n, ops.arange(n)], axis=0)
    return ops.mean(keras.losses.sparse_categorical_crossentropy(pairs, logits, from_logits=True))


BY_CLASS = dense(activation="sigmoid", kernel_constraint="unit_norm")
PARTS_OF_WHOLE_BATCHES = {
    "one_number_that_compares_two_views": Part(lambda: nt_xent, views(ops.stack, 1)),
    "one_number_of_more_rows_than_examples_in_any_order": Part(
        lambda: lambda _, z: ops.logsumexp(ops.square(z)), views(ops.concatenate, 0)
    ),
    "a_loss_of_keras_over_the_examples": Part(lambda: DICE(axis=(0,)), BY_CLASS, y=IS_POSITIVE, rate=0.5),
    "a_loss_of_keras_over_the_examples_by_a_negative_axis": Part(
        lambda: keras.losses.Tversky(axis=-2), BY_CLASS, y=IS_POSITIVE, rate=0.5
    ),
}
PARTS_BY_CLASS = {
    "a_number_for_each_class_and_no_reduction": Part(
        lambda: DICE(axis=(0,), reduction=None), dense(3, "sigmoid"), y=IS_POSITIVE, rate=0.1
    ),
    "a_mean_beside_a_number_for_each_class": Part(MSE, rate=0.002),
}
PARTS |= PARTS_OF_WHOLE_BATCHES | PARTS_BY_CLASS


@whole_batch_case
def one_number_of_a_loss_that_reads_weights_and_gets_infinite_logits(scope):
    """What flows to the weights from the loss itself counts once, not once for each replica."""

    def build():
        inputs = keras.Input((4,))
        return keras.Model(inputs, keras.layers.Dense(3)(inputs) + ops.array([0.0, 0.0, -np.inf]))

    with scope():
        model = build()

    def loss(y_true, logits):
        penalty = 0.1 * ops.sum(ops.square(model.layers[1].kernel))
        return penalty - ops.mean(ops.take_along_axis(ops.log_softmax(logits), ops.cast(y_true, "int32"), axis=1))

    return trained(scope, lambda: model, y=IS_POSITIVE[:SHORT], loss=loss)


def f1(y_true, y_pred):
    positive = ops.cast(y_true, "float32")
    return 2 * ops.sum(positive * y_pred) / (ops.sum(positive) + ops.sum(y_pred))


def masked_accuracy(y_true, y_pred):
    """NaN for a part of a batch that has no positives."""
    counted = ops.cast(y_true > 0, "float32")
    return ops.sum(ops.cast(y_pred > 0.5, "float32") * counted) / ops.sum(counted)


@whole_batch_case
def metric_functions_of_one_number(scope):
    y = (np.arange(SHORT)[:, None] % BATCH < 3).astype("int32")  # The first replica has all positives of a batch.
    compiled = {"metrics": [f1, masked_accuracy], "steps_per_execution": 3}
    return trained(scope, lambda: linear(activation="sigmoid"), y=y, loss="binary_crossentropy", **compiled)


# Losses that need a model of their own.


class OwnReduction(keras.Model):
    """Weights a loss for each example, and takes the mean itself."""

    per_example = MSE(reduction=None)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = ops.mean(self.per_example(y, self(x)) * ops.abs(x[:, 0]))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        self.tracker.update_state(loss, sample_weight=ops.shape(x)[0])
        return {"loss": self.tracker.result()}

    def build(self, shape):
        super().build(shape)
        self.tracker = keras.metrics.Mean(name="loss")


@case
def an_own_mean_of_losses_without_a_reduction(scope):
    return trained(scope, lambda: linear(OwnReduction), loss="mse")


@case
def one_number_for_a_batch_with_weights_of_classes(scope):
    y, weights = (Y[:SHORT] > 0).astype("int32"), {0: 0.5, 1: 3.0}
    return trained(scope, lambda: linear(activation="sigmoid"), y=y, loss=mean_of_the_batch, class_weight=weights)


@case
def fewer_examples_than_replicas_for_a_layer_that_refuses_unknown_ones(scope):
    with scope():
        inputs = keras.Input((1,), dtype="string")
        numbers = keras.layers.StringLookup(vocabulary=["a", "b", "c"], num_oov_indices=0)(inputs)
        model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="ones")(ops.cast(numbers, "float32")))
        model.compile("sgd", "mse")
    x, y = tf.constant([["a"], ["b"], ["c"], ["a"]]), np.ones((4, 1), "float32")
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(3)  # The last batch has one example.
    return {
        **model.fit(dataset, epochs=2, verbose=0).history,
        "evaluate": model.evaluate(dataset, verbose=0),
        "predict": model.predict(x[:1], verbose=0).ravel().tolist(),
        "weights": [w.ravel().tolist() for w in model.get_weights()],
    }


@case
def ragged_batches_of_fewer_examples_than_replicas(scope):
    values = tf.ragged.constant([[1.0], [2.0, 3.0], [4.0], [5.0, 1.0]])
    dataset = tf.data.Dataset.from_tensor_slices(values).batch(3)  # The last batch has one example, and no dense tensor.

    class Mean(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1, kernel_initializer="ones")
            self.tracker = keras.metrics.Mean(name="mean")

        @property
        def metrics(self):
            return [self.tracker]

        def build(self, shape):
            self.dense.build((None, 1))

        def call(self, x):
            return self.dense(tf.reduce_mean(x, axis=1)[:, None])

        def train_step(self, x):
            with tf.GradientTape() as tape:
                y_pred = self(x)
                loss = tf.reduce_mean(tf.square(y_pred))
            self.optimizer.apply_gradients(
                zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables, strict=True)
            )
            self.tracker.update_state(y_pred)
            return {"mean": self.tracker.result()}

    with scope():
        model = Mean()
        model.build(None)
        model.compile("sgd")
    record = model.fit(dataset, epochs=2, verbose=0).history
    predicted = model.predict(dataset, verbose=0).ravel().tolist()
    return {**record, "predict": predicted, "weights": [w.ravel().tolist() for w in model.get_weights()]}
