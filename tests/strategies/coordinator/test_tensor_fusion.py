"""Tests that a packed batch is unpacked as it was, and which groups share traced functions."""

import pytest

pytestmark = pytest.mark.cluster


def test_a_packed_batch_of_any_size_is_unpacked_in_a_function():
    import numpy as np
    import tensorflow as tf

    from tfdist.strategies.coordinator.calls.tensor_fusion import can_pack, pack, unpack, unpack_arguments

    kinds = [tf.float32, tf.int64, tf.uint8, tf.float16, tf.bfloat16, tf.int32, tf.float64, tf.complex64]
    fixed = [tf.TensorSpec([3], tf.float64), tf.TensorSpec([], tf.uint8), tf.TensorSpec([0], tf.float32)]
    specs = [tf.TensorSpec([None, 3], kind) for kind in kinds] + [
        tf.TensorSpec([], tf.int32),
        tf.TensorSpec([2, 0], tf.float32),
    ]
    several = [tf.TensorSpec([None, *spec.shape], spec.dtype) for spec in specs]

    def unpacked(message, specs):
        arguments, begin = unpack_arguments(message, fixed)
        return arguments, unpack(message, specs, begin)

    message = tf.TensorSpec([None], tf.uint8)
    one = tf.function(lambda message: unpacked(message, specs)).get_concrete_function(message)
    stack = tf.function(lambda message: unpacked(message, several)).get_concrete_function(message)
    generator = np.random.default_rng(0)
    sent = [np.array([0.1, 2.0**53, -1.0]), np.uint8(7), np.zeros([0], np.float32)]

    def batch(rows):
        values = [tf.cast(generator.integers(0, 100, size=(rows, 3)), kind) for kind in kinds]
        values += [tf.constant(rows), tf.zeros([2, 0])]
        assert can_pack(values)
        return [np.asarray(value) for value in values]

    for rows in (0, 1, 5, 64):
        batches = [batch(rows) for _ in range(3)]
        cases = [(one, batches[:1], False, batches[0])]
        cases.append((stack, batches, True, [np.stack(values) for values in zip(*batches, strict=True)]))
        for function, given, stacked, wanted in cases:
            arguments, values = function(tf.constant(pack(given, stacked, sent)))
            for got, value in zip([*arguments, *values], [*sent, *wanted], strict=True):
                assert got.dtype == value.dtype
                np.testing.assert_array_equal(got.numpy(), value)


def test_only_dense_tensors_of_numbers_are_packed():
    import tensorflow as tf

    from tfdist.strategies.coordinator.calls.tensor_fusion import can_pack

    assert not can_pack([tf.constant("text")])
    assert not can_pack([tf.constant([True])])
    assert not can_pack([None])
    assert not can_pack([tf.ragged.constant([[1], [1, 2]])])


def test_groups_inside_one_task_share_their_functions():
    import tfdist
    from tfdist.strategies.coordinator.members.worker_groups import groups_of, peers

    one_task = tfdist.read(
        "cluster { nworker_groups: 2 nworkers_per_group: 2 nworkers_per_procs: 2 server_worker_separate: true }"
    )
    assert [group.traced_devices for group in groups_of(one_task, set())] == [("/device:CPU:0", "/device:CPU:1")] * 2
    assert peers(one_task) == {0: set(), 1: set()}
    several = tfdist.read("cluster { nworker_groups: 2 nworkers_per_group: 2 server_worker_separate: true }")
    first, second = groups_of(several, set())
    assert first.tasks == (0, 1) and second.tasks == (2, 3)
    assert first.devices == first.traced_devices != second.traced_devices
    assert peers(several) == {0: {1}, 1: {0}, 2: {3}, 3: {2}}


def test_flattened_tensors_are_unflattened():
    import numpy as np
    import tensorflow as tf

    from tfdist.strategies.coordinator.calls.tensor_fusion import flatten, unflatten, unflatten_array

    values = [np.float32(7), np.arange(6, dtype="float32").reshape(2, 3), np.zeros([0, 4], "float32")]
    vector = flatten([tf.constant(value) for value in values])
    assert vector.shape == [7]
    for got, sent in zip(unflatten(vector, [tf.TensorShape(value.shape) for value in values]), values, strict=True):
        np.testing.assert_array_equal(got.numpy(), sent)
    scalar, *arrays = unflatten_array(vector.numpy(), [value.shape for value in values])
    assert type(scalar) is float and scalar == 7
    for got, sent in zip(arrays, values[1:], strict=True):
        np.testing.assert_array_equal(got, sent)
    assert unflatten(tf.zeros([0]), []) == []


def test_a_batch_without_weights_travels_as_bytes_and_keeps_its_structure():
    import tensorflow as tf

    from tfdist.strategies.coordinator.calls.group_function import HostBatch
    from tfdist.strategies.coordinator.calls.tensor_fusion import pack, unpack

    x, y = tf.reshape(tf.range(6.0), [3, 2]), tf.constant([1, 2, 3])
    batch = HostBatch((x, y, None))
    assert batch.arrays is not None and len(batch.flat) == 2
    specs = [tf.TensorSpec(value.shape, value.dtype) for value in batch.flat]
    data = batch.filled(tf.function(lambda message: unpack(message, specs))(pack([batch.arrays])))
    assert data[0].numpy().tolist() == x.numpy().tolist() and data[1].numpy().tolist() == [1, 2, 3] and data[2] is None
    others = [(x, y), (x, None, y), [x, None], [None, x]]
    assert len({batch.signature, *(HostBatch(values).signature for values in others)}) == 5
