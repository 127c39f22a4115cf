"""The metrics of an epoch that is not over, as a backup has them."""

import logging
from collections.abc import Callable
from typing import Any

_log = logging.getLogger("tfdist")


def assign_metric_values(
    model: Any, values: list[Any], assign: Callable[[Any, Any], object] = lambda variable, value: variable.assign(value)
) -> bool:
    """Gives the metrics of a model the values of a backup. Returns whether they have them; if not, a warning names the model.

    Args:
        model: the Keras model.
        values: numpy arrays, as many as the metrics had variables.
        assign: assigns a value to a Keras variable.
    """
    variables = model.metrics_variables
    if len(variables) != len(values):
        _log.warning("the metrics of this epoch of %s count only what follows the restart", model.name)
        return False
    for variable, value in zip(variables, values, strict=True):
        assign(variable, value)
    return True
