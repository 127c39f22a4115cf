"""Sums over a batch in steps and losses of the user's, optimizers that compute with gradients, and what comes once for a batch:
cases like those of own_steps.py."""

import keras
import numpy as np
import tensorflow as tf
from cases import Cases
from keras import layers, ops
from own_steps import X, Y, weights_of

case = CASES = Cases()
ARGUMENTS = {"batch_size": 25, "epochs": 2, "shuffle": False, "verbose": 0}


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
        held = {"validation_data": (X[:55], Y[:55])} if name in ("step", "loss") else {}  # Others are tested as the first.
        record = model.fit(X, Y, **ARGUMENTS, **held).history
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
            model = keras.Sequential([keras.Input((4,)), layers.Dense(1)])
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


class Shapes(keras.Model):
    """Predicts what has another form than a dense tensor, and what is empty."""

    def call(self, x):
        ragged = tf.RaggedTensor.from_tensor(x, lengths=tf.cast(x[:, 0], tf.int64))
        return {
            "ragged": tf.stack([ragged, 2 * ragged], axis=1),
            "texts": tf.strings.as_string(tf.cast(ragged, tf.int32)),
            "truths": ragged > 1.5,
            "sparse": tf.sparse.from_dense(tf.where(x > 2, x, 0.0)),
            "nothing sparse": tf.sparse.from_dense(tf.where(x > 9, x, 0.0)),
            "nothing ragged": tf.RaggedTensor.from_tensor(x, padding=-1.0)[:, :0],
            "no values": x[:, :0],
            "no rows": tf.boolean_mask(x, x[:, 0] > 9),
        }


@case
def predictions_of_other_forms_than_dense_tensors(scope):
    """Batches of 3, 3 and 1 examples, and the first alone, which has an empty row."""
    x = (np.arange(28).reshape(7, 4) % 5).astype("float32")
    results = {}
    for name, rows in (("several", x), ("one", x[:1])):
        with scope():
            model = Shapes()
        for kind, value in model.predict(rows, batch_size=3, verbose=0).items():
            shape = [] if isinstance(value, tf.RaggedTensor) else [int(n) for n in value.shape]
            value = tf.sparse.to_dense(value) if isinstance(value, tf.SparseTensor) else value
            if kind == "texts":
                value = tf.ragged.map_flat_values(tf.strings.to_number, value)
            found = value.to_list() if isinstance(value, tf.RaggedTensor) else np.asarray(value).tolist()
            results[f"{kind}, {name}"] = [found, shape]
    return results


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
