"""The arguments of `compile`: optimizers and their options, precision, metrics, how steps run."""

import os

import keras
import numpy as np

from contract.common import (
    LABELS,
    RATE,
    X,
    Y,
    case,
    compiled,
    error_of,
    fit,
    is_distributed,
    regression,
    steps,
    trained,
    two_layers,
)

NAMES = [
    "SGD",
    "RMSprop",
    "Adam",
    "AdamW",
    "Adadelta",
    "Adagrad",
    "Adamax",
    "Adafactor",
    "Nadam",
    "Ftrl",
    "Lion",
    "Lamb",
    "Muon",
    "ScheduleFreeAdamW",
    "MultiOptimizer",
]
NAMES = [name for name in NAMES if hasattr(keras.optimizers, name)]  # Older versions of Keras lack the last ones.
OF_EACH_KIND = ("Adafactor", "Muon", "MultiOptimizer")
"""The variables and updates of all others are of the kinds that these have (MultiOptimizer has one of Adam and one of SGD): they
train only if TFDIST_TESTS is `all`."""
TRAINED = [name for name in NAMES if os.environ.get("TFDIST_TESTS") == "all" or name in OF_EACH_KIND]


def optimizer(name):
    if name == "Ftrl":  # With its defaults the first updates are so large that results depend on which worker makes them.
        return keras.optimizers.Ftrl(1e-3, initial_accumulator_value=1.0)
    if name != "MultiOptimizer":
        return getattr(keras.optimizers, name)(1e-3)
    parts = {"dense.*kernel": keras.optimizers.Adam(1e-3)}
    return keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(keras.optimizers.SGD(1e-3), parts))


@case("optimizers")
def optimizers(strategy):
    stock = {
        name
        for name, value in vars(keras.optimizers).items()
        if isinstance(value, type) and issubclass(value, keras.optimizers.Optimizer)
    }
    assert stock - {"Optimizer", "LossScaleOptimizer"} == set(NAMES), stock  # mixed_precision uses LossScaleOptimizer.
    result = {"exact": {}, "near": {}, "before": {}}
    for name in TRAINED:
        model = compiled(strategy, two_layers, lambda name=name: optimizer(name), "mse")
        if name == "Ftrl":  # Its first update replaces the initial weights, which several workers may have read by then.
            model.train_on_batch(X[:32], Y[:32])
        result["near"][name] = fit(model, X, Y, epochs=2)["loss"]
        result["before"][name] = getattr(model, "before", {}).get("loss")
        result["exact"][name] = steps(model)
    # In one process Keras' results with it depend on run_eagerly. Ours are those with run_eagerly=True.
    assert all(np.isfinite(result["near"].pop("ScheduleFreeAdamW", [])))
    return result


def with_optimizer(strategy, optimizer, **arguments):
    model = regression(strategy, optimizer, **arguments)
    result = trained(model, fit(model, X, Y, epochs=2))
    return model, result


@case("learning_rate_schedule")
def learning_rate_schedule(strategy):
    schedule = keras.optimizers.schedules.ExponentialDecay(0.02, 4, 0.5)
    model, result = with_optimizer(strategy, lambda: keras.optimizers.SGD(schedule, momentum=0.5))
    assert np.isclose(float(model.optimizer.learning_rate), 0.02 * 0.5**4, rtol=1e-4)
    return result


@case("ema")
def ema(strategy):
    model, result = with_optimizer(
        strategy, lambda: keras.optimizers.SGD(RATE, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3)
    )
    after = model.evaluate(X, Y, verbose=0, return_dict=True)
    result["near"]["evaluate"] = {name: [*result["near"][name], value] for name, value in after.items()}
    return result


@case("gradient_accumulation")
def gradient_accumulation(strategy):
    return with_optimizer(strategy, lambda: keras.optimizers.SGD(2 * RATE, gradient_accumulation_steps=4))[1]


@case("mixed_precision")
def mixed_precision(strategy):
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = regression(strategy)
        result = trained(model, fit(model, X, Y / 10, epochs=2))  # So small that no step overflows and is skipped.
    finally:
        keras.mixed_precision.set_global_policy("float32")
    assert model.optimizer.name == "loss_scale_optimizer", model.optimizer.name
    return result


def of_rows():
    return keras.Sequential([keras.Input((4,)), keras.layers.Embedding(8, 4), keras.layers.Flatten(), keras.layers.Dense(1)])


@case("half_precision")
def half_precision(strategy):
    keras.config.set_dtype_policy("bfloat16")
    try:
        model = compiled(strategy, of_rows, lambda: keras.optimizers.SGD(RATE), "mse", [])
        record = trained(model, fit(model, (np.abs(X * 7) % 8).astype("int32"), Y, epochs=2))
        assert {keras.backend.standardize_dtype(variable.dtype) for variable in model.weights} == {"bfloat16"}
        model.quantize("int8")  # Variables of a dtype that collectives refuse.
        assert np.isfinite(model.predict(np.zeros([3, 4], "int32"), verbose=0).astype("float32")).all()
        return record
    finally:
        keras.config.set_dtype_policy("float32")


@case("jit_compile", "clipvalue")
def jit_compile(strategy):
    result = with_optimizer(strategy, lambda: keras.optimizers.SGD(0.01, clipvalue=0.3), jit_compile=True)[1]
    return dict.fromkeys(("jit_compile", "clipvalue"), result)


@case("run_eagerly")
def run_eagerly(strategy):
    return with_optimizer(strategy, lambda: keras.optimizers.SGD(RATE), run_eagerly=True)[1]


@case("metrics")
def metrics(strategy):
    def build():
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, activation="softmax")])

    def several():
        return keras.metrics.F1Score(average=None, name="f1")

    with strategy.scope():
        made = ["accuracy", keras.metrics.AUC(name="auc"), several()]
    model = compiled(strategy, build, lambda: keras.optimizers.SGD(RATE), "categorical_crossentropy", made)
    labels = keras.utils.to_categorical(LABELS, 2)
    history = fit(model, X, labels, epochs=2, validation_data=(X[:60], labels[:60]))
    result = trained(model, history)
    assert np.shape(history["f1"]) == np.shape(history["val_f1"]) == (2, 2)
    return result


@case("optimizer_outside_the_scope")
def optimizer_outside_the_scope(strategy):
    optimizer = keras.optimizers.SGD()
    optimizer.build(two_layers().trainable_variables)
    model = compiled(strategy, two_layers, optimizer, "mse")
    message = error_of(lambda: fit(model, X, Y, epochs=1))
    if is_distributed(strategy):
        assert "was built outside the strategy's scope, and its variables cannot move; make it, and call" in message, message
    return {"exact": {}}


@case("model_outside_the_scope")
def model_outside_the_scope(strategy):
    keras.utils.set_random_seed(3)
    model = two_layers()
    model.compile("sgd", "mse")
    return trained(model, fit(model, X, Y, epochs=1))
