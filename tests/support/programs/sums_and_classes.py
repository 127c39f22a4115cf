"""Layers that add losses, normalize or keep something, losses and metrics by class, logs: cases as in losses.py."""

import keras
import numpy as np
import tensorflow as tf
from cases import Cases
from keras import ops
from losses import BATCH, PARTS, SHORT, Part, X, Y, alone, dense, mean_of_the_batch, trained, trained_together

CLASSES = 5  # As many as each of two replicas has rows of 10.
LABELS = np.eye(CLASSES, dtype="float32")[np.arange(len(X)) ** 2 % CLASSES]
case = CASES = Cases()


class Adds(keras.layers.Layer):
    """Adds what a function returns for its outputs as a loss."""

    def __init__(self, loss):
        super().__init__()
        self.loss = loss
        self.dense = keras.layers.Dense(3, kernel_initializer=keras.initializers.GlorotUniform(seed=1))

    def call(self, x):
        outputs = self.dense(x)
        self.add_loss(self.loss(outputs))
        return outputs


class Squares(keras.layers.Layer):
    def call(self, x):
        self.add_loss(0.1 * ops.mean(ops.square(x)))
        return x


class Endpoint(keras.layers.Layer):
    """Keras' endpoint layer: takes the targets as an input and adds the loss."""

    def __init__(self):
        super().__init__()
        self.loss_fn = keras.losses.MeanSquaredError()

    def call(self, inputs):
        y_pred, y_true = inputs
        self.add_loss(self.loss_fn(y_true, y_pred))
        return y_pred


class Maxima(keras.layers.Layer):
    """Notes the largest input of each step in variables that their gradients overwrite, as float8 training does."""

    def build(self, shape):
        kind = {"initializer": "zeros", "overwrite_with_gradient": True}
        self.largest = self.add_weight(name="largest", shape=(4,), **kind)
        self.history = self.add_weight(name="inputs_amax_history", shape=(3,), **kind)

    def call(self, x):
        @tf.custom_gradient
        def noted(x, largest, history):
            news = tf.reduce_max(tf.abs(x), axis=0), tf.concat([tf.reduce_max(tf.abs(x))[None], history[:2]], axis=0)
            return tf.identity(x), lambda upstream: (upstream, *news)

        return noted(x, tf.convert_to_tensor(self.largest), tf.convert_to_tensor(self.history))


def normalized(has_mask):
    """Returns a function of an input: a normalization of the whole batch, or of what a mask leaves of it."""

    def outputs(x):
        hidden = keras.layers.Dense(3, kernel_initializer=keras.initializers.GlorotUniform(seed=1))(x)
        mask = {"mask": x[:, 1] > 0} if has_mask else {}
        hidden = ops.tanh(keras.layers.BatchNormalization(synchronized=True)(hidden, **mask))
        return keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed=2))(hidden)

    return outputs


def adding(loss):
    return Part(lambda: "mse", lambda x: dense()(Adds(loss)(x)), rate=0.01)


ADDED = {
    "added_losses_for_each_example": adding(lambda z: 0.1 * ops.sum(ops.square(z), axis=1)),
    "an_added_loss_that_is_a_sum": adding(lambda z: 0.1 * ops.sum(ops.square(z))),
    "an_added_loss_that_is_a_sum_divided_by_a_constant": adding(lambda z: ops.sum(ops.square(z)) / 16),
    "an_added_loss_that_is_a_mean": adding(lambda z: ops.mean(ops.square(z))),
}
OTHERS = {
    # Replicas of a group take turns between the two.
    "an_added_loss_beside_one_number_for_a_batch": Part(
        lambda: mean_of_the_batch, lambda x: dense()(Squares()(keras.layers.Dense(3)(x)))
    ),
    "a_keras_loss_in_add_loss": Part(lambda: None, lambda x, y: Endpoint()([dense()(x), y]), (X, Y)),
    "variables_that_gradients_overwrite": Part(lambda: "mse", lambda x: dense()(Maxima()(keras.layers.Rescaling(2.0)(x)))),
    "normalization_of_the_whole_batch": Part(lambda: "mse", normalized(False)),
    "normalization_of_the_whole_batch_with_a_mask": Part(lambda: "mse", normalized(True)),
}
LAYERS = (*ADDED, *OTHERS)
PARTS |= ADDED | OTHERS
CASES += map(alone, OTHERS)


@case
def added_losses_that_are_sums(scope):
    return trained_together(scope, ADDED, rate=0.01)


def layers(scope):
    return trained_together(scope, LAYERS, rate=0.01)


class MakesVariablesOfValues(keras.Model):
    """Copies the values that its kernel starts with. Keras says nothing against it in one process."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed=1))

    def build(self, shape):
        self.dense.build(shape)
        self.start = keras.Variable(self.dense.kernel, trainable=False)
        self.scale = keras.Variable(np.ones(1, "float32"))
        self.built = True

    def call(self, x):
        return self.scale * self.dense(x) + ops.matmul(x, self.start)


@case
def a_build_that_makes_variables_of_values(scope):
    return trained(scope, MakesVariablesOfValues, loss="mse", rate=0.01)


class Positions(keras.layers.Layer):
    """Adds the embedding of its position to each token, as Keras' examples of transformers do."""

    def __init__(self, has_one_table):
        super().__init__()
        self.has_one_table = has_one_table

    def build(self, shape):
        start = keras.initializers.RandomUniform(seed=3)
        self.tokens = keras.layers.Embedding(5, 3, embeddings_initializer=start)
        self.positions = self.tokens if self.has_one_table else keras.layers.Embedding(4, 3, embeddings_initializer=start)
        self.tokens.build()
        self.positions.build()

    def call(self, x):
        return self.tokens(x) + self.positions(ops.arange(0, ops.shape(x)[-1], 1))


@case
def positions_in_a_sequence(scope):
    """Of a known length, of one table or two, and of another length in each batch."""

    def head(name, has_one_table, inputs):
        hidden = ops.tanh(Positions(has_one_table)(ops.cast(ops.clip(inputs + 2, 0, 4), "int32")))
        last = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed=2), name=name)
        return last(keras.layers.GlobalAveragePooling1D()(hidden))

    def batches():
        for first, length in ((0, 4), (13, 3), (26, 2)):
            rows = slice(first, first + 13)
            yield (X[rows], X[rows, :length]), (Y[rows],) * 3

    signature = ((tf.TensorSpec([None, 4]), tf.TensorSpec([None, None])), (tf.TensorSpec([None, 1]),) * 3)
    with scope():
        known, other = keras.Input((4,)), keras.Input((None,))
        heads = [head("two_tables", False, known), head("one_table", True, known), head("lengths", True, other)]
        model = keras.Model([known, other], heads)
        model.compile(keras.optimizers.Adam(0.05), "mse")
    lengths = tf.data.Dataset.from_generator(batches, output_signature=signature)
    # In one process Keras would call its step once too often, which counts steps, if it did not know their number.
    lengths = lengths.apply(tf.data.experimental.assert_cardinality(3))
    history = model.fit(lengths, epochs=2, verbose=0).history
    return [history, *(weights.ravel().tolist() for weights in model.get_weights())]


def dice_by_class(y_true, y_pred):
    both = ops.sum(y_true * y_pred, axis=0)
    return 2 * both / (ops.sum(y_true, axis=0) + ops.sum(y_pred, axis=0))


def dice_loss_by_class(y_true, y_pred):
    return 1 - dice_by_class(y_true, y_pred)


def metrics():
    return [dice_by_class, keras.metrics.CosineSimilarity(axis=0), keras.metrics.CosineSimilarity(name="of_each")]


def of_classes(x):
    return keras.layers.Dense(CLASSES, "sigmoid", kernel_initializer=keras.initializers.GlorotUniform(seed=1))(x)


BY_CLASS = {
    "losses_and_metrics_with_a_number_for_each_class": Part(
        lambda: dice_loss_by_class, of_classes, y=LABELS, rate=0.01, metrics=metrics
    ),
    "a_loss_of_keras_with_a_number_for_each_class": Part(
        lambda: keras.losses.CosineSimilarity(axis=0), of_classes, y=LABELS, rate=0.01
    ),
}
PARTS |= BY_CLASS
CASES += map(alone, BY_CLASS)


@case
def losses_and_metrics_with_a_number_for_each_class_of_known_rows(scope):
    def batches(arrays):
        return tf.data.Dataset.from_tensor_slices(arrays).batch(2 * CLASSES, drop_remainder=True)

    return trained_together(scope, BY_CLASS, batches)


class Adaptive(keras.losses.Loss):
    """Weights examples by a moving average over the steps before, a variable that is not the model's, and counts the steps."""

    def __init__(self, is_one_number):
        super().__init__()
        self.is_one_number = is_one_number
        self.average, self.steps = keras.Variable(1.0, trainable=False), keras.Variable(0.0, trainable=False)

    def call(self, y_true, y_pred):
        if self.is_one_number:
            self.steps.assign_add(1.0)
        else:
            ops.cond(ops.shape(y_true)[0] > 0, lambda: (self.steps.assign(self.steps + 1.0), 0)[1], lambda: 0)
        squares, before = ops.square(y_true - y_pred), 1.0 * self.average
        self.average.assign(0.9 * before + 0.1 * ops.mean(squares))
        return ops.mean(squares) * before if self.is_one_number else ops.mean(squares, axis=-1) * before


KEEPING = {
    "a_loss_for_each_example_that_keeps_a_variable": Part(lambda: Adaptive(False)),
    "a_loss_of_one_number_that_keeps_a_variable": Part(lambda: Adaptive(True)),
}
PARTS |= KEEPING


@case
def a_loss_that_keeps_a_variable(scope):
    return trained_together(scope, KEEPING)


class Average(keras.layers.Layer):
    def build(self, shape):
        self.average = self.add_weight(name="average", shape=(), initializer="zeros", trainable=False)

    def call(self, x):
        self.average.assign(0.9 * self.average + 0.1 * ops.mean(x))
        return x


@case
def an_average_that_a_layer_keeps_in_predict(scope):
    with scope():
        model = keras.Sequential([keras.Input((4,)), Average()])
    model.predict(X, batch_size=13, verbose=0)
    between = float(model.layers[0].average.numpy())
    model.predict_on_batch(X[:7])
    return [between, float(model.layers[0].average.numpy())]


class Tracked(keras.Model):
    """Returns what it computes from metrics under names that they do not have, and once under the name of one, as a root."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.total, self.rmse = keras.metrics.Mean(name="total_loss"), keras.metrics.Mean(name="rmse")

    @property
    def metrics(self):
        return [self.total, self.rmse, self.total]  # One is listed twice, as by [*super().metrics, self.total].

    def logs_of(self, data, training):
        x, y = data
        squares = ops.square(self(x, training=training) - y)
        self.total.update_state(squares)
        self.rmse.update_state(squares)
        total = self.total.result()
        return ops.mean(squares), {
            "loss": total,
            "rmse": ops.sqrt(self.rmse.result()),
            "more": {"perplexity": ops.exp(total)},
        }

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss, logs = self.logs_of(data, training=True)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return logs

    def test_step(self, data):
        return self.logs_of(data, training=False)[1]


@case
def logs_that_a_step_computes_from_metrics(scope):
    with scope():
        inputs = keras.Input((4,))
        model = Tracked(inputs, keras.layers.Dense(1, kernel_initializer="zeros")(inputs))
        model.compile(keras.optimizers.SGD(0.05))
    flat = {"batch_size": BATCH, "verbose": 0}
    history = model.fit(X[:SHORT], Y[:SHORT], epochs=2, shuffle=False, validation_data=(X[:20], Y[:20]), **flat).history
    assert np.allclose(np.square(history["val_rmse"]), history["val_loss"]), history
    return history


class Words(keras.layers.Layer):
    """Makes a distribution over three words of each number. Keras builds it where it is called, which this program never does."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3, "softmax", kernel_initializer=keras.initializers.GlorotUniform(seed=1))
        self.dense.build((None, 4, 1))

    def call(self, x):
        return self.dense(x[..., None])


class TwoUpdates(keras.Model):
    """Has no `call`. Its step makes two updates with a loss of sequences, whose shapes TensorFlow compares, and returns it for each example."""

    def __init__(self):
        super().__init__()
        self.words = Words()

    def train_step(self, data):
        x, words = data
        for _ in range(2):
            with tf.GradientTape() as tape:
                losses = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(words, self.words.call(x)), axis=1)
                loss = tf.reduce_mean(losses)
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"each": losses, "words": tf.shape(words)[0] * 0 + 4}


@case
def two_updates_of_a_loss_of_sequences_in_a_step(scope):
    with scope():
        model = TwoUpdates()
        model.compile(keras.optimizers.SGD(0.5))
    words = np.arange(4 * SHORT).reshape(SHORT, 4) ** 2 % 3
    history = model.fit(X[:SHORT], words, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history
    weights = [value.ravel().tolist() for value in model.get_weights()]
    return {"loss of the last batch": float(np.mean(history["each"][-1])), "words": history["words"], "weights": weights}
