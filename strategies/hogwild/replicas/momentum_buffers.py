"""Momentum buffers of the optimizer that groups average with the parameters, as the option `average_momentum` says.

The momentum of a group remembers the gradients of its own batches. If only parameters are averaged, each replica goes on in
its own direction after a round. Averaged buffers are in blocks like those of the parameters, which are pushed and pulled with
them, and are averaged whatever the outer rates.

The momentum of Adam and its relatives stays with the group. They divide it by a second moment, which also stays with the group
and is zero where the group has seen no gradient of a weight yet, as of a unit that its batches do not activate. The momentum of
the others would be divided by epsilon there.
"""

from collections.abc import Iterable
from typing import Any

import keras

from tfdist.strategies.hogwild.synchronization.local_variable import Kind, LocalVariable, local_variables

AVERAGE = (1.0, 0.0)
"""Outer learning rate and outer momentum of the average."""

_NAME = "_momentum"
"""How the names of the buffers end in all of Keras' optimizers that have them."""

_SECOND_MOMENTS = ("_velocity", "_norm")
"""How those of second moments end."""


def buffers_of(optimizers: Iterable[Any]) -> list[LocalVariable]:
    """Returns the momentum buffers of the optimizers that are built. Buffers in which each group has its own are left out."""
    named = [v for optimizer in optimizers if optimizer.built for v in optimizer.variables if _is_averaged(v.name, optimizer)]
    found = {id(v): v for variable in named for v in local_variables(variable._value)}  # An optimizer may come twice.
    return [v for v in found.values() if v.block is None or v.kind is Kind.SYNCHRONIZED]


def why_none(optimizers: Iterable[Any]) -> str:
    """Returns why these optimizers have no buffers that are averaged."""
    for optimizer in optimizers:
        if optimizer.built and any(variable.name.endswith(_NAME) for variable in optimizer.variables):
            return f"{type(optimizer).__name__} divides its momentum by a second moment, which each group has for itself"
    return "before the first step, the optimizer has no momentum buffers"


def _is_averaged(name: str, optimizer: Any) -> bool:
    if not name.endswith(_NAME):
        return False
    names = {variable.name for variable in optimizer.variables}
    is_divided = any(name.removesuffix(_NAME) + each in names for each in _SECOND_MOMENTS)
    return not is_divided or isinstance(optimizer, keras.optimizers.RMSprop)  # Its buffers add up what was divided before.


def turns(fragments: int, parameters: int, averaged: int) -> list[tuple[int, ...]]:
    """Returns the blocks that are synchronized together, by their position, for each turn.

    Args:
        fragments: number of fragments, and of turns. If there are more than blocks, nothing is synchronized in some turns. With
            one, all blocks are synchronized in one turn.
        parameters: number of blocks of parameters, which come first.
        averaged: number of blocks of which groups take the mean: those of buffers, then those of moving averages.
    """
    return [
        (*range(turn, parameters, fragments), *range(parameters + turn, parameters + averaged, fragments))
        for turn in range(fragments)
    ]
