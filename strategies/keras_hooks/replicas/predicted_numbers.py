"""What `predict_step` returns as one number for a batch, of which each replica has a shard."""

import logging
from typing import Any

import tensorflow as tf

from tfdist.strategies.keras_hooks.replicas import own_values
from tfdist.strategies.keras_hooks.replicas.reduction import all_reduce_sum, is_number
from tfdist.strategies.keras_hooks.replicas.same_rows import depends_on_batch
from tfdist.strategies.keras_hooks.replicas.warned import is_first_warning
from tfdist.strategies.private_api import KerasVariable

_NO_TENSORS = (tf.Variable, KerasVariable, int, float)

_log = logging.getLogger("tfdist")


def of_whole_batch(outputs: Any, model: Any, share: Any) -> Any:
    """Returns the outputs of a replica, with that of the whole batch in place of each that is one number. All have to call it.

    That is the mean over the replicas, each with its share of the examples; of integers and truth values that of the first one.
    A warning names the model if a number may depend on the batch: such a mean is that of one process only for a mean.

    Args:
        outputs: nested tensors.
        model: the Keras model.
        share: the replica's part of the examples, a scalar; None if it is alone.
    """
    flat = [tf.convert_to_tensor(v) if isinstance(v, _NO_TENSORS) else v for v in tf.nest.flatten(outputs)]
    places = [n for n, value in enumerate(flat) if isinstance(value, tf.Tensor) and value.shape.rank == 0 and is_number(value)]
    if share is None or not places:
        return tf.nest.pack_sequence_as(outputs, flat)
    context = tf.distribute.get_replica_context()
    if any(tf.executing_eagerly() or depends_on_batch(flat[n]) for n in places) and is_first_warning(model, "predictions"):
        _log.warning(
            "predict of %s (%s) may differ from that in one process, because %d replicas share each batch: it returns one "
            "number for a batch. The mean over the replicas counts, of integers the first. Return a number for each example",
            *(model.name, type(model).__name__, context.num_replicas_in_sync),
        )
    is_first = tf.get_static_value(context.replica_id_in_sync_group) == 0
    share, first = tf.cast(share, tf.float64), tf.constant(float(is_first), tf.float64)
    weights = [share if flat[n].dtype.is_floating else first for n in places]
    *sums, whole = all_reduce_sum([*map(own_values.counted, (flat[n] for n in places), weights), share])
    for n, total, weight in zip(places, sums, weights, strict=True):
        flat[n] = tf.cast(tf.math.divide_no_nan(total, whole) if weight is share else total, flat[n].dtype)
    return tf.nest.pack_sequence_as(outputs, flat)
