"""Keras' operations on split tensors give what they give on whole ones, and keep them split where they can."""

import itertools
import operator

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from split_tensors import RNG, equal, split, values

from tfdist.strategies.model_parallel import rules
from tfdist.strategies.model_parallel.split_tensor import SplitTensor


@pytest.fixture(autouse=True, scope="module")
def installed():
    rules.install()


@pytest.mark.parametrize("shape", [(6,), (4, 6), (2, 5, 6)])
@pytest.mark.parametrize("input_axis, kernel_axis", [(None, 0), (None, 1), *itertools.product([-1, 0], [0, 1, None])])
def test_matmul(shape, input_axis, kernel_axis):
    x, kernel = values(*shape), values(6, 4)
    ours = x if input_axis is None else split(x, input_axis % len(shape))
    result = ops.matmul(ours, kernel if kernel_axis is None else split(kernel, kernel_axis))
    stays = input_axis == 0 and len(shape) > 1
    equal(result, x @ kernel, {0: None, 1: len(shape) - 1, None: 0 if stays else None}[kernel_axis])


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


@pytest.mark.parametrize(
    "equation, shapes, axes, axis",
    [
        ("abc,cde->abde", [(2, 3, 4), (4, 6, 5)], (None, 1), 2),  # the heads of a query
        ("abcd,cde->abe", [(2, 3, 4, 5), (4, 5, 6)], (2, 0), None),  # the output of attention
        ("abcd,cde->abe", [(2, 3, 4, 5), (4, 5, 6)], (None, 0), None),
        ("aecd,abcd->acbe", [(2, 3, 4, 5), (2, 6, 4, 5)], (2, 2), 1),  # the scores
        ("acbe,aecd->abcd", [(2, 4, 6, 3), (2, 3, 4, 5)], (1, 2), 2),
        ("...x,xy->...y", [(2, 3, 4), (4, 6)], (None, 1), 2),
        ("...x,xy->...y", [(2, 3, 4), (4, 6)], (2, 0), None),
        ("ab,bc->ac", [(4, 6), (6, 8)], (0, None), 0),
        ("ab,bc->ac", [(4, 6), (6, 8)], (0, 1), 0),
        ("...ab,...cb->...ac", [(2, 3, 4), (1, 5, 4)], (0, None), None),  # broadcast
        ("...ab,...cb->...ac", [(2, 3, 4), (1, 5, 4)], (2, None), None),
        ("...ab,...cb->...ac", [(2, 3, 4), (2, 5, 4)], (0, None), 0),
    ],
)
def test_einsum(equation, shapes, axes, axis):
    operands = [values(*shape) for shape in shapes]
    ours = [value if place is None else split(value, place) for value, place in zip(operands, axes, strict=True)]
    equal(ops.einsum(equation, *ours), np.einsum(equation, *operands), axis)


@pytest.mark.parametrize("compiled", [False, True])
def test_an_error_of_an_operation_on_a_part_is_not_hidden_by_that_of_the_device_scope(compiled):
    def of_another_shape():
        with tf.device("CPU:0"):
            ops.matmul(tf.constant(values(3, 5)), split(tf.constant(values(4, 6)), 1))

    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=r"\b5\b"):
        (tf.function(of_another_shape) if compiled else of_another_shape)()


OTHERS = [2.0, (6,), (1,), (4, 6), (4, 1), (3, 4, 6), (3, 4, 1), (3, 1, 1)]
AS_SUBTRACT = [(name, (6,)) for name in ("multiply", "divide", "maximum", "minimum")]  # By the same code.


@pytest.mark.parametrize("name, other", [*itertools.product(["add", "subtract"], OTHERS), *AS_SUBTRACT])
def test_elementwise_operations_broadcast(name, other):
    x = values(4, 6)
    y = other if isinstance(other, float) else np.abs(values(*other)) + 1
    operation = getattr(ops, name)
    rank = max(2, np.ndim(y))
    equal(operation(split(x, 1), y), getattr(np, name)(x, y), rank - 1)
    equal(operation(y, split(np.abs(x) + 1, 1)), getattr(np, name)(y, np.abs(x) + 1), rank - 1)


def test_two_split_tensors_meet_or_are_joined():
    x, y = values(4, 6), values(4, 6)
    equal(split(x, 1) * split(y, 1), x * y, 1)
    equal(split(x, 1) * split(y, 0), x * y, 1)  # The other one is cut anew.
    equal(split(x, 1) + split(y[0], 0), x + y[0], 1)
    equal(split(x, 1) * split(y[:, :1], 0), x * y[:, :1], 1)
    wide = values(3, 6)  # Keras' `add` takes three values for the bias of parts with three channels.
    equal(ops.add(split(wide, 1), wide[:, :1]), wide + wide[:, :1], 1)
    equal(1.0 - split(x, 0), 1 - x, 0)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("operation", [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow])
def test_arrays_on_the_left_keep_the_split_and_the_gradient(operation, compiled):
    x, y = np.abs(values(4, 6)) + 1, np.abs(values(6)) + 1

    def results(make):
        source = tf.constant(x)
        with tf.GradientTape() as tape:
            tape.watch(source)
            result = operation(y, make(source))
        return result, tape.gradient(result, source)

    wrap = tf.function if compiled else lambda function: function
    result, gradient = wrap(lambda: results(lambda source: split(source, 1)))()
    expected, expected_gradient = results(tf.identity)
    equal(result, expected, 1)
    np.testing.assert_allclose(tf.convert_to_tensor(gradient), expected_gradient, rtol=1e-5)


@pytest.mark.parametrize(
    "name", ["relu", "gelu", "silu", "tanh", "exp", "square", "abs", "softplus", "leaky_relu", "sqrt", "negative"]
)
def test_elementwise_functions_keep_the_split(name):
    x = np.abs(values(4, 6)) + 0.1
    equal(getattr(ops, name)(split(x, 1)), getattr(ops, name)(x), 1)


def test_what_has_no_rule_gets_the_whole_tensor():
    x = values(4, 6)
    equal(ops.mean(split(x, 1), axis=-1), x.mean(-1), None)
    equal(ops.concatenate([split(x, 1), x]), np.concatenate([x, x]), None)
    equal(split(x, 1)[:, 1:3], x[:, 1:3], None)
    equal(ops.sigmoid(split(x, 1)), ops.sigmoid(x), None)
    equal(ops.cumsum(split(x, 1), axis=1), np.cumsum(x, 1), None)


def test_sum_transpose_softmax_and_reshape():
    x = values(4, 6)
    equal(ops.sum(split(x, 1)), x.sum(), None)
    equal(ops.sum(split(x, 1), axis=0), x.sum(0), None)
    equal(ops.transpose(split(x, 1)), x.T, 0)
    equal(ops.transpose(split(values(2, 4, 6), 2), (2, 0, 1)).parts[0].shape[0], 3, None)
    equal(ops.softmax(split(x, 0), axis=-1), ops.softmax(x, axis=-1), 0)
    equal(ops.softmax(split(x, 1), axis=-1), ops.softmax(x, axis=-1), None)
    equal(ops.reshape(split(x[0], 0), (1, 1, 6)), x[0].reshape(1, 1, 6), 2)
    equal(ops.reshape(split(x, 1), (6, 4)), x.reshape(6, 4), None)


MOVES = {
    "a slice along the other axis": (lambda x: ops.slice(x, (0, 1, 0), (2, 2, 6)), 2, 2),
    "a slice of the parts": (lambda x: ops.slice(x, (0, 1, 2), (2, 2, 3)), 2, None),
    "a slice of one part": (lambda x: tf.slice(x, (0, 0, 4), (-1, -1, 2)), 2, None),
    "a slice to the end": (lambda x: tf.slice(x, (0, 0, 1), (-1, -1, -1)), 2, None),
    "a slice of known tensors": (lambda x: tf.slice(x, tf.constant([0, 0, 1]), tf.constant([1, 3, 4])), 2, None),
    "a slice without rows": (lambda x: tf.slice(x, (0, 0, 3), (2, 4, 0)), 2, None),
    "rows that Python names": (lambda x: x[:, 1:3], 0, 0),
    "rows of the parts": (lambda x: x[:, 1:3], 1, None),
    "a row": (lambda x: x[:, -1], 1, None),
    "a row of another axis, and a new one": (lambda x: x[tf.newaxis, 1, ..., tf.newaxis], 2, 2),
    "every second": (lambda x: x[..., ::2], 2, None),
    "reversed": (lambda x: x[..., ::-1], 2, None),
    "broadcast": (lambda x: ops.broadcast_to(x, (3, 2, 4, 6)), 2, 3),
    "new axes": (lambda x: ops.expand_dims(x, (0, -1)), 1, 2),
    "without an axis": (lambda x: ops.squeeze(ops.expand_dims(x, 1), 1), 1, 1),
    "without axes": (lambda x: tf.squeeze(tf.expand_dims(x, 0)), 1, 1),
    "copies": (lambda x: ops.tile(x, (2, 1, 1)), 2, 2),
    "copies of the parts": (lambda x: ops.tile(x, (1, 1, 2)), 2, None),
    "repeated": (lambda x: ops.repeat(x, 2, axis=1), 2, 2),
    "repeated parts": (lambda x: ops.repeat(x, 2, axis=-1), 2, 2),
    "parts repeated unequally": (lambda x: ops.repeat(x, [1, 2, 0, 3, 1, 1], axis=-1), 2, None),
    "axes joined before the parts": (lambda x: ops.reshape(x, (-1, 6)), 2, 1),
    "axes taken apart behind the parts": (lambda x: ops.reshape(x, (1, 2, 4, 2, 3)), 1, 2),
    "the axis of the parts taken apart": (lambda x: ops.reshape(x, (2, 4, 2, 3)), 2, None),
    "a piece of several": (lambda x: ops.split(x, 2, axis=1)[1], 2, 2),
    "a piece of a size": (lambda x: tf.split(x, [1, 3], 1)[1], 0, 0),
    "a piece of the parts": (lambda x: ops.split(x, [2], axis=-1)[1], 2, None),
    "rows along another axis": (lambda x: ops.take(x, [[1, 0], [3, 3]], axis=1), 2, 3),
    "rows along another axis, behind the parts": (lambda x: ops.take(x, [1, 0, 3], axis=-2), 0, 0),
    "rows of three axes": (lambda x: ops.take(x, [[1, 0], [1, 1]], axis=0), 0, None),
    "rows of three axes, split behind them": (lambda x: ops.take(x, [[1, 0], [1, 1]], axis=0), 2, 3),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", MOVES)
def test_moves_keep_the_split_along_other_axes(name, compiled):
    move, own, axis = MOVES[name]
    x = tf.constant(values(2, 4, 6))

    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            moved = move(x)
            loss = ops.sum(moved * moved)
        return moved, tape.gradient(loss, x)

    wrap = tf.function if compiled else lambda function: function
    expected, gradient = wrap(run)(x)
    found, ours = wrap(run)(split(x, own))
    equal(found, expected, axis)
    np.testing.assert_allclose(tf.convert_to_tensor(ours), tf.convert_to_tensor(gradient), rtol=1e-5)


def test_a_slice_whose_place_is_computed_is_whole():
    x = tf.constant(values(2, 6, 4))
    move = tf.function(lambda x, begin, size: tf.slice(x, tf.stack([0, begin, 0]), tf.stack([2, size, 4])))
    for begin, size in [(0, 6), (0, 2), (2, 3), (4, 2), (5, 0)]:
        equal(move(split(x, 1, parts=3), tf.constant(begin), tf.constant(size)), x[:, begin : begin + size], None)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("indices", [[0, 5, 3, 3], [[-1, 2], [4, -6]]])
def test_take_looks_rows_up_where_they_are(axis, indices):
    table = values(6, 4)
    result = ops.take(split(table, axis), np.array(indices), axis=0)
    equal(result, table[np.array(indices)], np.ndim(indices) if axis else None)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kind", ["ragged", "sparse"])
def test_take_of_ragged_and_sparse_numbers_is_that_of_keras(axis, kind):
    table = values(6, 4)
    ragged = tf.ragged.constant([[1, 5, 2], [], [-1]])
    numbers = ragged if kind == "ragged" else ragged.to_sparse()
    expected, result = ops.take(table, numbers, axis=0), ops.take(split(table, axis), numbers, axis=0)
    if kind == "ragged":
        assert result.to_list() == expected.to_list()
    else:
        np.testing.assert_array_equal(tf.convert_to_tensor(result), expected)


@pytest.mark.parametrize("index", [6, -7, 100])
def test_take_fails_on_rows_that_do_not_exist(index):
    with pytest.raises(tf.errors.InvalidArgumentError):
        ops.take(split(values(6, 4), 0), np.array([1, index]), axis=0)


def test_heads_of_attention_stay_apart():
    tensors = [values(2, 5, 4, 3) for _ in range(3)]
    mask = RNG.random((2, 4, 5, 5)) > 0.3
    for own in (None, mask, mask[:, :1], mask[0, 0], mask[0], mask[0, :1]):
        expected = ops.dot_product_attention(*tensors, mask=own)
        equal(ops.dot_product_attention(*(split(each, 2) for each in tensors), mask=own), expected, 2)
    equal(ops.dot_product_attention(split(tensors[0], 1, 5), *tensors[1:]), ops.dot_product_attention(*tensors), None)


@pytest.mark.parametrize("axis", [0, 1])
def test_dropout_drops_what_it_drops_of_a_whole_tensor(axis):
    x = values(4, 6)
    equal(keras.random.dropout(split(x, axis), 0.5, seed=3), keras.random.dropout(x, 0.5, seed=3), axis)


@pytest.mark.parametrize("axis", [0, 1])
def test_matmul_of_sparse_tensors(axis):
    x, kernel = np.maximum(values(4, 6), 0), values(6, 4)
    equal(ops.matmul(tf.sparse.from_dense(x), split(kernel, axis)), x @ kernel, 1 if axis else None)


@tf.custom_gradient
def reversed_gradient(x):
    return tf.identity(x), lambda gradient: tf.concat([-gradient], axis=0)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("function", [ops.relu, reversed_gradient, tf.recompute_grad(ops.relu)])
def test_gradients_of_and_by_split_tensors(function, compiled):
    x, kernel = tf.constant(values(4, 6)), tf.constant(values(6, 4))

    def gradients(kernel):
        with tf.GradientTape() as tape:
            tape.watch(x)
            hidden = ops.matmul(x, kernel)
            result = function(hidden)
        return tape.gradient(result, [x, hidden])

    wrap = tf.function if compiled else lambda function: function
    of_x, of_hidden = wrap(lambda: gradients(kernel))()
    found = wrap(lambda: gradients(split(kernel, 1)))()
    equal(found[0], of_x, None)
    equal(found[1], of_hidden, 1)


NESTED = {
    "cond": lambda x, y: tf.cond(y[0, 0] < 9.0, lambda: x * 2.0, lambda: y),
    "switch_case": lambda x, y: tf.switch_case(tf.cast(y[0, 0] < 9.0, tf.int32), {0: lambda: y, 1: lambda: x * 2.0}),
    "while_loop": lambda x, y: tf.while_loop(lambda n, _: n < 2, lambda n, z: (n + 1, z * x), (0, y))[1],
    "scan": lambda x, y: tf.scan(lambda z, row: z * x + row, x, y),
    "foldl": lambda x, y: tf.foldl(lambda z, row: z * x + row, x, y),
    "map_fn": lambda x, y: tf.map_fn(lambda row: row * 2.0, x),
    "vectorized_map": lambda x, y: tf.vectorized_map(lambda row: row * 2.0, x),
    "py_function": lambda x, y: tf.py_function(lambda z: z.numpy() * 2.0, [x], tf.float32),
    "numpy_function": lambda x, y: tf.numpy_function(lambda z: z * 2.0, [x], tf.float32),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", NESTED)
def test_operations_with_functions_get_whole_tensors(name, compiled):
    x, y = tf.constant(values(4, 6)), tf.constant(values(4, 6))
    wrap = tf.function if compiled else lambda function: function
    expected = wrap(lambda: NESTED[name](x, y))()
    found = wrap(lambda: NESTED[name](split(x, 1), y))()
    np.testing.assert_allclose(tf.convert_to_tensor(found), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("loop", ["for", "while", "rows"])
def test_loops_of_python_that_become_those_of_tensorflow_get_whole_tensors(loop):
    x = values(4, 6)

    @tf.function
    def looped(z):
        if loop == "for":
            for _ in tf.range(2):
                z = z * 0.5 + 1.0
        elif loop == "while":
            while tf.reduce_sum(z * z) > 0.1:
                z = z * 0.5
        else:
            for row in x:
                z = z + row
        return z

    np.testing.assert_allclose(looped(split(tf.constant(x), 1)), looped(tf.constant(x)), rtol=1e-5)


def test_a_split_tensor_is_an_array_outside_of_functions():
    x = values(4, 6)
    np.testing.assert_array_equal(split(x, 1).numpy(), x)
    with pytest.raises(AttributeError, match="numpy"):
        tf.function(lambda: split(tf.constant(x), 1).numpy())()


CRASH = {"pinv", "inv", "det", "slogdet", "jvp", "adaptive_max_pool", "adaptive_average_pool", "max_pool", "average_pool"}
OTHERS = {"vectorize", "vectorized_map", "map", "shard_map", "custom_gradient", "in_top_k"} | {
    name for name in dir(ops) if name.startswith(("conv", "depthwise", "separable"))
}
"""Functions that abort the process on inputs that they do not take, or whose arguments are no two tensors."""

CALLS = {
    "x": lambda x, y: ((x,), {}),
    "x, axis=0": lambda x, y: ((x,), {"axis": 0}),
    "x, axis=-1": lambda x, y: ((x,), {"axis": -1}),
    "x, y": lambda x, y: ((x, y), {}),
    "x, 2": lambda x, y: ((x, 2), {}),
    "2.0, x": lambda x, y: ((2.0, x), {}),
    "[x, y]": lambda x, y: (([x, y],), {}),
    "x, array": lambda x, y: ((x, np.arange(6).reshape(1, 6)), {}),
    "x, -0.1, y": lambda x, y: ((x, -0.1, y), {}),
}
FUNCTIONS = {
    **{f"ops.{name}": getattr(ops, name) for name in dir(ops) if name not in CRASH | OTHERS and name[0].islower()},
    **{f"operator.{name}": getattr(operator, name) for name in operator.__all__ if not name.startswith("i")},
    **{f"tf.nn.{name}": getattr(tf.nn, name) for name in dir(tf.nn) if "softmax" in name or name in ("silu", "l2_normalize")},
    **{f"tf.{name}": getattr(tf, name) for name in ("add_n", "stack", "concat", "clip_by_value", "where", "reverse", "norm")},
}


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if callable(FUNCTIONS[name])])
def test_every_function_gives_what_it_gives_on_whole_tensors(name):
    function, x, y = FUNCTIONS[name], tf.constant(values(4, 6)), tf.constant(values(4, 6))
    for call, arguments in CALLS.items():
        args, kwargs = arguments(x, y)
        try:
            expected = [np.asarray(each) for each in tf.nest.flatten(function(*args, **kwargs))]
        except Exception:
            continue  # It does not take these.
        if any(each.dtype.kind not in "biufc" for each in expected):
            continue
        for axes in ((0, None), (1, None), (1, 1), (0, 1), (None, 0)):
            args, kwargs = arguments(*(v if axis is None else split(v, axis) for v, axis in zip((x, y), axes, strict=True)))
            found = function(*args, **kwargs)
            found = [found] if isinstance(found, SplitTensor) else tf.nest.flatten(found)
            assert len(found) == len(expected), (call, axes)
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_allclose(tf.convert_to_tensor(one), other, rtol=1e-4, atol=1e-4, err_msg=f"{call} {axes}")
