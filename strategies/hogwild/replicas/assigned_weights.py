"""Says which variables, that a step assigns itself, do not get what one process would compute, or the mean of the groups.

A weight that is not trained gets the mean, whatever the outer optimizer. But outer rates hold for a block, and a weight that
was trained before stays in the block of those that it was trained with. And the mean of sums is no sum.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import tensorflow as tf

from tfdist.strategies.hogwild.replicas.momentum_buffers import AVERAGE
from tfdist.strategies.hogwild.synchronization.global_parameters import ParameterBlock
from tfdist.strategies.hogwild.synchronization.local_variable import LocalVariable, local_variables
from tfdist.strategies.hogwild.synchronization.outer_optimizers import OuterOptimizer
from tfdist.strategies.keras_hooks.replicas.warned import warn_once


def moved_by_outer_rates(blocks: Iterable[ParameterBlock], optimizer: OuterOptimizer) -> list[ParameterBlock]:
    """Returns the blocks, of those that are trained, of which the outer optimizer does not take the mean."""
    return [block for block in blocks if block.rates != AVERAGE or optimizer.of_averages is not optimizer]


def warn_of_assigned(
    model: Any, assigned: Mapping[int, LocalVariable], trained: Collection[int], outer: Collection[ParameterBlock]
) -> None:
    """Warns, once, of each variable that a step assigns and of which the groups do not take what they should.

    Args:
        model: the Keras model.
        assigned: the variables that the step assigns, by id.
        trained: the ids of those that the model trains.
        outer: what `moved_by_outer_rates` returned.
    """
    warn_of_frozen(model, assigned.keys() - trained, outer)
    sums = [variable for variable in assigned.values() if variable.aggregation == tf.VariableAggregation.SUM]
    if sums and len(model.distribute_strategy.worker_groups) > 1:
        _warn_of_sums(sums)


def _warn_of_sums(variables: Iterable[LocalVariable]) -> None:
    for variable in variables:
        what = "their mean" if variable.dtype.is_floating else "that of the first group"
        warn_once(
            '%s has aggregation="sum", but worker groups of hogwild do not add up what each of them adds: its value is %s. '
            "Count in a metric, such as keras.metrics.Sum",
            *(variable.path, what),
        )


def warn_of_frozen(model: Any, assigned: Collection[int], outer: Collection[ParameterBlock]) -> None:
    """Warns, once, of each weight of a model that a step assigns although the model does not train it.

    Args:
        model: the Keras model.
        assigned: the variables that the step assigns and the model does not train, by id.
        outer: what `moved_by_outer_rates` returned.
    """
    for weight in model.weights if outer else ():
        held = [v for v in local_variables(weight._value) if id(v) in assigned and v.block in outer]
        if held:
            warn_once(
                "a step assigns %s, which was trained before and is frozen now: the outer rates of the weights that it was "
                "trained with move it too, where the groups should take the mean. Load the weights into a new model",
                weight.path,
            )
