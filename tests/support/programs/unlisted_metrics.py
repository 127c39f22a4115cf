"""Metrics that the `metrics` of a model lack, and that Keras does not reset: cases like those of own_steps.py."""

import keras
import numpy as np
import tensorflow as tf
from cases import Cases
from keras import layers, ops
from own_steps import X, Y, weights_of

case = CASES = Cases()


class Batches(keras.metrics.Metric):
    """Counts batches, with the means of their examples, and examples."""

    def __init__(self, **options):
        super().__init__(**options)
        self.means, self.rows = (self.add_variable((), "zeros", name=name) for name in ("means", "rows"))

    def update_state(self, values):
        self.means.assign_add(1.0 + ops.mean(values))
        self.rows.assign_add(ops.cast(ops.shape(values)[0], "float32"))

    def result(self):
        return self.means + 100.0 * self.rows


class Inner(keras.Model):
    """Counts what it returns, in a metric that the metrics of a model with it do not list."""

    def __init__(self):
        super().__init__()
        self.dense, self.batches = layers.Dense(1), Batches()

    def call(self, x):
        y = self.dense(x)
        self.batches.update_state(y)
        return y


class Outer(keras.Model):
    """Has a model with a metric, and a metric that it does not list."""

    def __init__(self):
        super().__init__()
        self.inner, self.unlisted = Inner(), Batches()

    @property
    def metrics(self):
        return []

    def call(self, x):
        return self.inner(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x)
            loss = ops.mean(ops.square(predicted - y))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        self.unlisted.update_state(predicted)
        return {"inner": self.inner.batches.result(), "unlisted": self.unlisted.result()}


@case
def metrics_that_a_model_does_not_list(scope):
    """The last batch has fewer examples than there are replicas."""
    with scope():
        model = Outer()
        model.compile("sgd")
    record = model.fit(X[:13], Y[:13], batch_size=4, epochs=2, shuffle=False, verbose=0).history
    return {**record, "weights": weights_of(model)}


class Counting(Outer):
    """Counts in `predict` and evaluations, too, also in a metric that it lists."""

    def __init__(self):
        super().__init__()
        self.mean, self.other = keras.metrics.Mean(name="mean"), keras.metrics.Mean(name="other")

    @property
    def metrics(self):
        return [self.mean, self.other]

    def count(self, x):
        self.mean.update_state(x)
        self.other.update_state(x)
        ratio = self.unlisted.result() / (2.0 + self.mean.result())
        return {"mean": self.mean.result(), "ratio": ratio, "both": self.unlisted.result() + self.inner.batches.result()}

    def train_step(self, data):
        return super().train_step(data[:2]) | self.count(data[0])

    def test_step(self, data):
        self.unlisted.update_state(self(data[0]))
        return self.count(data[0])

    def predict_step(self, x):
        self.unlisted.update_state(self(x))
        self.mean.update_state(x)
        return self(x)


def metrics_that_keras_does_not_reset(scope):  # Of group_losses.py.
    """They count on in each epoch, evaluation and prediction, and where callbacks begin them. Other metrics begin anew."""
    with scope():
        model = Counting()
        model.compile("sgd")
    seen, x, y = [], X[:9], Y[:9]
    begun = iter((model.reset_metrics, lambda: model.train_on_batch(x, y), lambda: model.fit(x, y, batch_size=4, verbose=0)))

    def act(epoch, logs):
        model.test_on_batch(
            x, y
        )  # Not in the middle of an epoch: Keras mixes the metrics that it resets with those of the epoch.
        model.evaluate(x, y, batch_size=4, verbose=0)

    def within(batch, logs):
        seen.append([float(logs["both"]), float(model.unlisted.result())])
        if batch == 1 and (begin := next(begun, None)):
            begin()

    acting = keras.callbacks.LambdaCallback(on_epoch_end=act, on_train_batch_end=within)
    arguments = {"batch_size": 4, "epochs": 4, "shuffle": False, "verbose": 0}
    record = model.fit(X[:13], Y[:13], validation_data=(x, y), callbacks=[acting], **arguments).history
    model.predict(x, batch_size=4, verbose=0)
    seen.append([float(metric.result()) for metric in (model.mean, model.unlisted, model.inner.batches)])
    model.compile("sgd")
    record |= {"on batches": [[float(v) for v in model.train_on_batch(x, y, return_dict=True).values()] for _ in range(2)]}
    model.other.reset_state()
    return {**record, "seen": seen, "left": [float(model.mean.result()), float(model.unlisted.result())]}


class OfSparseBatches(keras.Model):
    """Counts examples in a metric that it does not list and in a sum, and sets its learning rate by the batch."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(1)
        self.dense.build((None, 4))
        self.seen = keras.metrics.Sum()
        self.rows = self.add_weight(initializer="zeros", trainable=False, aggregation="sum")

    @property
    def metrics(self):
        return []

    def train_step(self, data):
        x, y = map(tf.sparse.to_dense, data)
        with tf.GradientTape() as tape:
            loss = ops.mean(ops.square(self.dense(x) - y))
        self.seen.update_state(ops.ones_like(y))
        self.rows.assign_add(ops.cast(ops.shape(x)[0], "float32"))
        self.optimizer.learning_rate.assign(0.01 * loss)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"seen": self.seen.result(), "rate": ops.convert_to_tensor(self.optimizer.learning_rate)}


def sparse_batches_with_fewer_examples_than_replicas(scope):  # Of group_losses.py.
    """Of sparse batches no shape tells the number of examples. The last batch has one."""
    with scope():
        model = OfSparseBatches()
        model.compile(keras.optimizers.SGD(0.1))
    batches = tf.data.Dataset.from_tensor_slices((X[:13], Y[:13])).batch(4)
    sparse = batches.map(lambda x, y: (tf.sparse.from_dense(x), tf.sparse.from_dense(y)))
    record = model.fit(sparse, epochs=2, verbose=0).history
    return {**record, "rows": float(model.rows.numpy()), "weights": weights_of(model)}


class CountsAlone(Inner):
    def call(self, x):
        return self.dense(x)

    def predict_step(self, x):
        self.batches.update_state(self(x))
        return {"y": self(x), "mean": ops.mean(self(x))}


@case
def a_metric_that_predict_alone_updates(scope):
    with scope():
        model = CountsAlone()
    model.predict(X[:13], batch_size=4, verbose=0)
    return {"batches": float(model.batches.result())}


class OwnOptimizerStep(keras.Model):
    """A step of its own, so Keras builds "accuracy" with the first batch."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            guess = self(x)
            loss = self.compute_loss(x, y, guess)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        self._loss_tracker.update_state(loss, sample_weight=ops.shape(x)[0])
        return self.compute_metrics(x, y, guess, None)


@case
def a_metric_outside_of_the_scope_beside_one_by_name(scope):
    """The logs of each batch, and the history."""
    outside = keras.metrics.SparseTopKCategoricalAccuracy(2, name="outside")
    classes, seen = np.arange(48) % 3, []
    with scope():
        entry = keras.Input((4,))
        model = OwnOptimizerStep(
            entry, layers.Dense(3, "softmax", kernel_initializer=keras.initializers.GlorotUniform(seed=3))(entry)
        )
        model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy", metrics=["accuracy", outside])
    seeing = keras.callbacks.LambdaCallback(on_train_batch_end=lambda _, logs: seen.append([float(v) for v in logs.values()]))
    record = model.fit(X[:29], classes[:29], batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=[seeing]).history
    return {**record, "seen": seen, "outside": float(outside.result())}
