"""Metrics and losses of models with a `train_step` of their own: cases like those of own_steps.py."""

import keras
import tensorflow as tf
from cases import Cases
from losses import PARTS, Part, dense, trained_together
from own_steps import OwnStep, X, Y, weights_of

case = CASES = Cases()


class MeanOfBatches(keras.metrics.Metric):
    """Adds two numbers for each batch: the mean of its errors, and 1."""

    def __init__(self, name):
        super().__init__(name=name)
        self.total, self.count = (self.add_weight(name=each, initializer="zeros") for each in ("total", "count"))

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(tf.reduce_mean(tf.abs(y_true - y_pred)))
        self.count.assign_add(1.0)

    def result(self):
        return self.total / self.count


class SumOfBatches(MeanOfBatches):
    def result(self):
        return 1.0 * self.total


class ErrorsOfABatch(MeanOfBatches):
    """Adds a sum over the examples, and 1 for each batch."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(tf.reduce_sum(tf.abs(y_true - y_pred)))
        self.count.assign_add(1.0)


class Counted(OwnStep):
    """Its metrics get numbers of a batch. One makes its variables with the first batch."""

    def __init__(self):
        super().__init__()
        self.sum, self.f1 = keras.metrics.Sum(name="sum"), keras.metrics.F1Score("micro", 0.5, name="f1")
        self.errors = keras.metrics.Mean(name="errors")

    def count(self, x, y):
        guess = self(x)
        self.sum.update_state(tf.reduce_mean(tf.square(guess - y)))
        self.f1.update_state(tf.cast(y > 1, tf.float32), guess)
        self.errors.update_state(tf.reduce_sum(tf.abs(guess - y)))
        return {"sum": self.sum.result(), "f1": self.f1.result(), "errors": self.errors.result()}

    def train_step(self, data):
        super().train_step(data)
        return self.count(*data)

    def test_step(self, data):
        return self.count(*data)


def own_metrics():
    return [MeanOfBatches("mean"), SumOfBatches("total"), ErrorsOfABatch("errors")]


@case
def metrics_that_get_numbers_of_a_batch(scope):
    """The last of the batches has one example."""
    with scope():
        counted = Counted()
        counted.compile(keras.optimizers.SGD(0.02), "mse")
        standard = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        standard.compile(keras.optimizers.SGD(0.02), "mse", metrics=own_metrics())
        evaluated = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        evaluated.compile("sgd", "mse", metrics=own_metrics())
    arguments = {"batch_size": 83, "verbose": 0, "epochs": 2, "shuffle": False}
    record = counted.fit(X[:240], Y[:240], validation_data=(X[:55], Y[:55]), **arguments).history
    results = {f"counted {name}": values for name, values in record.items()}
    results |= standard.fit(X[:250], Y[:250], **arguments).history
    evaluated.set_weights(standard.get_weights())
    return results | {"evaluated": [float(v) for v in evaluated.evaluate(X[:240], Y[:240], batch_size=83, verbose=0)]}


class Scaled(OwnStep):
    """Its losses are those of TensorFlow's loops for several replicas: one that says how large a batch is, and one that does not."""

    def __init__(self):
        super().__init__()
        self.other = keras.layers.Dense(1, kernel_regularizer=keras.regularizers.L2(0.1))
        for layer in (self.dense, self.other):
            layer.build((None, 4))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            errors = [tf.square(layer(x) - y)[:, 0] for layer in (self.dense, self.other)]
            logs = {
                "said": tf.nn.compute_average_loss(errors[0], global_batch_size=50),
                "not said": tf.compat.v2.nn.compute_average_loss(errors[1]),
                "weights": tf.compat.v2.nn.scale_regularization_loss(tf.add_n(self.losses)),
            }
            loss = tf.add_n([*logs.values()])
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return logs


@case
def losses_that_tensorflow_scales(scope):
    with scope():
        model = Scaled()
        model.compile(keras.optimizers.SGD(0.02))
    record = model.fit(X, Y, batch_size=25, epochs=2, verbose=0, shuffle=False).history
    numbers = [float(model.optimizer.learning_rate), int(model.optimizer.iterations)]
    return {**record, "values": weights_of(model), "numbers": numbers}


class Entropy(keras.losses.Loss):
    """Overrides `__call__` and compares the examples, as losses for clustering do."""

    def __call__(self, y_true, y_pred, sample_weight=None):
        shares = tf.reduce_mean(tf.nn.softmax(y_pred), axis=0)
        return tf.reduce_sum(shares * tf.math.log(shares))


class Halved(keras.losses.MeanSquaredError):
    """Overrides `__call__` with a parameter more, and leaves the reduction to Keras."""

    def __call__(self, y_true, y_pred, sample_weight=None, scale=0.5):
        return scale * super().__call__(y_true, y_pred, sample_weight)


OVERRIDING = {
    "a_loss_that_overrides_call_and_compares_examples": Part(Entropy, dense(3, kernel_initializer="glorot_uniform")),
    "a_loss_that_overrides_call_and_leaves_the_reduction_to_keras": Part(Halved),
}
PARTS |= OVERRIDING


@case
def losses_that_override_call(scope):
    return trained_together(scope, OVERRIDING)


class OfPairs(keras.Model):
    """Its batches are pairs of a clean and a noisy batch, each with classes: the targets of Keras' batches are the noisy pair."""

    def __init__(self):
        super().__init__()
        self.student = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])

    def call(self, x):
        return self.student(x)

    def train_step(self, data):
        (_, _), (x, classes) = data
        with tf.GradientTape() as tape:
            guess = self(x)
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(classes, guess, from_logits=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        for metric in self.metrics:
            if metric.name != "loss":
                metric.update_state(classes, guess)
        return {"error": loss, **{metric.name: metric.result() for metric in self.metrics}}  # That of `compile` is a dict.


@case
def metrics_of_an_own_train_step_whose_batches_are_pairs(scope):
    with scope():
        model = OfPairs()
        model.compile(keras.optimizers.SGD(0.02), metrics=["accuracy"])
    batches = tf.data.Dataset.from_tensor_slices((X, (Y[:, 0] > 0).astype("int64"))).batch(25)
    record = model.fit(tf.data.Dataset.zip((batches, batches)), epochs=2, verbose=0).history
    return {"accuracy": record["accuracy"], "error": record["error"], "weights": weights_of(model)}


@case
def metrics_of_an_own_train_step_that_makes_probabilities_of_classes(scope):
    """What "accuracy" means follows from the targets that the step passes on, as of MixUp, not from those of its batches."""

    class Mixed(keras.Model):
        def train_step(self, data):
            x, classes = data
            return super().train_step((x, 0.75 * tf.one_hot(classes, 3) + 0.125))

    with scope():
        x = keras.Input((4,))
        model = Mixed(x, keras.layers.Dense(3, activation="softmax")(x))
        model.compile(keras.optimizers.SGD(0.02), "categorical_crossentropy", metrics=["accuracy"], weighted_metrics=["acc"])
    record = model.fit(X, (Y[:, 0] > 0).astype("int64"), batch_size=24, epochs=2, verbose=0, shuffle=False).history
    return {**record, "weights": weights_of(model)}


class OfFunctions(ErrorsOfABatch):
    @tf.function
    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(y_true, y_pred)

    @tf.function
    def result(self):
        return super().result()


@case
def a_metric_whose_methods_are_functions(scope):
    """The step, its logs and the program call the same functions."""
    with scope():
        metric = OfFunctions("errors")
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.02), "mse", metrics=[metric])
    record = model.fit(X[:240], Y[:240], batch_size=24, epochs=2, verbose=0, shuffle=False).history
    evaluated = [float(value) for value in model.evaluate(X[:55], Y[:55], batch_size=24, verbose=0)]
    results = [float(metric.result())]
    metric.update_state(Y[:24], model(X[:24]))
    return {**record, "evaluated": evaluated, "results": [*results, float(metric.result())]}
