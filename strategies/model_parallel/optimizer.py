"""Refuses optimizers whose update of a variable needs all of it."""

from collections.abc import Callable
from typing import Any

from tfdist.strategies.keras_hooks.optimizer import ELEMENTWISE, is_elementwise
from tfdist.strategies.model_parallel.split_variable import SplitVariable
from tfdist.strategies.private_api import patches


def install() -> None:
    """Makes updates check their variables. Calling it again does nothing."""
    patches.UPDATE_STEP.patch(_update_step)


def _update_step(
    original: Callable[..., Any], optimizer: Any, distribution: Any, grads_and_vars: Any, learning_rate: Any
) -> None:
    pairs = list(grads_and_vars)
    split = [variable.path for _, variable in pairs if isinstance(variable, SplitVariable)]
    if split and not is_elementwise(optimizer):
        raise ValueError(
            f"{type(optimizer).__name__} may need all of a variable for its update, and {split[0]} is sharded over devices; "
            f"leave it whole, or train with one of {', '.join(sorted(each.__name__ for each in ELEMENTWISE))}"
        )
    original(optimizer, distribution, pairs, learning_rate)
