"""Keras' convolutions with split kernels give what they give on whole ones, and keep their channels split where they can."""

import keras
import pytest
import tensorflow as tf
from keras import ops
from split_tensors import equal, split, values

from tfdist.strategies.model_parallel import rules

FILTERS, CHANNELS, GROUPED, TRANSPOSED = (3, 3, 4, 6), (3, 3, 4, 2), (3, 3, 2, 6), (3, 3, 6, 4)


@pytest.fixture(autouse=True, scope="module")
def installed():
    rules.install()


@pytest.mark.parametrize("already_split", [False, True])
@pytest.mark.parametrize(
    "function, shape, kernel_axis, axis",
    [
        (ops.conv, FILTERS, 3, 3),
        (ops.conv, FILTERS, 2, None),
        (tf.function(ops.conv), GROUPED, 3, 3),
        (ops.depthwise_conv, CHANNELS, 2, 3),
        (ops.conv_transpose, TRANSPOSED, 2, 3),
        (ops.conv_transpose, TRANSPOSED, 3, None),
    ],
)
@pytest.mark.parametrize("strides", [1, 2])
def test_convolutions(function, shape, kernel_axis, axis, already_split, strides):
    images, kernel = values(2, 5, 5, 4), values(*shape)
    expected = function(images, kernel, strides=strides, padding="same")
    ours = split(images, 3) if already_split else images
    equal(function(ours, split(kernel, kernel_axis), strides=strides, padding="same"), expected, axis)


def test_the_channels_may_be_first():
    images, kernel = values(2, 4, 5, 5), values(*TRANSPOSED)
    expected = ops.conv_transpose(images, kernel, data_format="channels_first")
    equal(ops.conv_transpose(images, split(kernel, 2), data_format="channels_first"), expected, 1)
    kernels = values(3, 3, 4, 1), values(1, 1, 4, 6)
    expected = ops.separable_conv(images, *kernels, data_format="channels_first")
    equal(ops.separable_conv(images, kernels[0], split(kernels[1], 3), data_format="channels_first"), expected, 1)


@pytest.mark.parametrize("depthwise_axis, pointwise_axis, axis", [(2, None, None), (None, 3, 3), (None, 2, None), (2, 2, None)])
def test_separable_convolutions(depthwise_axis, pointwise_axis, axis):
    images, kernels = values(2, 7, 7, 4), (values(*CHANNELS), values(1, 1, 8, 6))
    axes = depthwise_axis, pointwise_axis
    ours = [kernel if axis is None else split(kernel, axis) for kernel, axis in zip(kernels, axes, strict=True)]
    layer = keras.layers.SeparableConv2D(6, 3, 2, "same", depth_multiplier=2, use_bias=False)
    layer.build(images.shape)
    layer.set_weights(kernels)
    equal(ops.separable_conv(images, *ours, 2, "same"), layer(images), axis)


@pytest.mark.parametrize(
    "function, kernel, axis, advice",
    [
        (ops.conv, (4, 3, 4, 6), 0, r"along axis 3 \(filters\) or axis 2 \(channels\)"),
        (ops.conv, GROUPED, 2, r"along axis 3 \(groups\)"),
        (ops.depthwise_conv, CHANNELS, 3, r"along axis 2 \(groups\)"),
        (ops.conv_transpose, (4, 3, 6, 4), 0, r"along axis 2 \(filters\) or axis 3 \(channels\)"),
    ],
)
def test_convolutions_that_cannot_compute_on_parts_are_refused(function, kernel, axis, advice):
    with pytest.raises(ValueError, match=f"cannot compute on shards; shard it {advice}"):
        function(values(2, 5, 5, 4), split(values(*kernel), axis))


def test_groups_that_devices_cannot_share_are_refused():
    with pytest.raises(ValueError, match="cannot compute on shards; leave it whole"):
        ops.conv(values(2, 5, 5, 9), split(values(3, 3, 3, 6), 3))
