"""Split tensors where only their shape is asked for, and beside tensors whose shape a step learns only when it runs."""

import operator
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from split_tensors import split, values

from tfdist.strategies.keras_hooks.replicas import replica_context
from tfdist.strategies.model_parallel import rules, tensorflow_functions
from tfdist.strategies.model_parallel.split_variable import SplitVariable


@pytest.fixture(autouse=True, scope="module")
def installed():
    rules.install()
    tensorflow_functions.install()


@pytest.mark.parametrize("operation", [operator.add, ops.multiply, tf.maximum])
def test_an_operand_of_unknown_rank_meets_the_whole_tensor(operation):
    x = values(4, 6)

    @tf.function(input_signature=[tf.TensorSpec(None)])
    def both(y):
        return operation(split(x, 1), y), operation(y, split(x, 1))

    for y in (values(6), values(3, 4, 1), values(1)[0]):
        for found in both(tf.constant(y)):
            np.testing.assert_allclose(found, operation(tf.constant(x), y), rtol=1e-6)


@pytest.mark.parametrize("known", [[4, 6], [None, 6]])
def test_the_shape_of_a_split_tensor_needs_no_whole_one(known):
    @tf.function(input_signature=[tf.TensorSpec(known)])
    def shapes(x):
        return [*ops.shape(split(x, 1)), *tf.unstack(tf.shape(split(x, 1), tf.int64))]

    assert [int(each) for each in shapes(tf.constant(values(4, 6)))] == [4, 6, 4, 6]
    assert "ConcatV2" not in {each.type for each in shapes.get_concrete_function().graph.get_operations()}


def sharded(value, axis):
    parts = [tf.Variable(part) for part in np.split(value, 2, axis=axis)]
    return SplitVariable(parts, axis, keras.Variable(0.0, name="kernel"), SimpleNamespace(extended=None), range(2), 2)


def test_a_step_may_ask_for_the_shape_of_a_sharded_variable():
    kernel = sharded(values(4, 6), 1)
    with replica_context.entered(replica_context.Replica(None, 0, None)):
        assert tf.shape(kernel).numpy().tolist() == [4, 6]
        with pytest.raises(ValueError, match="kernel is sharded over 2 devices, and this step reads it as a whole"):
            tf.reverse(kernel, [0])


def test_a_sharded_variable_has_the_name_of_a_whole_one():
    """Patterns of `exclude_from_weight_decay` are looked for in it."""
    assert sharded(values(4, 6), 1).name == tf.Variable(0.0, name="kernel").name


def test_a_product_with_a_sharded_variable_needs_no_whole_tensor():
    x, kernel = values(4, 6), values(6, 2)
    variable = sharded(kernel, 0)

    @tf.function
    def product(x):
        with replica_context.entered(replica_context.Replica(None, 0, None)):
            return split(x, 1) @ variable

    np.testing.assert_allclose(product(tf.constant(x)), x @ kernel, rtol=1e-5)
    operations = product.get_concrete_function(tf.constant(x)).graph.get_operations()
    assert not any(each.outputs[0].consumers() for each in operations if each.type == "ConcatV2")
