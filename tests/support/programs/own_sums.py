"""Sums over a batch in steps and losses of the user's, optimizers that compute with gradients, and what comes once for a batch:
cases like those of own_steps.py."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from own_steps import X, Y, weights_of

CASES = []
ARGUMENTS = {"batch_size": 25, "epochs": 2, "shuffle": False, "verbose": 0}


def case(function):
    CASES.append(function)
    return function


class Sums(keras.Model):
    """Takes gradients of a sum over the batch, and returns sums of it."""

    def __init__(self, drops=False):
        super().__init__()
        more = [layers.Dropout(1e-9)] if drops else []
        self.net = keras.Sequential([keras.Input((4,)), layers.Dense(3, activation="tanh"), *more, layers.Dense(1)])
        self.tracker = keras.metrics.Mean(name="tracker")

    def counted(self, x, y):
        errors = ops.abs(self.net(x) - y)
        return {"errors": ops.sum(errors), "near": ops.sum(ops.cast(errors < 1, "int32")), "inner": {"rows": tf.shape(x)[0]}}

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = ops.sum(ops.square(self.net(x, training=True) - y))
        self.optimizer.apply(tape.gradient(loss, self.net.trainable_variables), self.net.trainable_variables)
        self.tracker.update_state(loss)
        return {"loss": loss, "tracker": self.tracker.result(), **self.counted(x, y)}

    def test_step(self, data):
        return self.counted(*data)


class SumsOfTargets(Sums):
    """Takes gradients of two sums at once, and of numbers for each example with `output_gradients`."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            errors = ops.abs(self.net(x, training=True) - y)
            losses = [ops.sum(errors), ops.mean(ops.square(errors), axis=-1)]
        first, second = self.net.layers[0].trainable_variables, self.net.layers[-1].trainable_variables
        gradients = tape.gradient(losses, first)
        gradients += tape.gradient(losses[1], second, output_gradients=2 * tf.ones_like(losses[1]))
        self.optimizer.apply(gradients, [*first, *second])
        return self.counted(x, y)


class SumOfErrors(keras.Model):
    """Its own `compute_loss` adds up."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(1)

    def call(self, x):
        return self.dense(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.sum(ops.square(y - y_pred))


@case
def sums_over_the_batch(scope):
    results = {}
    for name, make in {
        "step": Sums,
        "random step": lambda: Sums(drops=True),
        "targets": SumsOfTargets,
        "loss": SumOfErrors,
    }.items():
        with scope():
            model = make()
            model.compile(keras.optimizers.SGD(0.001))
        record = model.fit(X, Y, **ARGUMENTS, validation_data=(X[:55], Y[:55])).history
        results |= {f"{name} {log}": values for log, values in record.items()} | {f"{name} weights": weights_of(model)}
    return results


@case
def a_model_of_the_same_weights_with_another_loss(scope):
    """It takes gradients of means where the first takes those of sums."""
    with scope():
        first = Sums()
        first.compile(keras.optimizers.SGD(0.001))
    first.fit(X, Y, **ARGUMENTS)
    with scope():
        second = keras.Sequential([keras.Input((4,)), *first.net.layers])
        second.compile(keras.optimizers.SGD(0.02), "mse")
    record = second.fit(X, Y, **ARGUMENTS).history
    return {**record, "weights": weights_of(second)}


class Signs(keras.optimizers.SGD):
    def apply(self, grads, trainable_variables=None):
        super().apply([ops.sign(gradient) for gradient in grads], trainable_variables)


class Clips(keras.optimizers.Adam):
    def apply_gradients(self, grads_and_vars):
        gradients, variables = zip(*grads_and_vars, strict=True)
        super().apply_gradients(zip(tf.clip_by_global_norm(gradients, 0.1)[0], variables, strict=True))


class Switches(keras.optimizers.Optimizer):
    """Lets another optimizer update, with weights that it draws."""

    def __init__(self, inner):
        super().__init__(learning_rate=1.0)
        self.inner = inner

    def build(self, variables):
        super().build(variables)
        self.inner.build(variables)
        self.largest = self.add_variable(shape=(), initializer="zeros", name="largest")

    def apply(self, grads, trainable_variables=None):
        self.largest.assign(ops.maximum(self.largest, tf.linalg.global_norm(grads)))
        self.inner.apply([gradient / self.largest for gradient in grads], trainable_variables)


@case
def optimizers_that_change_gradients(scope):
    results = {}
    for name, make in {
        "apply": lambda: Signs(0.01),
        "apply_gradients": lambda: Clips(0.01),
        "apply_gradients after XLA": lambda: Clips(0.01),
        "another": lambda: Switches(keras.optimizers.Adam(0.01)),
        "scaled": lambda: keras.optimizers.LossScaleOptimizer(Signs(0.01)),
    }.items():
        with scope():
            model = keras.Sequential([keras.Input((4,)), layers.Dense(3, activation="tanh"), layers.Dense(1)])
            model.compile(make(), "mse", jit_compile=name.endswith("XLA"))
            model.optimizer.build(model.trainable_variables)
        results |= {name: model.fit(X, Y, **ARGUMENTS).history["loss"], f"{name} weights": weights_of(model)}
    return results


class Codes(keras.Model):
    """Predicts a table, and its inverse, beside a number for each example."""

    def __init__(self):
        super().__init__()
        self.dense, self.codes = layers.Dense(1), self.add_weight(shape=(3, 3), name="codes")

    def call(self, x):
        return {"y": self.dense(x), "codes": ops.convert_to_tensor(self.codes), "inverse": ops.inv(self.codes)[None]}


@case
def predictions_that_are_no_rows(scope):
    with scope():
        model = Codes()
    return {name: value.tolist() for name, value in model.predict(X[:50], batch_size=25, verbose=0).items()}


class Counts(keras.Model):
    """Counts in its `predict_step`."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(1)
        self.rows = self.add_weight(initializer="zeros", trainable=False, aggregation="sum")
        self.sum, self.steps = keras.metrics.Sum(), keras.metrics.Sum()
        self.mean = keras.metrics.Mean()
        self.largest = keras.metrics.MeanMetricWrapper(lambda y_true, y_pred: ops.max(y_pred))

    def call(self, x):
        return self.dense(x)

    def predict_step(self, x):
        y = self(x)
        self.rows.assign_add(ops.cast(ops.shape(x)[0], "float32"))
        self.sum.update_state(y)
        self.steps.update_state(1)
        self.mean.update_state(ops.mean(y))
        self.largest.update_state(y, y)
        return y


@case
def what_predict_counts(scope):
    """The last batch has fewer examples than there are replicas."""
    with scope():
        model = Counts()
    results = {"predicted": model.predict(X[:13], batch_size=4, verbose=0)[:, 0].tolist(), "rows": float(model.rows.numpy())}
    return results | {name: float(getattr(model, name).result()) for name in ("sum", "steps", "mean", "largest")}


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


class Numbers(keras.Model):
    """Predicts one number for a batch beside one for each example."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(1)

    def call(self, x):
        return self.dense(x)

    def predict_step(self, x):
        loss = keras.losses.MeanSquaredError()
        return {"y": self(x), "mean": ops.mean(self(x)), "loss": loss(x[:, :1], self(x)), "version": 7, "bias": self.dense.bias}


@case
def numbers_of_a_batch_that_predict_returns(scope):
    with scope():
        model = Numbers()
    predicted = (model.predict(X[:13], batch_size=4, verbose=0), model.predict(X[:4], verbose=0))
    return {f"{name} {number}": each[name].tolist() for number, each in enumerate(predicted) for name in each}


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


@case
def losses_of_whole_batches_of_changing_sizes(scope):
    """Of 3 examples and of 1 the second replica has one, real or repeated, and the first one another number."""

    def log_sum(y_true, y_pred):
        return ops.logsumexp(y_pred - y_true)

    with scope():
        model = keras.Sequential([keras.Input((4,)), layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), log_sum, metrics=[log_sum])
    logs = [getattr(model, f"{name}_on_batch")(X[:n], Y[:n]) for name in ("train", "test") for n in (3, 1, 5)]
    return {"logs": np.array(logs, float).ravel().tolist(), "weights": weights_of(model)}


@case
def spectrograms(scope):
    """Silent and loud examples are on different replicas."""
    sounds = np.sin(np.arange(256) / 3.0) * 10.0 ** -np.arange(12)[:, None]
    with scope():
        options = {"fft_length": 64, "sequence_stride": 32, "sampling_rate": 256, "num_mel_bins": 4}
        spectrogram = layers.MelSpectrogram(**options, min_freq=10, max_freq=100)
        model = keras.Sequential([keras.Input((256,)), spectrogram, layers.Flatten(), layers.Dense(1)])
        model.compile(keras.optimizers.SGD(1e-7), "mse")
    record = model.fit(sounds, np.ones(12), batch_size=6, epochs=2, shuffle=False, verbose=0).history
    predicted = model.predict(sounds, batch_size=12, verbose=0)[:, 0].tolist()
    return {**record, "predicted": predicted, "evaluated": model.evaluate(sounds, np.ones(12), batch_size=5, verbose=0)}
