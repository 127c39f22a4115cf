"""Weights that groups cannot synchronize: a model that has them is refused when it begins to train."""

from typing import Any

from tfdist.strategies.hogwild.synchronization.local_variable import Kind, local_variables
from tfdist.strategies.keras_hooks.replicas.overwritten import is_overwritten


def check_not_own(model: Any) -> None:
    """Raises ValueError if each group has its own value of a weight of a model that begins to train.

    A step may call a model in training mode that is none of its own, as the loss of another one does. What it assigns then,
    such as moving averages, belongs to each group alone, like what else is not of the model. Scales of float8 always do.
    """
    for weight in model.weights:
        for variable in local_variables(weight._value) if not is_overwritten(weight) else ():
            if variable.block is not None and variable.kind is Kind.OWN and variable.dtype.is_floating:
                raise ValueError(
                    f"{weight.path} cannot be synchronized any more: a step of another model has called {model.name} with "
                    "training=True, and each worker group has its own value since then; train this model first, or call it "
                    "there with training=False"
                )


def check_are_real(model: Any, groups: int) -> None:
    """Raises ValueError if several groups would each train a complex weight by itself: they synchronize real numbers."""
    refused = [weight for weight in model.trainable_weights if "complex" in weight.dtype]
    if refused and groups > 1:
        raise ValueError(
            f"{refused[0].path} has the dtype {refused[0].dtype}, and worker groups of hogwild synchronize real numbers: each "
            "of them would train another one; keep the real and the imaginary part in two weights"
        )
