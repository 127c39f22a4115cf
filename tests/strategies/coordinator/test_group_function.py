"""What the functions of worker groups are traced for."""

import pytest
import tensorflow as tf

from tfdist.strategies.coordinator.calls.group_function import HostBatch, _specs_to_trace

ROWS = 5
LEAVES = {
    "texts": tf.fill([ROWS, 1], "text"),
    "sparse": tf.sparse.from_dense(tf.eye(ROWS)),
    "ragged": tf.ragged.constant([[1], [], [2, 3], [], [4]]),
    "none": None,  # An optional input, or weights.
}


@pytest.mark.parametrize("leaf", LEAVES)
def test_a_step_is_traced_for_any_number_of_examples(leaf):
    # Traced for the size of the first batch, Keras weights the losses of several outputs by it.
    x = {"x": tf.zeros([ROWS, 2])} if LEAVES[leaf] is None else {"x": tf.zeros([ROWS, 2]), "leaf": LEAVES[leaf]}
    data = tf.data.Dataset.from_tensor_slices((x, tf.zeros([ROWS]))).batch(3)
    data = data.map(lambda x, y: ({"leaf": None, **x}, y))
    specs = _specs_to_trace(HostBatch(next(iter(data))), data.element_spec, stacked=False)
    assert len(specs) == 2 + (leaf != "none")
    assert {spec.shape[0] for spec in specs} == {None}


def test_a_step_on_a_batch_without_a_dataset_is_traced_for_its_size():
    specs = _specs_to_trace(HostBatch((tf.zeros([3, 2]), None, tf.fill([3], "text"))), None, stacked=False)
    assert [spec and spec.shape.as_list() for spec in specs] == [[3, 2], None, [3]]
