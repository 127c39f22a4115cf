"""Losses that a model's own `train_step` or `compute_loss` computes: cases as in losses.py."""

import types

import keras
import tensorflow as tf
from keras import ops
from losses import BATCH, IS_POSITIVE, PARTS, SHORT, SIGMOID, WEIGHTS, Part, X, Y, linear, trained, views


class OwnLogs(keras.Model):
    """Returns losses under the name of the metric that `compile` makes, and does not update it: a VAE's `train_step`."""

    def losses_of(self, data):
        x, y = data
        reconstruction = ops.mean(ops.square(self(x) - y))
        return {"loss": 1.5 * reconstruction, "reconstruction_loss": reconstruction}

    def train_step(self, data):
        with tf.GradientTape() as tape:
            found = self.losses_of(data)
        self.optimizer.apply(tape.gradient(found["loss"], self.trainable_variables), self.trainable_variables)
        return found

    def test_step(self, data):
        return self.losses_of(data)


class OwnComputeLoss(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.mean(ops.square(y - y_pred))


class Keeps(keras.Model):
    """Keeps tensors in its `call`, which a loss and a metric of `compile` read, as in many VAEs."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)

    def call(self, x):
        self.codes = self.encoder(x)
        return self.decoder(self.codes)

    def mean_loss(self, y_true, y_pred):
        return ops.mean(ops.square(y_true - y_pred) * ops.exp(self.codes)) + ops.mean(ops.square(self.codes))

    def size_of_codes(self, y_true, y_pred):
        return ops.sum(ops.abs(self.codes))


class ReadsLater(Keeps):
    """Its step reads what `call` has kept after replicas have added up, too: after a layer that does, and after the update."""

    def __init__(self):
        super().__init__()
        self.normalization, self.size = keras.layers.BatchNormalization(synchronized=True), keras.metrics.Mean(name="size")
        self.kept, self.others = {}, types.SimpleNamespace()

    def call(self, x, training=False):
        self.codes = self.kept["codes"] = self.others.codes = self.encoder(x)
        return self.decoder(self.normalization(self.codes, training=training))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True)) + ops.mean(self.kept["codes"] * self.others.codes)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        self.size.update_state(ops.mean(self.codes))
        return {"size": self.size.result()}


class Masks(keras.Model):
    """Predicts which inputs a recurrent layer does not drop out, at each step of a sequence."""

    def __init__(self):
        super().__init__()
        kernels = {"kernel_initializer": "identity", "recurrent_initializer": "zeros"}
        self.recurrent = keras.layers.SimpleRNN(
            32, activation=None, use_bias=False, dropout=0.5, recurrent_dropout=0.5, return_sequences=True, **kernels
        )

    def call(self, x):
        return self.recurrent(x)

    def predict_step(self, x):
        return self.recurrent(x, training=True) != 0


class LowerLevel(keras.Model):
    """The train_step of Keras' guide, at a lower level: its own loss and its own tracker."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.tracker = keras.metrics.Mean(name="loss")
        self.loss_fn = keras.losses.MeanSquaredError()

    @property
    def metrics(self):
        return [self.tracker]

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.loss_fn(y, self(x, training=True))
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables, strict=True)
        )
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}

    def test_step(self, data):
        x, y = data
        self.tracker.update_state(self.loss_fn(y, self(x, training=False)))
        return {"loss": self.tracker.result()}


class GAN(keras.Model):
    """Two models, two optimizers, a train_step and no call."""

    def __init__(self, discriminator, generator):
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator
        self.trackers = [keras.metrics.Mean(name="d_loss"), keras.metrics.Mean(name="g_loss")]

    @property
    def metrics(self):
        return self.trackers

    def compile(self):
        super().compile()
        self.optimizers = [keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.01)]
        self.d_optimizer, self.g_optimizer = self.optimizers
        self.loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)

    def train_step(self, real):
        ones = tf.ones((tf.shape(real)[0], 1))
        with tf.GradientTape() as tape:
            both = tf.concat([self.generator(real[:, :2]), real], axis=0)
            d_loss = self.loss_fn(tf.concat([ones, 0 * ones], axis=0), self.discriminator(both))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply_gradients(zip(tape.gradient(d_loss, weights), weights, strict=True))
        with tf.GradientTape() as tape:
            g_loss = self.loss_fn(0 * ones, self.discriminator(self.generator(real[:, :2])))
        weights = self.generator.trainable_weights
        self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, weights), weights, strict=True))
        for tracker, loss in zip(self.trackers, (d_loss, g_loss), strict=True):
            tracker.update_state(loss)
        return {tracker.name: tracker.result() for tracker in self.trackers}


class Counts(LowerLevel):
    """Counts batches, and examples."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.batches, self.examples = keras.metrics.Sum(name="batches"), keras.metrics.Sum(name="examples")

    @property
    def metrics(self):
        return [self.tracker, self.batches, self.examples]

    def train_step(self, data):
        logs = super().train_step(data)
        self.batches.update_state(1.0)
        self.examples.update_state(ops.ones_like(data[1]))
        return {**logs, "batches": self.batches.result(), "examples": self.examples.result()}


def sums_over_batches_and_examples(scope):
    return trained(scope, lambda: linear(Counts))


def logs_of_an_own_step_under_the_name_of_a_metric(scope):
    with scope():
        model = linear(OwnLogs)
        model.compile(keras.optimizers.SGD(0.05))
    seen = []
    see = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append([logs[key] for key in sorted(logs)])
    )
    x, y, data = X[:SHORT], Y[:SHORT], {"batch_size": BATCH, "verbose": 0}
    record = model.fit(x, y, epochs=3, shuffle=False, validation_data=(x[:20], y[:20]), callbacks=[see], **data).history
    return {**record, "seen": seen, "weights": [w.ravel().tolist() for w in model.get_weights()]}


def an_own_compute_loss(scope):
    return trained(scope, lambda: linear(OwnComputeLoss))


def a_loss_and_a_metric_that_read_what_call_keeps(scope):
    with scope():
        model = Keeps()
    return trained(scope, lambda: model, loss=model.mean_loss, metrics=[model.size_of_codes])


def what_call_keeps_until_replicas_have_added_up(scope):
    with scope():
        model = ReadsLater()
    return trained(scope, lambda: model, loss="mse")


def masks_of_a_recurrent_layer(scope):
    """The same at all steps of an example, and others for each example."""
    with scope():
        model = Masks()
        model.compile()
    masks = model.predict(tf.ones((6, 3, 32)), batch_size=6, verbose=0)
    return {"alike": int((masks == masks[:, :1]).all()), "different": len({mask.tobytes() for mask in masks[:, 0]})}


def an_own_train_step_at_a_lower_level(scope):
    return trained(scope, lambda: linear(LowerLevel))


def a_model_without_call(scope):
    keras.utils.set_random_seed(1)
    with scope():
        discriminator = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
        generator = keras.Sequential([keras.Input((2,)), keras.layers.Dense(4)])
        model = GAN(discriminator, generator)
        model.compile()
    record = model.fit(tf.data.Dataset.from_tensor_slices(X).batch(BATCH), epochs=3, verbose=0).history
    return {**record, "weights": [w.ravel().tolist() for w in discriminator.get_weights() + generator.get_weights()]}


CASES = [
    logs_of_an_own_step_under_the_name_of_a_metric,
    an_own_compute_loss,
    a_loss_and_a_metric_that_read_what_call_keeps,
    what_call_keeps_until_replicas_have_added_up,
    masks_of_a_recurrent_layer,
    an_own_train_step_at_a_lower_level,
    a_model_without_call,
]


def odds_and_dice(y_true, y_pred):
    """Cross-entropies and a Dice loss of the whole batch, as of many programs for segmentation."""
    overlap = 2 * ops.sum(y_true * y_pred) / (ops.sum(y_true) + ops.sum(y_pred) + 1)
    return keras.losses.binary_crossentropy(y_true, y_pred) - 3 * overlap


def of_similarities(_, z):
    """The cross-entropy of each example's own row among its similarities to all examples."""
    logits = ops.matmul(z[:, 0], ops.transpose(z[:, 1]))
    return keras.losses.sparse_categorical_crossentropy(ops.arange(ops.shape(z)[0]), logits, from_logits=True)


PARTS |= {
    "a_number_of_the_batch_beside_one_for_each_example": Part(
        lambda: odds_and_dice,
        SIGMOID,
        y=IS_POSITIVE,
        weights=WEIGHTS,
        rate=0.5,
        metrics=lambda: keras.metrics.MeanMetricWrapper(odds_and_dice, "odds_and_dice"),
    ),
    "similarities_of_examples": Part(lambda: of_similarities, views(ops.stack, 1)),
}


def a_weighted_metric_function_that_compares_examples(scope):
    compiled = {"weighted_metrics": [odds_and_dice], "class_weight": {0: 1.0, 1: 3.0}}
    return trained(scope, lambda: linear(activation="sigmoid"), y=IS_POSITIVE[:SHORT], loss="binary_crossentropy", **compiled)


WHOLE_BATCH_CASES = [  # Of data-parallel strategies only.
    sums_over_batches_and_examples,
    a_weighted_metric_function_that_compares_examples,
]
