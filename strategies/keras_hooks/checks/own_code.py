"""Which of the code that a model runs is not Keras': its replicas may compute something else than one process."""

from typing import Any

import keras
import tensorflow as tf

from tfdist.strategies.keras_hooks.checks import metric_trial
from tfdist.strategies.keras_hooks.interface import is_data_parallel
from tfdist.strategies.private_api import TensorFlowTrainer


def has_own_step(model: Any) -> bool:
    """Returns whether a model has a `train_step` of its own."""
    return type(model).train_step is not TensorFlowTrainer.train_step


def has_own_loss(model: Any) -> bool:
    """Returns whether a model has a `compute_loss` of its own."""
    return type(model).compute_loss is not TensorFlowTrainer.compute_loss


def has_own_updates(model: Any) -> bool:
    """Returns whether a model's optimizer has code of the user's that gets the gradients of a shard, as in worker groups."""
    if model.optimizer is None or is_data_parallel(model.distribute_strategy):  # There it gets sums (optimizer.py).
        return False
    return not all(is_known(owner_of(type(model.optimizer), name)) for name in ("apply", "apply_gradients"))


def _has_own_regularizer(layer: Any) -> bool:
    """Returns whether the outputs of a layer are regularized by code that may compare the examples."""
    regularizer = layer.activity_regularizer
    return not is_known(_code_of(regularizer)) or isinstance(regularizer, keras.regularizers.OrthogonalRegularizer)


def _may_compare(layer: Any) -> bool:
    """Returns whether a layer runs code of the user's on its inputs, or computes along the dimension of the examples."""
    activation = _code_of(getattr(layer, "activation", None))
    is_own = not is_known(type(layer)) or isinstance(layer, keras.layers.Lambda)
    return is_own or not is_known(activation, "tensorflow") or 0 in tf.nest.flatten(getattr(layer, "axis", None))


def may_compare(model: Any) -> bool:
    """Returns whether the outputs of a model may depend on which examples are together in a batch."""
    operations = getattr(model, "operations", ())  # Those that are no layers are `keras.ops` in a functional model.
    return any(not isinstance(each, keras.Layer) for each in operations) or any(map(_may_compare, model._flatten_layers()))


def has_own_code(model: Any) -> bool:
    """Returns whether a model runs code that is not Keras': what Keras' own layers and losses compute is known."""
    losses = tf.nest.flatten(getattr(model, "loss", None))
    return (
        has_own_step(model)
        or has_own_updates(model)
        or has_own_metrics(model)
        or any(map(_has_own_regularizer, model._flatten_layers()))
        or has_own_loss(model)
        or may_compare(model)
        or any(not is_known(_code_of(loss)) for loss in losses)
        or any(_name_of(loss).lower() == "circle" for loss in losses)  # The one loss of Keras that compares examples.
    )


def has_own_metrics(model: Any) -> bool:
    """Returns whether a model has metrics of the user's, or computes metrics in a way of its own."""
    own = type(model).compute_metrics is not keras.Model.compute_metrics
    codes = (code for metric in metric_trial.leaves(model) for code in (type(metric), getattr(metric, "_fn", None)))
    return own or not all(code is None or is_known(code) for code in codes)


def has_own_test_step(model: Any) -> bool:
    """Returns whether a model has a `test_step` of its own."""
    return type(model).test_step is not TensorFlowTrainer.test_step


def has_own_test(model: Any) -> bool:
    """Returns whether the metrics of `test_step` may count something that is no sum over the examples."""
    return has_own_test_step(model) or has_own_loss(model) or has_own_metrics(model)


def has_own_prediction(model: Any) -> bool:
    """Returns whether `predict` may update a metric of the user's. It updates none of `compile`."""
    return any(not is_known(type(metric)) for layer in model._flatten_layers() for metric in keras.Layer.metrics.fget(layer))


def _code_of(value: Any) -> Any:
    """Returns a function or class as it is, and the class of any other value."""
    return value if hasattr(value, "__name__") else type(value)


def _name_of(loss: Any) -> str:
    """Returns the name of a loss of `compile`: of a function, of a class, of the class of an object, or as a string."""
    return loss if isinstance(loss, str) else str(_code_of(loss).__name__)


def owner_of(method_class: type, name: str) -> type:
    """Returns the class that defines the method which a class has by this name: itself, or one that it inherits from."""
    return next(base for base in method_class.__mro__ if name in vars(base))


def is_known(code: Any, *others: str) -> bool:
    """Returns whether a class or a function is of Keras, of one of other packages, or built in, as the name of a loss."""
    return getattr(code, "__module__", "").partition(".")[0] in ("keras", "builtins", *others)
