"""Options of `compile`, optimizers and models, for programs that compare several replicas with one process: functions of the scope
to train under."""

import keras
import numpy as np
import tensorflow as tf
from cases import Cases

case = CASES = Cases()
N = 250  # not divisible by the batch size
IDS = np.arange(N, dtype="float32")
X = np.stack([IDS / N, np.sin(IDS), np.cos(IDS), np.ones(N)], axis=1).astype("float32")
Y = X.sum(axis=1, keepdims=True)
LABELS = (np.sin(IDS) > 0).astype("int32")
optimizers = keras.optimizers


def regression(optimizer, **arguments):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
    model.compile(optimizer, "mse", metrics=["mae"], **arguments)
    return model


def trained(model, batch_size):
    """Trains three epochs with validation; returns the results."""
    record = model.fit(X, Y, batch_size=batch_size, epochs=3, verbose=0, validation_data=(X[:61], Y[:61])).history
    return {**record, "weights": [w.ravel().tolist() for w in model.get_weights()]}


def all_of(model, batch_size):
    """Trains as `trained`, evaluates and predicts; returns all results."""
    return {
        **trained(model, batch_size),
        "evaluate": model.evaluate(X[:50], Y[:50], verbose=0, batch_size=7),
        "predict": model.predict(X[:50], verbose=0, batch_size=7)[:, 0].tolist(),
    }


def trains_alike(name, optimizer, batch_size=32, results=trained, **arguments):
    def function(scope):
        with scope():
            model = regression(optimizer(), **arguments)
        return results(model, batch_size)

    function.__name__ = name
    case(function)


@case
def models_built_outside_the_scope(scope):
    results = {}
    for build in (lambda model: model.build((None, 4)), lambda model: model(X[:2])):
        with scope():
            model = keras.Sequential([keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
            model.compile(optimizers.SGD(0.02, momentum=0.9), "mse", metrics=["mae"])
        build(model)
        losses = model.fit(X, Y, batch_size=33, epochs=2, verbose=0).history["loss"]
        results[f"built {len(results)}"] = [losses, *(w.ravel().tolist() for w in model.get_weights())]
    return results


trains_alike("sgd_momentum", lambda: optimizers.SGD(0.05, momentum=0.9), results=all_of)
trains_alike("steps_per_execution", lambda: optimizers.Adam(0.01), steps_per_execution=5, results=all_of)
trains_alike("last_batch_smaller_than_the_number_of_replicas", lambda: optimizers.Adam(0.01), batch_size=83, results=all_of)
trains_alike("the_same_with_steps_per_execution", lambda: optimizers.Adam(0.01), batch_size=83, steps_per_execution=3)
trains_alike(
    "run_eagerly",
    lambda: optimizers.Adam(0.01, gradient_accumulation_steps=2),
    batch_size=100,
    run_eagerly=True,
    results=all_of,
)
trains_alike(
    "all_of_these",
    lambda: optimizers.Adam(0.05, gradient_accumulation_steps=3, use_ema=True, ema_overwrite_frequency=2),
    batch_size=25,  # Of one size, for which XLA compiles: test_contract.py has others.
    steps_per_execution=5,
    jit_compile=True,
)


@case
def steps_of_an_execution_before_a_read_that_fails(scope):
    def batches():
        for first in range(0, 160, 32):
            yield X[first : first + 32], Y[first : first + 32]
        raise ValueError("no more")

    with scope():
        model = regression(optimizers.SGD(0.05), steps_per_execution=3)
    try:
        model.fit(batches(), epochs=1, verbose=0)
        raised = False
    except tf.errors.OpError:
        raised = True
    steps = int(model.optimizer.iterations.numpy())
    return {"raised": raised, "steps": steps, "weights": [w.ravel().tolist() for w in model.get_weights()]}


@case
def loss_scaling(scope):
    with scope():
        scaled = optimizers.LossScaleOptimizer(optimizers.Adam(0.01, gradient_accumulation_steps=2))
        model = regression(scaled, steps_per_execution=3)
    results = {
        **model.fit(X, Y, batch_size=33, epochs=2, verbose=0).history,
        "weights": [w.ravel().tolist() for w in model.get_weights()],
    }
    # One example of a batch has a gradient of half of float16's largest number, if the batch is that of one process.
    target = (IDS % 32 == 3).astype("float32")
    for name, optimizer in (
        ("by an optimizer", lambda: optimizers.LossScaleOptimizer(optimizers.SGD(1e-4), 2.0**19)),
        ("by a factor", lambda: optimizers.SGD(1e-4, loss_scale_factor=2.0**19)),
    ):
        with scope():
            model = keras.Sequential(
                [keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="zeros", dtype="mixed_float16")]
            )
            model.compile(optimizer(), "mse")
        results[name] = model.fit(X, target, batch_size=32, epochs=1, verbose=0, shuffle=False).history["loss"]
        results[f"weights {name}"] = [w.ravel().tolist() for w in model.get_weights()]
        results[f"scale {name}"] = float(np.asarray(getattr(model.optimizer, "dynamic_scale", 0.0)))
    return results


@case
def regularizers_and_weights_of_classes(scope):
    """Nothing in it is of the program's own, so no step is tried out."""
    with scope():
        hidden = keras.layers.Dense(8, kernel_regularizer="l2", activity_regularizer="l2")
        model = keras.Sequential([keras.Input((4,)), hidden, keras.layers.Dense(2, activation="softmax")])
        model.compile("sgd", "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
    record = model.fit(X, LABELS, batch_size=33, epochs=3, verbose=0, class_weight={0: 1.0, 1: 3.0}).history
    return {
        **record,
        "evaluate": model.evaluate(X, LABELS, batch_size=33, verbose=0),
        "weights": [w.ravel().tolist() for w in model.get_weights()],
    }


class SumOfSequence(keras.layers.Layer):
    def call(self, x):
        return keras.ops.sum(x, axis=(1, 2))[:, None]


@case
def embedding(scope):
    """In a loop of steps, and with a step of sequences; a batch of empty ones looks nothing up."""
    ids = (np.arange(N * 3).reshape(N, 3) * 7) % 50
    with scope():
        table = keras.layers.Embedding(50, 4)
        model = keras.Sequential([keras.Input((3,), dtype="int32"), table, keras.layers.Flatten(), keras.layers.Dense(1)])
        model.compile(optimizers.Adam(0.01), "mse", steps_per_execution=3)
    results = {"loss": model.fit(ids, Y, batch_size=33, epochs=2, verbose=0, shuffle=False).history["loss"]}
    with scope():
        model = keras.Sequential([keras.Input((None,), dtype="int32"), keras.layers.Embedding(50, 4), SumOfSequence()])
        model.compile(optimizers.Adam(0.01), "mse")
    batches = [(ids[:8, :length], Y[:8]) for length in (3, 0, 2)]
    signature = (tf.TensorSpec((None, None), tf.int32), tf.TensorSpec((None, 1)))
    dataset = tf.data.Dataset.from_generator(lambda: batches, output_signature=signature)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(len(batches)))
    results["loss of sequences"] = model.fit(dataset, epochs=2, verbose=0).history["loss"]
    results["table"] = model.get_weights()[0].tolist()
    return results


@case
def on_batch_functions(scope):
    with scope():
        model = regression(optimizers.Adam(0.01))
    losses = [model.train_on_batch(X[i : i + 5], Y[i : i + 5])[0] for i in range(0, 50, 5)]
    return {
        "train": losses,
        "test": model.test_on_batch(X[:7], Y[:7]),
        "predict": model.predict_on_batch(X[:7])[:, 0].tolist(),
        "one_example": model.predict_on_batch(X[:1])[:, 0].tolist(),
    }


@case
def inputs_and_outputs_by_name(scope):
    with scope():
        a, b = keras.Input((2,), name="a"), keras.Input((2,), name="b")
        hidden = keras.layers.Dense(4)(keras.layers.Concatenate()([a, b]))
        model = keras.Model(
            {"a": a, "b": b},
            {"value": keras.layers.Dense(1, name="value")(hidden), "positive": keras.layers.Dense(1)(hidden) > 0},
        )
        model.compile("sgd", {"value": "mse", "positive": None})
    data = {"a": X[:, :2], "b": X[:, 2:]}
    record = model.fit(data, {"value": Y}, batch_size=32, epochs=2, verbose=0).history
    got = model.predict(data, batch_size=60, verbose=0)
    return {**record, "value": got["value"][:, 0].tolist(), "positive": got["positive"][:, 0].astype(int).tolist()}


class MeanError(keras.metrics.Metric):
    """Makes its variables without `add_variable`, and one that never changes."""

    def __init__(self):
        super().__init__(name="error")
        self.total, self.count, self.unit = (keras.Variable(value) for value in (0.0, 0.0, 2.0))

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign(self.total + self.unit * keras.ops.sum(keras.ops.abs(y_true - y_pred)))
        self.count.assign(self.count + keras.ops.cast(keras.ops.shape(y_true)[0], "float32"))

    def result(self):
        return self.total / self.count

    def reset_state(self):
        self.total.assign(0.0)
        self.count.assign(0.0)


@case
def a_metric_that_makes_its_variables_itself(scope):
    results = {}
    for steps, size in ((1, 32), (4, 83)):
        with scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="zeros")])
            model.compile(optimizers.SGD(0.05), "mse", metrics=[MeanError()], steps_per_execution=steps)
        record = model.fit(X, IDS[:, None] / N, batch_size=size, epochs=2, verbose=0, shuffle=False).history
        results[f"{steps}"] = record["error"]
    return {**results, "evaluate": model.evaluate(X, IDS[:, None] / N, batch_size=size, verbose=0)}


@case
def trainable_that_changes_without_compile(scope):
    with scope():
        normalization = keras.layers.BatchNormalization(synchronized=True)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), normalization, keras.layers.Dense(1)])
        model.layers[0].trainable = False
        model.compile(optimizers.Adam(0.01), "mse")
    losses = model.fit(X[:80], Y[:80], epochs=2, verbose=0, shuffle=False).history["loss"]
    for layer in model.layers:
        layer.trainable = not layer.trainable
    for size in (33, 80):  # The last batch of 33 is smaller than the number of replicas.
        losses += model.fit(X[:size], Y[:size], verbose=0, shuffle=False).history["loss"]
    return {"loss": losses, "weights": [w.ravel().tolist() for w in model.get_weights()]}


@case
def functions_of_a_model_that_the_program_calls(scope):
    """Nothing builds the metrics and the optimizer before."""
    with scope():
        model = regression(optimizers.Adam(0.01))
    model.make_train_function()
    model.make_test_function()
    results = {}
    for name, function in {"train": model.train_function, "test": model.test_function}.items():
        batches = iter(tf.data.Dataset.from_tensor_slices((X, Y)).batch(25))
        results[name] = [[float(value) for value in function(batches).values()] for _ in range(10)]
    return {**results, "weights": [w.ravel().tolist() for w in model.get_weights()]}
