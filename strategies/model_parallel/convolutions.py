"""Convolutions whose kernels are split over devices, along their filters, their channels or their groups. See `rules.py`."""

from collections.abc import Callable
from typing import Any

import keras

from tfdist.strategies.model_parallel.split_tensor import SplitTensor, operand, parts_along, whole
from tfdist.strategies.private_api import patches

Operation = Callable[..., Any]


def install() -> None:
    """Puts the rules in front of Keras' convolutions. Calling it again does nothing."""
    patches.CONV.patch(_conv)
    patches.DEPTHWISE_CONV.patch(_depthwise_conv)
    patches.SEPARABLE_CONV.patch(_separable_conv)
    patches.CONV_TRANSPOSE.patch(_conv_transpose)


def _conv(original: Operation, inputs: Any, kernel: Any, *args: Any, **kwargs: Any) -> Any:
    inputs, kernel, data_format = operand(inputs), operand(kernel), _data_format(args, kwargs)
    axes = {-1: "filters", -2: "channels"}
    if isinstance(kernel, SplitTensor):
        groups = inputs.shape[_channels(inputs, data_format)] // kernel.shape[-2]
        if groups > 1:  # A device computes whole groups.
            axes = {} if groups % kernel.count else {-1: "groups"}
    return _computed(original, inputs, kernel, data_format, axes, *args, **kwargs)


def _depthwise_conv(original: Operation, inputs: Any, kernel: Any, *args: Any, **kwargs: Any) -> Any:
    return _computed(original, inputs, kernel, _data_format(args, kwargs), {-2: "groups"}, *args, **kwargs)


def _separable_conv(
    original: Operation, inputs: Any, depthwise_kernel: Any, pointwise_kernel: Any, *args: Any, **kwargs: Any
) -> Any:
    kernels = operand(depthwise_kernel), operand(pointwise_kernel)
    if not any(isinstance(kernel, SplitTensor) for kernel in kernels):
        return original(whole(inputs), *kernels, *args, **kwargs)
    by_channel = keras.ops.depthwise_conv(inputs, kernels[0], *args, **kwargs)
    return keras.ops.conv(by_channel, kernels[1], data_format=_data_format(args, kwargs))


def _conv_transpose(original: Operation, inputs: Any, kernel: Any, *args: Any, **kwargs: Any) -> Any:
    axes = {-2: "filters", -1: "channels"}
    return _computed(original, inputs, kernel, _data_format(args, kwargs, place=3), axes, *args, **kwargs)


def _data_format(args: tuple[Any, ...], kwargs: dict[str, Any], place: int = 2) -> str | None:
    """Returns the data format among the arguments behind the kernel, or kernels, given its place among those without names."""
    return kwargs["data_format"] if "data_format" in kwargs else args[place] if len(args) > place else None


def _computed(
    original: Operation, inputs: Any, kernel: Any, data_format: str | None, axes: dict[int, str], *args: Any, **kwargs: Any
) -> Any:
    """Returns a convolution.

    Args:
        original: computes it on whole tensors, given them and the other arguments.
        inputs: the images.
        kernel: the kernel.
        data_format: the data format.
        axes: axis of the kernel, from the right -> what it counts: "filters", for which a device needs all channels; "groups",
            for which it needs theirs; "channels", of which it computes a partial sum.
        *args: the other arguments of the convolution.
        **kwargs: those with names.
    """
    inputs, kernel = operand(inputs), operand(kernel)
    if not isinstance(kernel, SplitTensor):
        return original(whole(inputs), kernel, *args, **kwargs)
    place, counted = _channels(inputs, data_format), axes.get(kernel.axis - kernel.rank)
    if counted is None:
        possible = " or ".join(f"axis {kernel.rank + axis} ({counts})" for axis, counts in axes.items())
        raise ValueError(
            f"a convolution with a kernel of shape {kernel.shape}, {inputs.shape[place]} channels and shards along axis "
            f"{kernel.axis} cannot compute on shards; {'shard it along ' + possible if axes else 'leave it whole'}"
        )
    images = kernel.shared(whole(inputs)) if counted == "filters" else parts_along(inputs, place, kernel)

    def on_part(number: int, part: Any) -> Any:
        return original(images[number], part, *args, **kwargs)

    return kernel.added(on_part) if counted == "channels" else kernel.on_parts(on_part, axis=place)


def _channels(inputs: Any, data_format: str | None) -> int:
    """Returns the axis of the channels."""
    return 1 if (data_format or keras.config.image_data_format()) == "channels_first" else len(inputs.shape) - 1
