"""Buckets of gradients: what is in each, and what a sum waits for."""

import pytest
import tensorflow as tf

from tfdist.strategies.data_parallel import buckets
from tfdist.strategies.data_parallel.task_groups import TaskGroups


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([1], [[0]]),
        ([4, 4, 4], [[2, 1, 0]]),
        ([4, 4, 4, 4], [[3, 2, 1], [0]]),
        ([10, 1, 30, 1], [[2], [0], [3, 1]]),
        ([1, 9, 10], [[2], [1, 0]]),
    ],
)
def test_small_gradients_share_buckets_that_stand_where_their_last_gradient_does(sizes, expected):
    assert buckets.buckets(sizes, 10) == expected


def needed_for(tensor):
    """Returns the operations that a tensor waits for."""
    found, waiting = set(), [tensor.op]
    while waiting:
        operation = waiting.pop()
        if operation not in found:
            found.add(operation)
            waiting += [each.op for each in operation.inputs] + list(operation.control_inputs)
    return found


def test_a_sum_waits_for_the_gradients_of_its_bucket_alone(monkeypatch):
    monkeypatch.setattr(buckets, "BUCKET_BYTES", 16)
    begun = []

    def all_reduce(value):
        begun.append(tf.multiply(value, 2.0))
        return begun[-1]

    @tf.function(autograph=False)
    def step(*gradients):
        return buckets.sums(gradients, all_reduce)

    gradients = [tf.reshape(tf.range(float(rows * 2)), [rows, 2]) for rows in (3, 1, 1, 2, 4)] + [tf.constant(7.0)]
    results = step(*gradients)
    for gradient, result in zip(gradients, results, strict=True):
        tf.debugging.assert_equal(result, 2.0 * gradient)
    # Gradient 4; 3; 5, 2 and 1 together; 0.
    assert [each.shape.num_elements() for each in begun] == [8, 4, 5, 6]
    needed = [[value.op in needed_for(total) for value in begun[0].graph.inputs] for total in begun[:2]]
    assert needed == [[False, False, False, False, True, False], [False, False, False, True, False, False]]


def test_the_number_of_collectives_has_a_limit(monkeypatch):
    monkeypatch.setattr(buckets, "BUCKET_BYTES", 4)
    counts = []
    for gradients in (4, 1000):
        begun = []
        buckets.sums([tf.zeros([3])] * gradients, lambda value, begun=begun: begun.append(value) or value)
        counts.append(len(begun))
    assert counts == [4, 8]


def test_a_gradient_of_unknown_size_leaves_the_others_in_buckets():
    found = []

    def total(value):
        found.append(value.shape.as_list())
        return value * 2.0

    @tf.function(input_signature=[tf.TensorSpec([2]), tf.TensorSpec([None]), tf.TensorSpec([2, 3])])
    def sums(*values):
        return TaskGroups._in_buckets(list(values), total)

    doubled = sums(tf.constant([1.0, 2.0]), tf.constant([3.0]), tf.ones([2, 3]))
    assert [value.numpy().tolist() for value in doubled] == [[2.0, 4.0], [6.0], [[2.0] * 3] * 2]
    assert found == [[8], [None]]
