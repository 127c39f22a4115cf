"""The models of split_models.py, with their layout maps."""

import keras
import numpy as np
import tensorflow as tf
from head_layers import Experts, Masked, grouped_heads_and_experts
from keras import layers, ops
from position_layers import BeginsByTheBatch, Positions

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
    return compiled(mlp(), keras.optimizers.SGD(0.2, global_clipnorm=0.5))


@case(PAIR)
def gradient_accumulation():
    return compiled(mlp(), keras.optimizers.Adam(0.003, gradient_accumulation_steps=2))


@case(PAIR)
def rmsprop_with_regularized_kernels():
    return compiled(
        mlp(kernel_regularizer="l2", bias_regularizer="l1"),
        keras.optimizers.RMSprop(0.002),
    )


CONSTRAINED = {
    "norm": keras.constraints.MaxNorm(0.5),
    "unit": keras.constraints.UnitNorm(axis=1),
    "positive": keras.constraints.NonNeg(),
    "between": keras.constraints.MinMaxNorm(0.2, 0.6),
}


@case({".*(norm|unit)/kernel": (None, "model"), ".*(positive|between)/kernel": ("model", None)})
def constraints():
    constrained = [layers.Dense(16, "tanh", name=name, kernel_constraint=each) for name, each in CONSTRAINED.items()]
    return compiled(keras.Sequential([keras.Input((16,)), *constrained, layers.Dense(10)]))


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
        return {"last_loss": loss}  # No name of a metric: Keras would report that.


@case(PAIR)
def own_train_step():
    model = mlp(OwnStep)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


class AssigningStep(keras.Sequential):
    """Updates its weights without an optimizer."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        for weight, gradient in zip(self.trainable_variables, tape.gradient(loss, self.trainable_variables), strict=True):
            weight.assign_sub(0.1 * gradient)
        return {"last_loss": loss}


@case(PAIR)
def own_train_step_that_assigns_weights():
    model = mlp(AssigningStep)
    model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


class Gated(keras.Model):
    """Uses split tensors in ways that only some rules know: products, slices, reductions, TensorFlow's own operations."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.up, self.gate = layers.Dense(32, name="up"), layers.Dense(32, "sigmoid", name="gate")
        self.down, self.head = layers.Dense(12, name="down"), layers.Dense(10)
        self.factor = keras.Variable(np.float32(1.1))

    def call(self, x):
        hidden = np.linspace(0.9, 1.1, 32, dtype="float32") * self.up(x) * self.gate(x) + self.factor
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
    return compiled(text_model(), keras.optimizers.RMSprop(0.003, global_clipnorm=0.5))


@case({".*embeddings": ("model", None)}, x=TEXTS, y=Y[:40])
def an_embedding_by_rows():
    return compiled(text_model(), keras.optimizers.LossScaleOptimizer(keras.optimizers.Nadam(0.01), initial_scale=8.0))


ATTENTION = {
    ".*(query|key|value)/kernel": (None, "model", None),
    ".*(query|key|value)/bias": ("model", None),
    ".*attention_output/kernel": ("model", None, None),
    ".*(embeddings|table)": ("model", None),
    ".*token": (None, None, "model"),
    **PAIR,
}


def transformer(dropout, causal, token):
    inputs = keras.Input((6,), dtype="int32")
    x = Positions(8, token)(layers.Embedding(32, 16, name="words")(inputs))
    for number in range(2):
        normal = layers.LayerNormalization()(x)
        attention = layers.MultiHeadAttention(4, 4, dropout=dropout, seed=number, name=f"attention_{number}")
        x = x + attention(normal, normal, use_causal_mask=causal)
        hidden = layers.Dense(32, "gelu", name=f"block_{number}_up")(layers.LayerNormalization()(x))
        x = x + layers.Dropout(dropout, seed=7)(layers.Dense(16, name=f"block_{number}_down")(hidden))
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))


@case(ATTENTION, x=TEXTS, y=Y[:40])
def a_transformer():
    return compiled(transformer(0.0, causal=True, token=False), keras.optimizers.Adam(0.003))


@case(ATTENTION, x=TEXTS, y=Y[:40])
def a_transformer_with_dropout():
    return compiled(transformer(0.3, causal=False, token=True), keras.optimizers.SGD(0.05))


@case({".*shift": ("model",)})
def a_weight_that_begins_by_the_batch():
    return compiled(keras.Sequential([keras.Input((16,)), BeginsByTheBatch(), layers.Dense(10)]))


@case({**ATTENTION, ".*experts_.*": ("model", None, None)}, x=TEXTS, y=Y[:40])
def experts_and_groups_of_heads():
    return compiled(grouped_heads_and_experts(), keras.optimizers.Adam(0.003))


@case({".*kernel": (None, "model"), "(sequential.*/)?first": (None, "model"), "(sequential.*/)?second": ("batch", None)})
def layouts_of_activations():
    dense = (layers.Dense(8, name="first"), layers.Dense(12, name="second"), layers.Dense(12))
    return compiled(keras.Sequential([keras.Input((16,)), *dense]))


COLUMNS = {".*kernel": (None, "model")}
SEQUENCES = IMAGES.reshape(40, 16, 16)[:, :6]


@case(COLUMNS, x=SEQUENCES, y=Y[:40] % 4)
def recurrent_layers_by_columns():
    recurrent = [
        layers.SimpleRNN(8, return_sequences=True),
        layers.SimpleRNN(8, return_sequences=True, unroll=True),
        layers.GRU(8),
    ]
    return compiled(keras.Sequential([keras.Input((6, 16)), *recurrent, layers.Dense(4)]))


@tf.custom_gradient
def reversed_gradient(x):
    return tf.identity(x), lambda gradient: -gradient


class Nested(layers.Layer):
    """Calls operations of TensorFlow with functions or nested tensors."""

    def call(self, x):
        x = reversed_gradient(x)
        x = tf.cond(tf.reduce_sum(x) > 0.0, lambda: tf.nn.relu(x) * 2.0, lambda: tf.concat([x[:, :4], x[:, 4:]], axis=-1))
        _, x = tf.while_loop(lambda step, _: step < 2, lambda step, y: (step + 1, y * x), (0, tf.ones_like(x[:1]) + x * 0.0))
        x = tf.map_fn(lambda row: row * 0.5, x + 1.0)
        return tf.ensure_shape(tf.py_function(lambda y: tf.tanh(y), [x * 1.5], tf.float32), x.shape)


@case(COLUMNS, x=X[:40], y=Y[:40] % 4)
def functions_of_tensors_by_columns():
    normalized = layers.SpectralNormalization(layers.Dense(8))
    return compiled(keras.Sequential([keras.Input((16,)), layers.Dense(8), Nested(), normalized, Nested(), layers.Dense(4)]))


class OfSparse(layers.Dense):
    def call(self, x):
        return super().call(tf.sparse.from_dense(tf.nn.relu(x)))


@case({".*kernel": ("model", None)})
def a_layer_of_sparse_inputs_by_rows():
    return compiled(keras.Sequential([keras.Input((16,)), OfSparse(8), layers.Dense(10)]))


@case({".*(query|key|value)/kernel": (None, "model")}, x=SEQUENCES, y=Y[:40])
def attention_with_a_mask_of_two_axes():
    return compiled(keras.Sequential([keras.Input((6, 16)), Masked(), layers.Dense(10)]))


@case(PAIR)
def built_in_fit():
    return compiled(keras.Sequential([layers.Dense(32, "relu", name="up"), layers.Dense(10, name="down")]))


class Own(layers.Layer):
    """Multiplies with the result of a function of TensorFlow that has no rule."""

    def build(self, shape):
        self.kernel = self.add_weight(name="kernel", shape=(shape[-1], 12))

    def call(self, x):
        return tf.matmul(x, tf.reverse(self.kernel, [0]))


class Plain(layers.Layer):
    """A dense layer in TensorFlow's functions, as its guides write one."""

    def build(self, shape):
        self.w = self.add_weight(name="kernel", shape=(shape[-1], 12))
        self.b = self.add_weight(name="bias", shape=(12,), initializer="zeros")

    def call(self, x):
        self.add_loss(0.01 * (tf.nn.l2_loss(self.w) + tf.reduce_sum(tf.square(self.w))))
        return tf.nn.relu(PLAIN[self.name](x, self.w) + self.b)


PLAIN = {
    "matmul": tf.matmul,
    "transposed": lambda x, w: tf.matmul(x, tf.transpose(w), transpose_b=True),
    "tensordot": lambda x, w: tf.tensordot(x, w, [[-1], [0]]),
    "einsum": lambda x, w: tf.einsum("bi,io->bo", x, tf.multiply(w, 2.0)),
    "dot": lambda x, w: ops.dot(x, ops.exp(w) - w**2),
    "operator": lambda x, w: x @ w,
}


def plain(units):
    return compiled(keras.Sequential([keras.Input((16,)), *(Plain(name=name) for name in PLAIN), layers.Dense(units)]))


@case({".*kernel": (None, "model")}, y=Y % 4)
def functions_of_tensorflow_by_columns():
    return plain(4)


@case({".*(matmul|transposed|tensordot|einsum|dot|operator)/kernel": ("model", None)})
def functions_of_tensorflow_by_rows():
    return plain(10)


class LookedUp(layers.Layer):
    def build(self, shape):
        self.table = self.add_weight(name="table", shape=(32, 8))

    def call(self, numbers):
        return tf.nn.embedding_lookup(self.table, numbers) + tf.gather(self.table, numbers)


@case({".*table": ("model", None)}, x=TEXTS, y=Y[:40])
def a_table_looked_up_by_tensorflow():
    return compiled(keras.Sequential([keras.Input((6,), dtype="int32"), LookedUp(), layers.Flatten(), layers.Dense(10)]))


OBJECTS = {own.__name__: own for own in (OwnStep, AssigningStep, Gated, Experts, Nested, OfSparse, Masked, Plain, LookedUp)}
"""Classes that a saved model needs."""

REFUSED = {
    "an_optimizer_that_needs_whole_variables": (PAIR, lambda: compiled(mlp(), keras.optimizers.Lamb(0.01))),
    "an_operation_without_a_rule": (
        {".*kernel": (None, "model")},
        lambda: compiled(keras.Sequential([keras.Input((16,)), Own()])),
    ),
    "a_dimension_that_four_devices_cannot_share": ({".*head/kernel": (None, "model")}, lambda: compiled(mlp())),
}
