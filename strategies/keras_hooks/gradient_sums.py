"""Sums of gradients over replicas. Some have rows that are the same on all replicas, and count once."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.strategies.keras_hooks.held_optimizers import variables_of
from tfdist.strategies.keras_hooks.replicas.same_rows import DISTINCT, OF_EXAMPLES, SAME, Pieces, each_once, joined, pieces_of


def pieces_of_all(optimizer: Any, gradients: Sequence[Any], variables: Any) -> list[Pieces]:
    """Returns the pieces of each gradient that `optimizer.apply` gets, in the function that computes them."""
    if tf.distribute.get_replica_context().num_replicas_in_sync == 1:
        return [[(gradient, OF_EXAMPLES)] for gradient in gradients]
    tables = itertools.chain(variables_of(optimizer, variables), itertools.repeat(None))
    return [pieces_of(gradient, table) for gradient, table in zip(gradients, tables, strict=False)]


def sums_of(pieces: list[Pieces], summed: Callable[[list[Any], list[bool]], list[Any]]) -> list[Any]:
    """Returns the sum of each gradient over the replicas.

    Args:
        pieces: the pieces of each gradient.
        summed: returns the sum of each piece. It gets all pieces, and whether the rows of each are the same on all replicas.
    """
    flat = [piece for own in pieces for piece in own]
    sums = iter(summed([piece for piece, _ in flat], [kind == SAME for _, kind in flat]))
    return [joined([each_once(next(sums)) if kind == DISTINCT else next(sums) for _, kind in own]) for own in pieces]
