"""Models of shared_batches.py that compare examples, or do not: in losses of the user's, of layers, of Keras, and in logs."""

import keras
import shared_metrics  # noqa: F401 (it adds its cases)
import tensorflow as tf
from fit_options import MeanError
from keras import layers, ops
from shared_models import case, cross_entropies, own, similarities, small


@case
def a_loss_for_each_example_that_compares_them():
    model = small(name="a_loss_for_each_example_that_compares_them")
    model.compile("sgd", lambda y, z: cross_entropies(similarities(z)))
    return model


@case
def circle_loss():
    model = small(name="circle_loss")
    model.compile("sgd", keras.losses.Circle())
    return model


@case
def a_compute_loss_without_training():
    class Own(keras.Model):
        def __init__(self):
            super().__init__(name="a_compute_loss_without_training")
            self.net = small()

        def call(self, x):
            return self.net(x)

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
            return ops.mean(cross_entropies(similarities(y_pred)))

    model = Own()
    model.compile("sgd")
    return model


class OwnLoss(keras.Model):
    """A model with a `compute_loss` of its own. Its loss is log 2 at the start, whatever the examples are."""

    def __init__(self, loss, name):
        super().__init__(name=name)
        self.net, self.loss_of = layers.Dense(1, kernel_initializer="zeros"), loss
        self.compile("sgd")

    def call(self, x):
        return self.net(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return self.loss_of(x, y_pred, sample_weight)


@case
def a_mean_over_what_a_mask_leaves():
    def loss(x, z, weights):
        left = ops.cast(x[:, :1] > 0, "float32")
        return ops.divide_no_nan(ops.sum(left * ops.softplus(-z)), ops.sum(left))

    return OwnLoss(loss, name="a_mean_over_what_a_mask_leaves")


@case
def a_mean_over_what_is_no_padding():
    """The first examples have none."""

    def loss(x, z, weights):
        left = ops.cast(ops.sum(x, axis=1, keepdims=True) > 10, "float32")
        return ops.divide_no_nan(ops.sum(left * ops.softplus(-z)), ops.sum(left))

    return OwnLoss(loss, name="a_mean_over_what_is_no_padding")


@case
def a_mean_by_weights_of_its_own():
    def loss(x, z, weights):
        return ops.sum(weights * ops.softplus(-z[:, 0])) / ops.sum(weights)

    return OwnLoss(loss, name="a_mean_by_weights_of_its_own")


@case
def a_mean_by_weights():
    of_keras = keras.losses.BinaryCrossentropy(from_logits=True, reduction="mean_with_sample_weight")
    return OwnLoss(lambda x, z, weights: of_keras(ops.ones_like(z), z, weights), name="a_mean_by_weights")


class Router(layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 3), initializer="zeros")

    def call(self, x):
        shares = ops.softmax(ops.matmul(x, self.kernel))
        self.add_loss(300 * ops.sum(ops.mean(shares, axis=0) * ops.mean(ops.one_hot(ops.argmax(x[:, :3], axis=1), 3), axis=0)))
        return x * shares[:, :1]


@case
def a_layer_that_balances_over_the_batch():
    model = small(Router(), name="a_layer_that_balances_over_the_batch")
    model.compile("sgd", "mse")
    return model


@case
def connectionist_temporal_losses_that_a_layer_adds():
    class Adds(layers.Layer):
        def call(self, x):
            x = ops.reshape(x, (-1, 2, 3))
            ones = ops.ones((ops.shape(x)[0],), "int32")
            self.add_loss(ops.ctc_loss(ones[:, None], x, ones, 2 * ones, mask_index=0))
            return x[:, 0, :1]

    model = keras.Sequential([keras.Input((6,)), Adds()], name="connectionist_temporal_losses_that_a_layer_adds")
    model.add(layers.Dense(4))
    model.compile("sgd", "mse")
    return model


@case
def numbers_for_each_example_and_a_mean_that_a_layer_adds():
    class Adds(layers.Layer):
        def call(self, x):
            self.add_loss([ops.sum(ops.square(x), axis=1), ops.mean(ops.square(x))])
            return x

    name = "numbers_for_each_example_and_a_mean_that_a_layer_adds"
    model = keras.Sequential([keras.Input((6,)), layers.Dense(5), Adds(), layers.Dense(4)], name=name)
    model.compile("sgd", "mse")
    return model


@case
def losses_of_keras():
    """With a sum, a regularizer and half precision."""

    class Own(keras.Model):
        def __init__(self):
            super().__init__(name="losses_of_keras", dtype="mixed_bfloat16")
            self.dense = layers.Dense(4, kernel_regularizer="l2", dtype="mixed_bfloat16")

        def call(self, x):
            return self.dense(x)

    model = Own()
    model.compile("adam", keras.losses.MeanSquaredError(reduction="sum"))
    return model


@case
def a_mask():
    class Masked(keras.Model):
        def __init__(self):
            super().__init__(name="a_mask")
            self.mask, self.dense = layers.Masking(), layers.Dense(1)

        def call(self, x):
            return self.dense(self.mask(ops.reshape(ops.where(x > 0, x, 0), (-1, 6, 1))))

    model = Masked()
    model.compile("sgd", "mse")
    return model


@case
def a_loss_that_compares_examples_and_is_one_number():
    model = small(name="a_loss_that_compares_examples_and_is_one_number")
    model.compile("sgd", lambda y, z: ops.mean(cross_entropies(similarities(z))))
    return model


class ReadsItsMetric(keras.Sequential):
    """Trains by how much larger a loss is than those before."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = ops.mean((self(x) - y) ** 2)
            self.tracker.update_state(loss)
            relative = loss / (1.0 + self.tracker.result())
        self.optimizer.apply(tape.gradient(relative, self.trainable_variables), self.trainable_variables)
        return {"loss": self.tracker.result()}


@case
def a_step_that_computes_with_its_metric():
    model = ReadsItsMetric([keras.Input((6,)), layers.Dense(1)], name="a_step_that_computes_with_its_metric")
    model.tracker = keras.metrics.Mean(name="so_far")
    model.compile("sgd")
    return model


class UpdatesItself(keras.Sequential):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = ops.mean((self(x) - y) ** 2)
        for gradient, weight in zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables, strict=True):
            self.optimizer.update_step(gradient, weight, self.optimizer.learning_rate)
        return {"loss": loss}


@case
def an_update_without_apply():
    model = UpdatesItself([keras.Input((6,)), layers.Dense(1)], name="an_update_without_apply")
    model.compile(keras.optimizers.SGD(0.01))
    model.optimizer.build(model.trainable_variables)
    return model


class AddsNoise(keras.Sequential):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = ops.mean((self(x) - y) ** 2)
        weights = self.trainable_variables
        gradients = [each + 0.1 * keras.random.normal(each.shape, seed=self.noise) for each in tape.gradient(loss, weights)]
        self.optimizer.apply(gradients, weights)
        return {"loss": loss}


@case
def noise_on_its_gradients():
    model = AddsNoise([keras.Input((6,)), layers.Dense(1)], name="noise_on_its_gradients")
    model.noise = keras.random.SeedGenerator(1)
    model.compile("sgd")
    return model


class KeepsAnExample(keras.layers.Layer):
    """Keeps whether the first feature of the last example is positive, and counts steps."""

    def build(self, shape):
        self.steps = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="steps")
        self.last = self.add_weight(shape=(), dtype="bool", initializer="zeros", trainable=False, name="last")

    def call(self, x):
        self.steps.assign_add(1)
        self.last.assign(x[-1, 0] > 0)
        return x


@case
def a_truth_value_of_an_example():
    model = keras.Sequential([keras.Input((6,)), KeepsAnExample(), layers.Dense(1)], name="a_truth_value_of_an_example")
    model.compile("sgd", "mse")
    return model


class OfTensorFlow(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="of_tensorflow")
        self.total = tf.Variable(0.0, trainable=False, name="its_total")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(tf.reduce_sum(tf.abs(y_true - y_pred)))

    def result(self):
        return tf.identity(self.total)

    def reset_state(self):
        self.total.assign(0.0)


@case
def evaluate_with_a_variable_of_tensorflow():
    model = keras.Sequential([keras.Input((6,)), layers.Dense(1)], name="evaluate_with_a_variable_of_tensorflow")
    model.compile("sgd", "mse", metrics=[OfTensorFlow()])
    return model


@case
def a_metric_with_variables_of_its_own():
    model = keras.Sequential([keras.Input((6,)), layers.Dense(1)], name="a_metric_with_variables_of_its_own")
    model.compile("sgd", "mse", metrics=[MeanError()])
    return model


@case
def an_activation_over_the_batch():
    hidden = layers.Dense(4, activation=lambda z: z - ops.mean(z, axis=0))
    model = keras.Sequential([keras.Input((6,)), hidden, layers.Dense(1)], name="an_activation_over_the_batch")
    model.compile("sgd", "mse")
    return model


@case
def a_softmax_over_the_batch():
    model = keras.Sequential([keras.Input((6,)), layers.Dense(4), layers.Softmax(axis=0)], name="a_softmax_over_the_batch")
    model.compile("sgd", "mse")
    return model


class LogsOfABatch(keras.Sequential):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = ops.mean((self(x) - y) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {
            "loss": loss,
            "norm": tf.linalg.global_norm(gradients),
            "rate": self.optimizer.learning_rate,
            "size": ops.sum(x),
        }


@case
def logs_that_compare_examples():
    model = LogsOfABatch([keras.Input((6,)), layers.Dense(1)], name="logs_that_compare_examples")
    model.compile("sgd")
    return model


def growing(name, second):
    """A loss, and a second one whose weight grows from 0 with the steps."""

    def loss(model, x, y, z):
        weight = ops.cast(model.optimizer.iterations, "float32") / 10
        return ops.mean((z - y) ** 2) + weight * second(z)

    return own(name, loss=loss)


@case
def a_comparison_whose_weight_grows():
    return growing("a_comparison_whose_weight_grows", lambda z: ops.mean((z - ops.mean(z, axis=0)) ** 2))


@case
def a_mean_whose_weight_grows():
    return growing("a_mean_whose_weight_grows", lambda z: ops.mean(z**2))


class WithoutMean(layers.Layer):
    """Subtracts the mean of a batch."""

    def call(self, x):
        return x - ops.mean(x, axis=0)


class RowMeans(layers.Layer):
    def call(self, x):
        return tf.reduce_mean(x, axis=1, keepdims=True)


@case
def ragged_rows():
    model = keras.Sequential([RowMeans(), layers.Dense(1)], name="ragged_rows")
    model.compile("sgd", "mse")
    return model


class Doubled(layers.Layer):
    def call(self, x):
        return 2 * x


def with_layer(name, layer):
    model = keras.Sequential([keras.Input((6,)), layers.Dense(4), layer, layers.Dense(1)], name=name)
    model.compile("sgd", "mse", metrics=["mae"])
    return model


@case
def evaluate_a_comparison():
    return with_layer("evaluate_a_comparison", WithoutMean())


@case
def predict_a_comparison():
    return with_layer("predict_a_comparison", WithoutMean())


@case
def evaluate_each_example():
    return with_layer("evaluate_each_example", Doubled())


@case
def predict_each_example():
    return with_layer("predict_each_example", Doubled())
