"""Momentum buffers of the optimizer that groups average with the parameters, as the option `average_momentum` says.

The momentum of a group remembers the gradients of its own batches. If only parameters are averaged, each replica goes on in
its own direction after a round. Buffers that are averaged are in blocks like those of the parameters, which are pushed and
pulled with them. Their outer rates are those of the average.
"""

from collections.abc import Iterable
from typing import Any

from tfdist.strategies.hogwild.local_variable import Kind, LocalVariable, local_variables

AVERAGE = (1.0, 0.0)
"""Outer learning rate and outer momentum of the average."""

_NAME = "_momentum"
"""How the names of the buffers end in all of Keras' optimizers that have them. Second moments are `_velocity`."""


def buffers_of(optimizers: Iterable[Any]) -> list[LocalVariable]:
    """Returns the momentum buffers of the optimizers that are built. Buffers in which each group has its own are left out."""
    named = [v for optimizer in optimizers if optimizer.built for v in optimizer.variables if v.name.endswith(_NAME)]
    found = {id(v): v for variable in named for v in local_variables(variable._value)}  # An optimizer may come twice.
    return [v for v in found.values() if v.block is None or v.kind is Kind.SYNCHRONIZED]


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
