"""Constants for other tasks are made on the chief: TensorFlow copies them to a stopped task with Python's lock else."""

from types import SimpleNamespace

import pytest
import tensorflow as tf

from tfdist.strategies.private_api import patches
from tfdist.strategies.runtime import chief_device

HERE = "/job:localhost/replica:0/task:0/device:CPU:0"
PS = "/job:ps/replica:0/task:1/device:CPU:0"


@pytest.fixture
def made(monkeypatch):
    """The constants that TensorFlow makes."""
    monkeypatch.setattr(chief_device, "DEVICE", HERE)
    tensors = []

    def original(value, ctx, dtype=None):
        tensor = patches.EAGER_CONSTANT.original(value, patches.tf_constant.context.context(), dtype)
        tensors.append(tensor)
        return tensor

    return tensors, original


@pytest.mark.parametrize("value", [[1.5, 2.0], "text", True])
def test_a_constant_for_another_task_is_made_here_and_goes_there_as_the_input_of_an_operation(made, monkeypatch, value):
    tensors, original = made
    copied = []
    identity = tf.identity
    monkeypatch.setattr(tf, "identity", lambda tensor: (copied.append(tensor), identity(tensor))[1])
    result = chief_device._convert(original, value, SimpleNamespace(device_name=PS))
    assert [tensor.device for tensor in tensors] == [HERE]
    assert copied[-1] is not tensors[0]  # TensorFlow has one for all threads, which would share its copies on other tasks.
    tf.debugging.assert_equal(result, tf.constant(value))


@pytest.mark.parametrize(
    "device", ["", HERE, "/job:chief/replica:0/task:0/device:CPU:0", "/job:chief/replica:0/task:0/device:GPU:1"]
)
def test_other_constants_are_made_as_before(made, device):
    context = SimpleNamespace(device_name=device)
    assert chief_device._convert(lambda value, ctx, dtype: (value, ctx, dtype), 1, context, tf.int32) == (1, context, tf.int32)


def test_a_tensor_stays_where_it_is(made):
    tensor = tf.constant(1)
    assert chief_device._convert(made[1], tensor, SimpleNamespace(device_name=PS)) is tensor


@pytest.mark.parametrize("value", [1.5, 2, True])
def test_calls_get_a_tensor_of_a_number_each_of_their_own(monkeypatch, value):
    monkeypatch.setattr(chief_device, "DEVICE", HERE)
    kept, copies, identity = [], [], tf.identity

    def copy(tensor):
        kept.append(tensor)  # What TensorFlow has for all threads.
        copies.append(identity(tensor))
        return copies[-1]

    monkeypatch.setattr(tf, "identity", copy)
    results = [chief_device.constant(value) for _ in range(2)]
    assert all(result is own for result, own in zip(results, copies, strict=True)) and len(kept) == 2
    assert [result.numpy() for result in results] == [value, value]


def test_an_array_which_tensorflow_does_not_keep_is_not_copied(monkeypatch):
    monkeypatch.setattr(chief_device, "DEVICE", HERE)
    monkeypatch.setattr(tf, "identity", lambda tensor: pytest.fail("copied"))
    assert chief_device.constant([1, 2]).numpy().tolist() == [1, 2]
