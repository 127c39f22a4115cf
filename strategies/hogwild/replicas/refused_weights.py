"""Weights that groups cannot synchronize: a model that has them is refused when it begins to train."""

from typing import Any

from tfdist.strategies.hogwild.synchronization.local_variable import Kind, local_variables
from tfdist.strategies.keras_hooks.replicas.overwritten import is_overwritten


def check_not_own(model: Any) -> None:
    """Raises ValueError if each group has its own value of a weight of a model that begins to train.

    The optimizer of another model may have updated a weight that was made with `trainable=False`: outside of its own model it
    looks like a slot, of which each group has its own. Scales of float8 always are each group's.
    """
    for weight in model.weights:
        for variable in local_variables(weight._value) if not is_overwritten(weight) else ():
            if variable.block is not None and variable.kind is Kind.OWN and variable.dtype.is_floating:
                raise ValueError(
                    f"{weight.path} cannot be synchronized any more: a step of another model has updated it although it is "
                    f"not trainable, and each worker group has its own value since then; train {model.name} first, or make "
                    "the weight with trainable=True"
                )


def check_are_real(model: Any, groups: int) -> None:
    """Raises ValueError if several groups would each train a complex weight by itself: they synchronize real numbers."""
    refused = [weight for weight in model.trainable_weights if "complex" in weight.dtype]
    if refused and groups > 1:
        raise ValueError(
            f"{refused[0].path} has the dtype {refused[0].dtype}, and worker groups of hogwild synchronize real numbers: each "
            "of them would train another one; keep the real and the imaginary part in two weights"
        )
