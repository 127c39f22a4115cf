"""Says which weights that a step of another model has assigned cannot train, and which frozen ones do not get the mean.

A step may call a model in training mode that is none of its own, as the loss of another one does. What it assigns then, such as
moving averages, belongs to each group alone, like what else is not of the model: it cannot be synchronized any more.

A weight that is not trained gets the mean, whatever the outer optimizer. But outer rates hold for a block, and a weight that
was trained before stays in the block of those that it was trained with.
"""

import logging
from collections.abc import Collection, Iterable
from typing import Any

from tfdist.strategies.hogwild.replicas.momentum_buffers import AVERAGE
from tfdist.strategies.hogwild.synchronization.global_parameters import ParameterBlock
from tfdist.strategies.hogwild.synchronization.local_variable import Kind, local_variables
from tfdist.strategies.hogwild.synchronization.outer_optimizers import OuterOptimizer

_log = logging.getLogger("tfdist")
_warned: set[str] = set()


def check_not_own(model: Any) -> None:
    """Raises ValueError if each group has its own value of a weight of a model that begins to train."""
    for weight in model.weights:
        for variable in local_variables(weight._value):
            if variable.block is not None and variable.kind is Kind.OWN and variable.dtype.is_floating:
                raise ValueError(
                    f"{weight.path} cannot be synchronized any more: a step of another model has called {model.name} with "
                    "training=True, and each worker group has its own value since then; train this model first, or call it "
                    "there with training=False"
                )


def moved_by_outer_rates(blocks: Iterable[ParameterBlock], optimizer: OuterOptimizer) -> list[ParameterBlock]:
    """Returns the blocks, of those that are trained, of which the outer optimizer does not take the mean."""
    return [block for block in blocks if block.rates != AVERAGE or optimizer.of_averages is not optimizer]


def warn_of_frozen(model: Any, assigned: Collection[int], outer: Collection[ParameterBlock]) -> None:
    """Warns, once, of each weight of a model that a step assigns although the model does not train it.

    Args:
        model: the Keras model.
        assigned: the variables that the step assigns and the model does not train, by id.
        outer: what `moved_by_outer_rates` returned.
    """
    for weight in model.weights if outer else ():
        held = [v for v in local_variables(weight._value) if id(v) in assigned and v.block in outer]
        if held and weight.path not in _warned:
            _warned.add(weight.path)
            _log.warning(
                "a step assigns %s, which was trained before and is frozen now: the outer rates of the weights that it was "
                "trained with move it too, where the groups should take the mean. Load the weights into a new model",
                weight.path,
            )
