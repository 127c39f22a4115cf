"""Losses of every form, for programs that compare several replicas with one process: functions of the scope to train under."""

import os

import keras
import numpy as np
import tensorflow as tf
from keras import ops

N = 65  # Batches of 16, which three replicas cannot share evenly, and one of a single example.
X = np.random.default_rng(0).normal(size=(N, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
WEIGHTS = np.random.default_rng(1).uniform(0.5, 2, size=N).astype("float32")
ALL = os.environ.get("TFDIST_TESTS") == "all"  # As tests/support/selection.py has it for tests.
CASES = []
WHOLE_BATCH_CASES = []  # Of data-parallel strategies only.


def case(function):
    CASES.append(function)
    return function


def whole_batch_case(function):
    WHOLE_BATCH_CASES.append(function)
    return function


def trained(scope, build, x=X, y=Y, rate=0.05, **compiled):
    """Trains three epochs; returns history, evaluation and weights."""
    fitted = {key: compiled.pop(key) for key in ("sample_weight", "class_weight") if key in compiled}
    with scope():
        model = build()
        model.compile(optimizer=keras.optimizers.SGD(rate), **compiled)
    record = model.fit(x, y, batch_size=16, epochs=3, shuffle=False, verbose=0, **fitted).history
    fitted.pop("class_weight", None)
    return {
        **record,
        "evaluate": model.evaluate(x, y, batch_size=16, verbose=0, **fitted),
        "weights": [w.ravel().tolist() for w in model.get_weights()],
    }


def linear(kind=keras.Model, **arguments):
    inputs = keras.Input((4,))
    return kind(inputs, keras.layers.Dense(1, kernel_initializer="zeros", **arguments)(inputs))


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


class Squares(keras.layers.Layer):
    def call(self, x):
        self.add_loss(0.1 * ops.mean(ops.square(x)))
        return x


@case
def an_added_loss_beside_one_number_for_a_batch(scope):
    """Replicas of a group take turns between the two."""

    def build():
        inputs = keras.Input((4,))
        return keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="zeros")(Squares()(keras.layers.Dense(3)(inputs))))

    return trained(scope, build, loss=mean_of_the_batch)


class Endpoint(keras.layers.Layer):
    """Keras' endpoint layer: takes the targets as an input and adds the loss."""

    def __init__(self):
        super().__init__()
        self.loss_fn = keras.losses.MeanSquaredError()

    def call(self, inputs):
        y_pred, y_true = inputs
        self.add_loss(self.loss_fn(y_true, y_pred))
        return y_pred


@case
def a_loss_function_that_returns_a_mean(scope):
    return trained(scope, linear, loss=mean_of_the_batch)


@case
def a_loss_function_that_returns_a_mean_with_steps_per_execution(scope):
    return trained(scope, linear, loss=mean_of_the_batch, steps_per_execution=3)


@case
def a_loss_function_that_returns_a_sum(scope):
    return trained(scope, linear, loss=sum_of_the_batch, rate=0.002)


@case
def a_loss_class_that_returns_neither(scope):
    return trained(scope, linear, loss=LogSumExp())


@case
def a_loss_class_with_a_sum_inside(scope):
    return trained(scope, linear, loss=SumInside())


@case
def a_reduction_by_sum(scope):
    return trained(scope, linear, loss=keras.losses.MeanSquaredError(reduction="sum"), rate=0.002)


@case
def no_reduction(scope):
    return trained(scope, linear, loss=keras.losses.MeanSquaredError(reduction=None), rate=0.002)


@case
def no_reduction_of_one_of_two_outputs(scope):
    def build():
        inputs = keras.Input((4,))
        return keras.Model(inputs, [keras.layers.Dense(1, kernel_initializer="zeros", name=name)(inputs) for name in "ab"])

    losses = [keras.losses.MeanSquaredError(reduction=None), keras.losses.MeanSquaredError()]
    return trained(scope, build, y=[Y, 2 * Y], loss=losses, rate=0.002)


class OwnReduction(keras.Model):
    """Weights a loss for each example, and takes the mean itself."""

    per_example = keras.losses.MeanSquaredError(reduction=None)

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
def a_mean_over_sample_weights(scope):
    loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    return trained(scope, linear, loss=loss, sample_weight=WEIGHTS)


@case
def a_mean_over_what_a_mask_leaves(scope):
    x = np.random.default_rng(2).integers(0, 4, size=(N, 5))  # 0 is masked.

    def build():
        inputs = keras.Input((5,), dtype="int32")
        embedded = keras.layers.Embedding(4, 3, mask_zero=True, embeddings_initializer="ones")(inputs)
        return keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="ones")(embedded))

    return trained(scope, build, x=x, y=x[:, :, None].astype("float32"), loss="mse")


class Views(keras.Model):
    """Two views of each example: one below the other, or side by side."""

    def __init__(self, axis):
        super().__init__()
        self.axis, self.dense = axis, keras.layers.Dense(3)
        self.build((None, 4))

    def call(self, x):
        combine = ops.concatenate if self.axis == 0 else ops.stack
        return combine([self.dense(x), self.dense(x * 1.1 + 0.1)], axis=self.axis)


def nt_xent(_, z):
    """The loss of SimCLR: rows i and i + n are views of one example."""
    if len(z.shape) == 3:
        z = ops.concatenate([z[:, 0], z[:, 1]], axis=0)
    z = ops.normalize(z, axis=-1)
    n = ops.shape(z)[0] // 2
    logits = ops.matmul(z, ops.transpose(z)) - 1e9 * ops.eye(2 * n)
    pairs = ops.concatenate([ops.arange(n) + n, ops.arange(n)], axis=0)
    return ops.mean(keras.losses.sparse_categorical_crossentropy(pairs, logits, from_logits=True))


@whole_batch_case
def one_number_that_compares_two_views(scope):
    return trained(scope, lambda: Views(1), loss=nt_xent)


@whole_batch_case
def one_number_of_more_rows_than_examples_in_any_order(scope):
    return trained(scope, lambda: Views(0), loss=lambda _, z: ops.logsumexp(ops.square(z)))


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

    return trained(scope, lambda: model, y=(Y > 0).astype("float32"), loss=loss)


@whole_batch_case
def a_loss_of_keras_with_a_number_for_each_class(scope):
    def build():
        return linear(activation="sigmoid", kernel_constraint="unit_norm")

    y = (Y > 0).astype("float32")
    return {
        type(loss).__name__: trained(scope, build, y=y, loss=loss, rate=0.5)
        for loss in (keras.losses.Dice(axis=(0,)), keras.losses.Tversky(axis=-2))
    }


def f1(y_true, y_pred):
    positive = ops.cast(y_true, "float32")
    return 2 * ops.sum(positive * y_pred) / (ops.sum(positive) + ops.sum(y_pred))


def masked_accuracy(y_true, y_pred):
    """NaN for a part of a batch that has no positives."""
    counted = ops.cast(y_true > 0, "float32")
    return ops.sum(ops.cast(y_pred > 0.5, "float32") * counted) / ops.sum(counted)


@whole_batch_case
def metric_functions_of_one_number(scope):
    y = (np.arange(N)[:, None] % 16 < 3).astype("int32")  # The first replica has all positives of a batch.
    results = {}
    for steps in (1, 3) if ALL else (3,):
        compiled = {"metrics": [f1, masked_accuracy], "steps_per_execution": steps}
        results[f"{steps}"] = trained(scope, sigmoid, y=y, loss="binary_crossentropy", **compiled)
    return results


def sigmoid():
    return linear(activation="sigmoid")


@case
def one_number_for_a_batch_with_sample_weights(scope):
    return trained(scope, sigmoid, y=(Y > 0).astype("float32"), loss=keras.losses.Dice(), sample_weight=WEIGHTS, rate=0.5)


@case
def one_number_for_a_batch_with_weights_of_classes(scope):
    return trained(scope, sigmoid, y=(Y > 0).astype("int32"), loss=mean_of_the_batch, class_weight={0: 0.5, 1: 3.0})


@case
def one_number_for_a_batch_with_sample_weights_and_no_reduction(scope):
    loss = keras.losses.Dice(reduction=None)
    return trained(scope, sigmoid, y=(Y > 0).astype("float32"), loss=loss, sample_weight=WEIGHTS, rate=0.01)


@case
def one_number_for_a_batch_with_a_mask(scope):
    x = np.random.default_rng(2).normal(size=(N, 5, 4)).astype("float32")
    x[np.arange(5) > np.arange(N)[:, None] % 5] = 0

    def build():
        inputs = keras.Input((5, 4))
        masked = keras.layers.Masking()(inputs)
        return keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="zeros")(masked))

    return trained(scope, build, x=x, y=x.sum(axis=-1, keepdims=True), loss=mean_of_the_batch)


@case
def one_number_for_a_batch_of_probabilities(scope):
    """Keras takes the logits of a softmax or sigmoid, because probabilities may be rounded to 0 and 1."""

    def build():
        inputs, large = keras.Input((4,)), keras.initializers.RandomNormal(stddev=20, seed=1)
        outputs = {
            "kind": keras.layers.Dense(3, "softmax", kernel_initializer=large)(inputs),
            "odds": keras.layers.Dense(1, "sigmoid", kernel_initializer=large)(inputs),
        }
        return keras.Model(inputs, outputs)

    def kind(y_true, y_pred):
        return ops.mean(keras.losses.sparse_categorical_crossentropy(y_true, y_pred))

    def odds(y_true, y_pred):
        return ops.mean(keras.losses.binary_crossentropy(y_true, y_pred))

    is_positive = (Y > 0).astype("float32")
    return trained(scope, build, y={"kind": is_positive, "odds": is_positive}, loss={"kind": kind, "odds": odds})


@case
def a_keras_loss_in_add_loss(scope):
    def build():
        inputs, targets = keras.Input((4,)), keras.Input((1,))
        y_pred = keras.layers.Dense(1, kernel_initializer="zeros")(inputs)
        return keras.Model([inputs, targets], Endpoint()([y_pred, targets]))

    return trained(scope, build, x=[X, Y], y=None)


@case
def regularizers_of_kernels_and_activities(scope):
    return trained(scope, lambda: linear(kernel_regularizer="l2", activity_regularizer="l2"), loss="mse")


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
