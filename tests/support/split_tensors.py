"""Split tensors of random numbers, and what results are compared with."""

import numpy as np
import tensorflow as tf

from tfdist.strategies.model_parallel.split_tensor import SplitTensor

RNG = np.random.default_rng(0)


def values(*shape):
    return RNG.normal(size=shape).astype("float32")


def split(value, axis, parts=2):
    return SplitTensor(parts=tuple(tf.split(value, parts, axis=axis)), axis=axis, devices=("CPU:0",) * parts)


def equal(result, expected, axis):
    """Whether a result has the expected value, and is split along this axis; None for a whole tensor."""
    assert (result.axis if isinstance(result, SplitTensor) else None) == axis
    np.testing.assert_allclose(tf.convert_to_tensor(result), expected, rtol=1e-5, atol=1e-5)
