"""The models of split_models.py, with their layout maps."""

import keras
import numpy as np
import tensorflow as tf
from head_layers import Experts, Masked, grouped_heads_and_experts
from keras import layers, ops
from position_layers import BeginsByTheBatch, Positions
from tensorflow_layers import LookedUp, Nested, OfSparse, Own, Plain, plain

RNG = np.random.default_rng(0)
X = RNG.normal(size=(104, 16)).astype("float32")
Y = RNG.integers(0, 10, size=(104,))
IMAGES = RNG.normal(size=(40, 8, 8, 4)).astype("float32")
TEXTS = RNG.integers(0, 32, size=(40, 6))
CASES = {}


def case(layout, x=X, y=Y, **fitted):
    """Registers a function that returns a compiled model, with its layout map. Layers side by side need few traces."""

    def register(function):
        CASES[function.__name__] = (function, layout, x, y, {"batch_size": 16, "epochs": 4, **fitted})
        return function

    return register


def compiled(model, optimizer=None, **settings):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer or keras.optimizers.SGD(0.05, momentum=0.9), loss, metrics=["accuracy"], **settings)
    return model


def side_by_side(inputs, branches):
    """Returns a compiled model with an output for each branch, a function of the inputs. The branches share nothing.

    The paths of their variables, and the names of their losses, begin with the name of the branch.
    """
    outputs = {}
    for name, branch in branches.items():
        with keras.name_scope(name):
            outputs[name] = branch(inputs)
    model = keras.Model(inputs, outputs)
    losses = {name: keras.losses.SparseCategoricalCrossentropy(from_logits=True) for name in branches}
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), losses, metrics={name: ["accuracy"] for name in branches})
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


class OwnAdam(keras.optimizers.Adam):
    """Has the update of Adam."""


@case(PAIR, epochs=20)
def many_steps_of_a_subclass_of_adam():
    return compiled(mlp(), OwnAdam(0.003))


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


SHARDED_CONSTRAINTS = {".*(norm|unit)/kernel": (None, "model"), ".*(positive|between)/kernel": ("model", None)}


def constrained(inputs):
    x = inputs["x"]
    for name, each in CONSTRAINED.items():
        x = layers.Dense(16, "tanh", name=name, kernel_constraint=each)(x)
    return layers.Dense(10)(x)


@case(SHARDED_CONSTRAINTS, x={"x": X}, y={"constraints": Y})
def constraints():
    return side_by_side({"x": keras.Input((16,))}, {"constraints": constrained})


@case(
    {**SHARDED_CONSTRAINTS, ".*shift": ("model",)},
    x={"x": X},
    y={"constraints": Y, "a_weight_that_begins_by_the_batch": Y},
)
def weights_that_more_than_the_optimizer_assigns():
    def begun(inputs):
        return layers.Dense(10)(BeginsByTheBatch()(inputs["x"]))

    return side_by_side({"x": keras.Input((16,))}, {"constraints": constrained, "a_weight_that_begins_by_the_batch": begun})


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


@case(
    {
        **PAIR,
        ".*gate/kernel": (None, "model"),
        ".*filters/kernel": (None, None, None, "model"),
        ".*filters/bias": ("model",),
        ".*channels/kernel": (None, None, "model", None),
    },
    x={"x": X[:40], "images": IMAGES},
    y={"a_gated_subclassed_model": Y[:40], "convolutions": Y[:40]},
)
def products_and_convolutions():
    def convolutions(inputs):
        x = layers.Conv2D(8, 3, activation="relu", padding="same", name="filters")(inputs["images"])
        x = layers.BatchNormalization()(layers.Conv2D(6, 3, strides=2, name="channels")(x))
        return layers.Dense(10)(layers.GlobalAveragePooling2D()(x))

    inputs = {"x": keras.Input((16,)), "images": keras.Input((8, 8, 4))}
    gated = lambda inputs: Gated()(inputs["x"])  # noqa: E731
    return side_by_side(inputs, {"a_gated_subclassed_model": gated, "convolutions": convolutions})


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
EXPERTS = {".*experts_(up|down)": ("model", None, None)}


def transformer(words, dropout, causal, token):
    x = Positions(8, token)(layers.Embedding(32, 16, name="words")(words))
    normal = layers.LayerNormalization()(x)
    x = x + layers.MultiHeadAttention(4, 4, dropout=dropout, seed=0)(normal, normal, use_causal_mask=causal)
    hidden = layers.Dense(32, "gelu", name="block_up")(layers.LayerNormalization()(x))
    x = x + layers.Dropout(dropout, seed=7)(layers.Dense(16, name="block_down")(hidden))
    return layers.Dense(10)(layers.GlobalAveragePooling1D()(x))


@case(
    {**ATTENTION, **EXPERTS},
    x={"x": X[:40], "texts": TEXTS},
    y=dict.fromkeys(("a_pair_of_dense_layers", "a_transformer", "experts_and_groups_of_heads"), Y[:40]),
)
def blocks():
    def pair(inputs):
        return layers.Dense(10, name="head")(
            layers.Dense(12, "gelu", name="down")(layers.Dense(32, "relu", name="up")(inputs["x"]))
        )

    branches = {
        "a_pair_of_dense_layers": pair,
        "a_transformer": lambda inputs: transformer(inputs["texts"], 0.0, causal=True, token=False),
        "experts_and_groups_of_heads": lambda inputs: grouped_heads_and_experts(inputs["texts"]),
    }
    return side_by_side({"x": keras.Input((16,)), "texts": keras.Input((6,), dtype="int32")}, branches)


@case(
    {**ATTENTION, **EXPERTS},
    x={"texts": TEXTS},
    y=dict.fromkeys(("a_transformer_with_dropout", "experts_and_groups_of_heads", "a_table_looked_up_by_tensorflow"), Y[:40]),
)
def layers_of_texts():
    branches = {
        "a_transformer_with_dropout": lambda inputs: transformer(inputs["texts"], 0.3, causal=False, token=True),
        "experts_and_groups_of_heads": lambda inputs: grouped_heads_and_experts(inputs["texts"]),
        "a_table_looked_up_by_tensorflow": lambda inputs: layers.Dense(10)(layers.Flatten()(LookedUp()(inputs["texts"]))),
    }
    return side_by_side({"texts": keras.Input((6,), dtype="int32")}, branches)


SEQUENCES = IMAGES.reshape(40, 16, 16)[:, :6]


@case({".*kernel": ("model", None)})
def a_layer_of_sparse_inputs_by_rows():
    return compiled(keras.Sequential([keras.Input((16,)), OfSparse(8), layers.Dense(10)]))


@case({".*(query|key|value)/kernel": (None, "model")}, x=SEQUENCES, y=Y[:40])
def attention_with_a_mask_of_two_axes():
    return compiled(keras.Sequential([keras.Input((6, 16)), Masked(), layers.Dense(10)]))


@case(PAIR)
def built_in_fit_with_clipping_by_the_norm_of_all_gradients():
    model = keras.Sequential([layers.Dense(32, "relu", name="up"), layers.Dense(10, name="down")])
    return compiled(model, keras.optimizers.SGD(0.2, global_clipnorm=0.5))


def recurrent(inputs):
    x = layers.SimpleRNN(8, return_sequences=True)(inputs["sequences"])
    return layers.Dense(4)(layers.GRU(8)(layers.SimpleRNN(8, return_sequences=True, unroll=True)(x)))


@case({".*(kernel|gru_cell/bias)": (None, "model")}, x={"sequences": SEQUENCES}, y={"recurrent_layers": Y[:40] % 4})
def recurrent_layers():
    return side_by_side({"sequences": keras.Input((6, 16))}, {"recurrent_layers": recurrent})


@case(
    {".*(kernel|gru_cell/bias)": (None, "model"), "(.*/)?first": (None, "model"), "(.*/)?second": ("batch", None)},
    x={"x": X[:40], "sequences": SEQUENCES},
    y=dict.fromkeys(
        ("functions_of_tensorflow", "functions_of_tensors", "recurrent_layers", "layouts_of_activations"), Y[:40] % 4
    ),
)
def layers_by_columns():
    def nested(inputs):
        normalized = layers.SpectralNormalization(layers.Dense(8))
        return layers.Dense(4)(Nested()(normalized(Nested()(layers.Dense(8)(inputs["x"])))))

    branches = {
        "functions_of_tensorflow": lambda inputs: layers.Dense(4)(plain(inputs["x"])),
        "functions_of_tensors": nested,
        "recurrent_layers": recurrent,
        "layouts_of_activations": lambda inputs: layers.Dense(4)(
            layers.Dense(12, name="second")(layers.Dense(8, name="first")(inputs["x"]))
        ),
    }
    return side_by_side({"x": keras.Input((16,)), "sequences": keras.Input((6, 16))}, branches)


@case({".*(matmul|transposed|tensordot|einsum|dot|operator|value|gate)/kernel": ("model", None)})
def functions_of_tensorflow_by_rows():
    inputs = keras.Input((16,))
    return compiled(keras.Model(inputs, layers.Dense(10)(plain(inputs))))


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
