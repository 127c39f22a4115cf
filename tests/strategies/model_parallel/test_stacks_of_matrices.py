"""Products of tensors with split stacks of matrices, as those of experts, are computed on their parts."""

import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from split_tensors import equal, split, values

from tfdist.strategies.model_parallel import rules


@pytest.fixture(autouse=True, scope="module")
def installed():
    rules.install()


@pytest.mark.parametrize("shape", [(6,), (5, 6), (1, 5, 6), (4, 5, 6), (3, 1, 5, 6), (3, 4, 5, 6)])
@pytest.mark.parametrize("kernel_axis", [0, 1, 2])
def test_a_product_with_a_stack_of_matrices_is_computed_on_its_parts(kernel_axis, shape):
    x, kernel = values(*shape), values(4, 6, 2)
    expected = x @ kernel
    axis = {0: expected.ndim - (2 if len(shape) == 1 else 3), 1: None, 2: expected.ndim - 1}[kernel_axis]
    equal(ops.matmul(x, split(kernel, kernel_axis)), expected, axis)
    if len(shape) > 1:
        equal(rules.matmul(tf.matmul, x, split(kernel, kernel_axis)), expected, axis)
    if len(shape) > 2 and shape[-3] == 4:  # The result of a product before.
        equal(ops.matmul(split(x, len(shape) - 3), split(kernel, kernel_axis)), expected, axis)


def test_a_product_with_a_vector_or_a_stack_of_unknown_length_gets_whole_tensors():
    x, vector, kernel = values(5, 6), values(6), values(4, 6, 2)
    equal(ops.matmul(x, split(vector, 0)), x @ vector, None)
    product = tf.function(
        lambda x: tf.convert_to_tensor(ops.matmul(x, split(kernel, 0))), input_signature=[tf.TensorSpec([None, 5, 6])]
    )
    for length in (1, 4):
        x = values(length, 5, 6)
        np.testing.assert_allclose(product(tf.constant(x)), x @ kernel, rtol=1e-5, atol=1e-5)
