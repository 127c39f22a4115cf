"""One order of the data in all tasks that take their parts of the same batches.

Input pipelines often have `deterministic=False`, which lets tf.data yield elements as soon as they are ready. Every task then
reads in an order of its own. As each takes its part of every batch, some examples would be left out and others count twice,
in every epoch, and nothing would show it. So such pipelines keep their order here.
"""

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.strategies.private_api import patches


def install() -> None:
    """Makes the steps of datasets that are made from now on keep the order. Calling it again does nothing."""
    for point in patches.DATASET_STEPS.values():
        point.patch(_in_order)


def in_same_order(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset with the order that tf.data keeps by default, even where `tf.data.Options.deterministic` is False."""
    if dataset.options().deterministic is not False:
        return dataset
    options = tf.data.Options()
    options.deterministic = True
    return dataset.with_options(options)


def _in_order(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Makes a step of a dataset without `deterministic=False`. The options of the dataset then count."""
    call = inspect.signature(original).bind(*args, **kwargs)
    if call.arguments.get("deterministic") is False:
        call.arguments["deterministic"] = None
    return original(*call.args, **call.kwargs)
