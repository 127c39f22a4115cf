"""Operations that move the values of a split tensor without computing: slices, broadcasts, new axes, copies.

A layer reads position tables, class tokens and the like so. Along the other axes each part is moved where it is. A slice along
the axis of the parts is taken from the parts that have it, and is whole: no device gets all of the tensor.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.strategies.model_parallel import task_span
from tfdist.strategies.model_parallel.split_tensor import SplitTensor, dispatch, whole


def shape_of(x: SplitTensor, out_type: Any = None, name: Any = None) -> tf.Tensor:
    """Returns `tf.shape` of a split tensor. No device needs all of the tensor for it."""
    sizes = tf.shape(x.parts[0], out_type)
    if x.shape.is_fully_defined():
        return tf.constant(x.shape.as_list(), sizes.dtype)
    return tf.stack([sizes[n] if length is None else length for n, length in enumerate(x.shape)])


def sliced(x: SplitTensor, begin: Any, size: Any, name: Any = None) -> Any:
    """Returns `tf.slice` of a split tensor, split if the slice has all of the axis of the parts."""
    begin, size = _entries(begin, x.rank), _entries(size, x.rank)
    first, length, full = begin[x.axis], size[x.axis], x.shape[x.axis]
    if isinstance(first, int) and isinstance(length, int):
        length = full - first if length == -1 else length
        if first < 0 or length < 0 or first + length > full:
            raise ValueError(f"a slice of {length} from {first} on of an axis of {full} of the shape {x.shape}")
        if length == full:
            size[x.axis] = -1
            return x.on_parts(lambda _, part: tf.slice(part, begin, size))
    elif isinstance(length, int) and length == -1:
        length = full - first
    return _range(x, begin, size, first, length)


def _range(x: SplitTensor, begin: list[Any], size: list[Any], first: Any, length: Any) -> Any:
    """Returns a slice whose entries along the axis of the parts are `first` and `length`, on the current device."""
    held = x.parts[0].shape[x.axis]
    pieces: list[tf.Tensor] = []

    def add(number: int, part: Any) -> None:
        begins = (x.first + number) * held
        low, high = _clip(first - begins, held), _clip(first + length - begins, held)
        if not isinstance(high, int) or high > low or not pieces:
            begin[x.axis], size[x.axis] = low, high - low
            pieces.append(tf.slice(part, begin, size))

    x.each(add)
    found = pieces[0] if len(pieces) == 1 else tf.concat(pieces, x.axis)
    if not x.others:
        return found
    before = _clip(x.first * held - first, length)
    after = length - before - (found.shape[x.axis] if isinstance(before, int) else tf.shape(found)[x.axis])
    return task_span.current().add(tf.pad(found, [[before, after] if n == x.axis else [0, 0] for n in range(x.rank)]))


def _clip(value: Any, most: Any) -> Any:
    if isinstance(value, int) and isinstance(most, int):
        return max(0, min(value, most))
    return tf.clip_by_value(value, 0, most)


def _entries(value: Any, rank: int) -> list[Any]:
    """Returns the numbers in a list, array or tensor of this length, those that are known as ints."""
    if isinstance(value, tf.Tensor):
        known = tf.get_static_value(value)
        value = tf.unstack(value, num=rank) if known is None else known
    entries = []
    for entry in value:
        constant = tf.get_static_value(entry) if isinstance(entry, tf.Tensor) else entry
        entries.append(tf.cast(entry, tf.int32) if constant is None else int(constant))
    return entries


def item(x: SplitTensor, key: Any) -> Any:
    """Returns `x[key]`; `NotImplemented` if it needs all of the axis of the parts in another way than as a range."""
    keys = _key_per_axis(key, x.rank)
    if keys is None:
        return NotImplemented
    own = [n for n, each in enumerate(keys) if each is not None][x.axis]
    along = keys[own]
    if along == slice(None):
        axis = sum(not isinstance(each, int) for each in keys[:own])
        return x.on_parts(lambda _, part: part[tuple(keys)], axis=axis)
    chosen = _chosen_range(along, x.shape[x.axis])
    if chosen is None:
        return NotImplemented
    begin, size = [0] * x.rank, [-1] * x.rank
    begin[x.axis], size[x.axis] = chosen.start, len(chosen)
    keys[own] = slice(None) if isinstance(along, slice) else 0
    return whole(sliced(x, begin, size))[tuple(keys)]


def _key_per_axis(key: Any, rank: int) -> list[Any] | None:
    """Returns the number or slice of each axis, and None for each new axis; None for keys of other kinds, such as tensors."""
    keys = list(key) if isinstance(key, tuple) else [key]
    if not all(each is None or each is Ellipsis or isinstance(each, int | slice) for each in keys):
        return None
    if not any(each is Ellipsis for each in keys):
        keys.append(Ellipsis)
    place = next(n for n, each in enumerate(keys) if each is Ellipsis)
    missing = rank - sum(each is not None and each is not Ellipsis for each in keys)
    keys[place : place + 1] = [slice(None)] * missing
    return keys


def _chosen_range(key: int | slice, length: int) -> range | None:
    """Returns what a number or slice chooses of an axis; None if that is not known, out of range, or has a step."""
    if isinstance(key, int):
        first = key + length if key < 0 else key
        return range(first, first + 1) if 0 <= first < length else None
    if not all(bound is None or isinstance(bound, int) for bound in (key.start, key.stop)):
        return None
    first, end, step = key.indices(length)
    return range(first, end) if step == 1 else None


def split(x: SplitTensor, num_or_size_splits: Any, axis: int = 0, num: int | None = None, name: Any = None) -> list[Any]:
    """Returns `tf.split` of a split tensor, split along the other axes."""
    if axis % x.rank == x.axis:
        return list(tf.split(x.whole(), num_or_size_splits, axis, num))
    pieces = x.each(lambda _, part: tf.split(part, num_or_size_splits, axis, num))
    return [x.with_parts(parts) for parts in zip(*pieces, strict=True)]


def broadcast_to(x: SplitTensor, shape: Any, name: Any = None) -> Any:
    """Returns `tf.broadcast_to` of a split tensor, split."""
    rank = shape.shape[0] if isinstance(shape, tf.Tensor) else len(shape)
    if rank is None:
        return tf.broadcast_to(x.whole(), shape)
    sizes = _entries(shape, rank)
    axis = rank + x.axis - x.rank
    if isinstance(sizes[axis], int) and sizes[axis] not in (-1, x.shape[x.axis]):
        return tf.broadcast_to(x.whole(), shape)  # TensorFlow's error.
    sizes[axis] = x.parts[0].shape[x.axis]
    return x.on_parts(lambda _, part: tf.broadcast_to(part, sizes), axis=axis)


def expand_dims(x: SplitTensor, axis: int, name: Any = None) -> Any:
    """Returns `tf.expand_dims` of a split tensor, split."""
    place = axis % (x.rank + 1)
    return x.on_parts(lambda _, part: tf.expand_dims(part, place), axis=x.axis + (place <= x.axis))


def squeeze(x: SplitTensor, axis: Any = None, name: Any = None) -> Any:
    """Returns `tf.squeeze` of a split tensor, split."""
    if not x.shape.is_fully_defined() and axis is None:
        return tf.squeeze(x.whole())
    axes = [axis] if isinstance(axis, int) else list(axis or [])
    gone = {each % x.rank for each in axes} or {n for n, length in enumerate(x.shape) if length == 1}
    if x.axis in gone:
        return tf.squeeze(x.whole(), axis)
    if not gone:
        return x
    return x.on_parts(lambda _, part: tf.squeeze(part, sorted(gone)), axis=x.axis - sum(each < x.axis for each in gone))


def tile(x: SplitTensor, multiples: Any, name: Any = None) -> Any:
    """Returns `tf.tile` of a split tensor, split if it is not repeated along the axis of the parts."""
    copies = _entries(multiples, x.rank)
    if not isinstance(copies[x.axis], int) or copies[x.axis] != 1:
        return tf.tile(x.whole(), multiples)
    return x.on_parts(lambda _, part: tf.tile(part, copies))


def repeat(x: SplitTensor, repeats: Any, axis: Any = None, name: Any = None) -> Any:
    """Returns `tf.repeat` of a split tensor, split: each part repeats its own elements, along its axis all equally often."""
    if axis is None or (axis % x.rank == x.axis and not isinstance(repeats, int)):
        return tf.repeat(x.whole(), repeats, axis)
    return x.on_parts(lambda _, part: tf.repeat(part, repeats, axis))


def reshape(x: SplitTensor, shape: Sequence[int]) -> SplitTensor | None:
    """Returns a split tensor in another shape, if the axis of the parts is also one of that shape; else None."""
    known = x.shape.is_fully_defined() and all(isinstance(length, int) for length in shape)
    if not known:
        return None
    sizes = list(shape)
    if -1 in sizes:
        sizes[sizes.index(-1)] = x.shape.num_elements() // max(1, -math.prod(sizes))
    before, length = math.prod(x.shape[: x.axis]), x.shape[x.axis]
    places = [n for n, each in enumerate(sizes) if each == length and math.prod(sizes[:n]) == before]
    if not places or math.prod(sizes) != x.shape.num_elements():
        return None
    axis = places[0]
    sizes[axis] = x.parts[0].shape[x.axis]
    return x.on_parts(lambda _, part: tf.reshape(part, sizes), axis=axis)


def concatenate(values: Sequence[Any], axis: int) -> Any:
    """Returns `tf.concat` of tensors, some of them split: split, if all can be cut as the first of these."""
    leader = next(value for value in values if isinstance(value, SplitTensor))
    place = axis % leader.rank
    if place == leader.axis:
        return NotImplemented
    parts = [
        value.parts
        if isinstance(value, SplitTensor) and value.axis == leader.axis and leader.meets(value)
        else leader.cut(tf.convert_to_tensor(whole(value)), leader.axis)
        for value in values
    ]
    return leader.on_parts(lambda number, _: tf.concat([each[number] for each in parts], place))


def gathered(x: SplitTensor, indices: Any, axis: int, take: Callable[[Any, Any, int], Any]) -> SplitTensor:
    """Returns what `take` takes of each part, given it, indices and the axis, which is not that of the parts."""
    numbers = x.shared(tf.convert_to_tensor(indices))
    place = x.axis if x.axis < axis else x.axis + numbers[0].shape.rank - 1
    return x.on_parts(lambda number, part: take(part, numbers[number], axis), axis=place)


def _getitem(x: SplitTensor, key: Any) -> Any:
    found = item(x, key)
    return x.whole()[key] if found is NotImplemented else found


MOVES: dict[Callable[..., Any], Callable[..., Any]] = {
    tf.shape: shape_of,
    tf.slice: sliced,
    tf.split: split,
    tf.broadcast_to: broadcast_to,
    tf.expand_dims: expand_dims,
    tf.squeeze: squeeze,
    tf.tile: tile,
    tf.repeat: repeat,
}

SplitTensor.__getitem__ = _getitem  # type: ignore[method-assign]
for _function, _moved in MOVES.items():
    dispatch(_function, _moved)
