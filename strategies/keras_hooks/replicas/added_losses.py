"""Losses that layers add with `add_loss`: those that are sums over the examples of a batch count in full on several replicas.

A replica's losses count by its share of the examples, which is exact for means. Keras does not say whether an added loss is a
mean, a sum as in Keras' own example, or a number for each example, of which Keras takes the sum. So a trial of the step
(shard_check.py) looks for sums:

1. Sums are what becomes twice as large when each example is there twice.
2. The trial is repeated with these losses divided by the number of examples. The step then has to be a mean.
3. From then on each replica divides them by its share, so that they count in full.

If a layer adds sums and means, its losses stay as they are, and a warning names the layer (batch_sums.py).
"""

import weakref
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.strategies.keras_hooks.replicas import replica_context
from tfdist.strategies.keras_hooks.replicas.replica_context import Replica
from tfdist.strategies.private_api import KerasVariable

_TOLERANCE = 0.02
"""How far from 2 the growth of a sum may be."""

_ATTRIBUTE = "_tfdist_gradients_of_sums"

_sums: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


class _LossesOfReplicas(list[Any]):
    """The losses that a layer has added: for the replica whose step is traced, its own ones.

    Replicas of a worker group, and those that run eagerly, take turns in threads wherever they add up or assign values, as in
    a Dropout after this layer. One would clear, or count, what another one has added.
    """

    def _own(self) -> list[Any] | None:
        replica = replica_context.with_share()
        return None if replica is None else replica.losses.setdefault(id(self), [])

    def extend(self, losses: Iterable[Any]) -> None:
        """See `list`; and so below. Keras calls no other methods of it."""
        super().extend(losses) if (own := self._own()) is None else own.extend(losses)

    def clear(self) -> None:
        super().clear() if (own := self._own()) is None else own.clear()

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key) if (own := self._own()) is None else own[key]


def keep_by_replica(layer: Any) -> None:
    """Makes a layer keep the losses that it adds for each replica by itself."""
    if type(layer._losses) is not _LossesOfReplicas:
        vars(layer)["_losses"] = _LossesOfReplicas()  # Not an assignment, which Keras would track.


def tried_out(replica: Replica, layer: Any, losses: Any) -> list[Any]:
    """Records the losses that a layer adds in a trial, and returns what the trial adds."""
    tensors = [tf.convert_to_tensor(value) for value in tf.nest.flatten(losses)]
    replica.added += [(layer, tf.reduce_sum(tf.cast(value, tf.float32))) for value in tensors]
    if id(layer) not in replica.as_means:
        return tensors
    return [by_examples(replica, value) for value in tensors]


def by_examples(replica: Replica, value: tf.Tensor) -> tf.Tensor:
    """Returns a sum over the examples of a trial divided by their number: then it looks like a mean. Integers stay."""
    return value / tf.cast(replica.examples, value.dtype) if value.dtype.is_floating else value


def is_sum(layer: Any) -> bool:
    """Returns whether a trial has found that a layer adds sums over the examples."""
    return id(layer) in _sums


def has_gradients_of_sums(model: Any, variable: Any) -> bool:
    """Returns whether a trial has found that the step of a model takes gradients of sums, first by this variable."""
    return model is not None and id(variable) in vars(model).get(_ATTRIBUTE, ())


def in_full(replica: Replica, losses: Any) -> list[Any]:
    """Returns sums over a replica's examples as they have to be added, so that they count in full."""
    tensors = [tf.convert_to_tensor(value) for value in tf.nest.flatten(losses)]
    return [
        tf.math.divide_no_nan(value, tf.cast(replica.share, value.dtype)) if value.dtype.is_floating else value
        for value in tensors
    ]


def recorded(replica: Replica) -> list[tuple[Any, Any]]:
    """Returns what layers have added in a trial, as (layer, number); 0 for what is added in a branch or a loop."""
    graph = tf.compat.v1.get_default_graph()
    return [(layer, value if value.graph is graph else tf.constant(0.0)) for layer, value in replica.added]


class AddedLosses:
    """The added losses of one model. All tasks make the same calls.

    Args:
        model: the Keras model.
        of_chief: takes numbers and returns those of the first task: each has seen other examples.
    """

    def __init__(self, model: Any, of_chief: Any) -> None:
        self._model = model
        self._layers = [*model._flatten_layers(), *model.trainable_variables]  # Variables: see `batch_sums.gradients_in_full`.
        self._of_chief = of_chief

    def agreed(self, ids: Collection[int]) -> frozenset[int]:
        """Returns the ids of layers that the first task has found, given the ids of those that this task has."""
        numbers = np.array([float(id(layer) in ids) for layer in self._layers])
        return frozenset(id(layer) for layer, one in zip(self._layers, self._of_chief(numbers), strict=True) if one)

    def add_in_full(self, ids: Collection[int]) -> None:
        """Lets the losses of layers with these ids count in full from now on, and those of no others of the model."""
        # A model of the same variables may take gradients of something else.
        vars(self._model)[_ATTRIBUTE] = {id(each) for each in self._layers if isinstance(each, KerasVariable)} & set(ids)
        for layer in self._model._flatten_layers():
            if id(layer) in ids:
                _sums[id(layer)] = layer
            else:
                _sums.pop(id(layer), None)


def sums_among(layers: Sequence[Any], growth: Sequence[float | None], compares: Sequence[bool]) -> set[int]:
    """Returns the ids of layers all of whose losses are sums over the examples.

    Args:
        layers: the layer that adds each loss.
        growth: how many times as large each is with each example twice; None if it is 0.
        compares: for each, whether what an example adds depends on the others of its batch.
    """
    kinds: dict[int, set[bool]] = {}
    for layer, times, depends in zip(layers, growth, compares, strict=True):
        if times is not None:
            kinds.setdefault(id(layer), set()).add(abs(times - 2) < _TOLERANCE and not depends)
    return {layer for layer, are_sums in kinds.items() if are_sums == {True}}
