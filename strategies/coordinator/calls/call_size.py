"""How many batches the chief sends with one call: a message has a limit, and the chief's memory, too."""

import math

import tensorflow as tf

from tfdist.strategies.coordinator.calls.group_function import HostBatch

MOST_CALL_BYTES = 2**29
"""The batches of a call have at most so many bytes, unless one batch has more. Messages end at 2 GiB, and the chief holds the
batches of two calls for each group. With fewer bytes, groups of hogwild with large batches would synchronize between their
calls."""


def batches_per_call(batches: int, batch_bytes: int) -> int:
    """Returns how many of so many batches, at least one, the chief sends with a call: all, or an equal part of them."""
    most = max(1, MOST_CALL_BYTES // max(1, batch_bytes))
    return math.ceil(batches / math.ceil(batches / most))


def bytes_of(batch: HostBatch) -> int:
    """Returns how many bytes the chief sends for a batch, as far as shapes tell it: without those of texts, for example."""
    if batch.arrays is not None:
        return sum(array.nbytes for array in batch.arrays)
    dense = [value for value in batch.flat if isinstance(value, tf.Tensor)]
    return sum(value.shape.num_elements() * value.dtype.size for value in dense)


def calls_of(run: list[HostBatch]) -> list[list[HostBatch]]:
    """Splits batches of equal shapes, at least one, into those of calls: all in one, equal parts if they are large."""
    size = batches_per_call(len(run), bytes_of(run[0]))
    return [run[begin : begin + size] for begin in range(0, len(run), size)]
