"""`TracedStep`: a step as it is tried out (shard_check.py), and what was seen while it was traced."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.strategies.keras_hooks.checks.step_trial import mapped


@dataclass
class TracedStep:
    """A step that is traced to be tried out.

    Attributes:
        function: a function of a batch and of the number of a draw that returns a `summary` of what the step updates, then of
            what it adds to metrics, of the losses that layers add, and of its logs. Draws with other numbers have other random
            numbers.
        names: of what it updates, see `Replica.recorded`.
        sizes: see `Replica.sizes_of_updates`.
        counted: the variables of metrics that it assigns.
        settled: the ids of those of them that Keras' metrics count rightly.
        adding: the layer of each loss that layers add.
        log_names: the names of its logs that are one number.
        growths: the `growth_of` what it adds to these variables, of these losses and of these logs.
        integer: see `Outcome`.
        shown: why replicas compute another update, as the operations of its updates tell; None for nothing.
        branches: see `Replica`.
        unseen: the first one of `Replica.unseen`, if any.
        reads_replicas: see `Replica`.
        unbuilt: the updates of optimizers that have no variables yet, as (optimizer, variables).
    """

    function: Any = None
    names: Sequence[str | None] = ()
    sizes: Sequence[int] = ()
    counted: Sequence[Any] = ()
    settled: set[int] = field(default_factory=set)
    adding: Sequence[Any] = ()
    log_names: Sequence[str] = ()
    growths: Sequence[float | None] = ()
    integer: str | None = None
    shown: str | None = None
    branches: Sequence[Any] = ()
    unseen: str | None = None
    reads_replicas: bool = False
    unbuilt: Sequence[tuple[Any, Any]] = ()

    def growth(self, batch: Any, draws: Sequence[int], places: Any, whole: bool = False) -> list[float | None]:
        """Returns the norms of what the step gives for a whole batch over those for its half; None for 0 / 0.

        Args:
            batch: the batch.
            draws: draws of random numbers, each with another order of the examples. Their mean counts.
            places: of what the step gives.
            whole: whether to return the one number for all places together.
        """
        squares = []
        for draw in draws:
            all_examples = mapped(lambda v, k=draw: tf.roll(v, k, axis=0), batch)
            half = mapped(lambda v: v[: v.shape[0] // 2], all_examples)
            results = [self.function(each, tf.constant(draw)) for each in (all_examples, half)]
            squares.append([norms.numpy()[places].astype(np.float64) ** 2 for _, norms in results])
        large, small = np.sqrt(np.mean(squares, axis=0).sum(axis=1, keepdims=True) if whole else np.mean(squares, axis=0))
        return [float(above / below) if below else None for above, below in zip(large, small, strict=True)]
