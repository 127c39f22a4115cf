"""Sums gradients over the replicas of several tasks in buckets, each as soon as its gradients are there.

TensorFlow packs all gradients of a step into one collective, which begins after the last gradient, and orders further ones one
after the other, as NCCL needs it. The rings of CPUs need no order, because each message names its collective: the buckets of a
step are sent while others are still computed, added up or copied, and replicas need not begin them in the same order.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

BUCKET_BYTES = 2**20
"""Gradients that are smaller share a bucket until it has this size; a larger one has its own, without copies."""

BUCKETS = 8
"""Larger models have larger buckets, about this many. TensorFlow keeps about 1.5 KB for each collective it runs,
and each collective occupies a thread."""


def buckets(sizes: Sequence[int], limit: int) -> list[list[int]]:
    """Returns the indices of the gradients of each bucket, in the order in which backpropagation completes buckets.

    Args:
        sizes: the bytes of each gradient, in the order of the variables.
        limit: the size in bytes that fills a bucket.
    """
    groups: list[list[int]] = []
    small: list[int] = []
    filled = 0
    for index in reversed(range(len(sizes))):
        if sizes[index] >= limit:
            groups.append([index])
            continue
        small.append(index)
        filled += sizes[index]
        if filled >= limit:
            groups.append(small)
            small, filled = [], 0
    return [*groups, small] if small else groups


def sums(values: Sequence[tf.Tensor], all_reduce: Callable[[tf.Tensor], tf.Tensor]) -> list[tf.Tensor]:
    """Returns the sum of each tensor over all replicas.

    Args:
        values: tensors of one dtype and of known shapes, the same on every replica.
        all_reduce: returns the sum of one tensor over all replicas.
    """
    results = list(values)
    sizes = [value.shape.num_elements() * value.dtype.size for value in values]
    for indices in buckets(sizes, max(BUCKET_BYTES, sum(sizes) // BUCKETS)):
        if len(indices) == 1:
            results[indices[0]] = all_reduce(values[indices[0]])
            continue
        total = all_reduce(tf.concat([tf.reshape(values[index], [-1]) for index in indices], 0))
        parts = tf.split(total, [values[index].shape.num_elements() for index in indices])
        for index, part in zip(indices, parts, strict=True):
            results[index] = tf.reshape(part, values[index].shape)
    return results
