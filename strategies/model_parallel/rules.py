"""What Keras' operations do with tensors and variables that are split over devices.

Each rule calls Keras' own operation on the parts, on their devices. `install` puts it in front of the operation of Keras'
TensorFlow backend. An operation without a rule gets a split tensor whole; a split variable whole is refused in a step, because
every device would then hold all of it (`SplitVariable.value`). Unary operations of TensorFlow are in `split_tensor.py`.
"""

import string
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist.strategies.model_parallel import convolutions, moves, nested
from tfdist.strategies.model_parallel.lookups import table
from tfdist.strategies.model_parallel.split_tensor import SplitTensor, elementwise, operand, parts_along, whole
from tfdist.strategies.private_api import patches
from tfdist.strategies.variable_base import take_rows

Operation = Callable[..., Any]


def install() -> None:
    """Puts the rules in front of Keras' operations. Calling it again does nothing."""
    nested.install()
    convolutions.install()
    for name, point in patches.BINARY_OPERATIONS.items():
        point.patch(_add if name == "add" else _binary)
    for point in patches.UNARY_OPERATIONS.values():
        point.patch(_unary)
    patches.SUM.patch(_sum)
    patches.MATMUL.patch(matmul)
    patches.EINSUM.patch(einsum)
    patches.TAKE.patch(_take)
    patches.TRANSPOSE.patch(transpose)
    patches.RESHAPE.patch(_reshape)
    patches.SIGMOID.patch(_sigmoid)
    patches.SOFTMAX.patch(_softmax)
    patches.ATTENTION.patch(_attention)
    patches.DROPOUT.patch(_dropout)


def _binary(original: Operation, x1: Any, x2: Any, of_parts: Operation | None = None) -> Any:
    x1, x2 = operand(x1), operand(x2)
    if not isinstance(x1, SplitTensor) and not isinstance(x2, SplitTensor):
        return original(x1, x2)
    return elementwise(of_parts or original, x1, x2)


def _add(original: Operation, x1: Any, x2: Any) -> Any:
    return _binary(original, x1, x2, _sum_of_two)


def _sum_of_two(x1: Any, x2: Any) -> Any:
    """Adds without Keras' guess that a value with as many elements as a part has channels is a bias."""
    x1, x2 = tf.convert_to_tensor(x1), tf.convert_to_tensor(x2)
    dtype = keras.backend.result_type(x1.dtype, x2.dtype)
    return tf.add(tf.cast(x1, dtype), tf.cast(x2, dtype))


def _unary(original: Operation, x: Any) -> Any:
    x = operand(x)
    return x.on_parts(lambda number, part: original(part)) if isinstance(x, SplitTensor) else original(x)


def _sum(original: Operation, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    x = operand(x)
    if isinstance(x, SplitTensor) and axis is None and not keepdims:
        return x.added(lambda _, part: original(part))
    return original(whole(x), axis, keepdims)


def matmul(original: Operation, x1: Any, x2: Any) -> Any:
    """Returns the product of two tensors or variables; `original` computes that of whole ones."""
    x1, x2 = operand(x1), operand(x2)
    if isinstance(x2, SplitTensor) and x2.rank > 1:
        rank, place, parts = len(x1.shape), x2.axis - x2.rank, None  # From the right, as stacks of matrices are broadcast.
        if place == -2:  # By rows: the products are partial sums.
            summed = parts_along(x1, rank - 1, x2)
            return x2.added(lambda number, part: original(summed[number], part))
        if place == -1 or rank < -place or x1.shape[place] == 1:  # By columns, or one factor for all matrices of a stack.
            parts = x2.shared(whole(x1))
        elif x1.shape[place] == x2.shape[place]:
            parts = parts_along(x1, rank + place, x2)
        if parts is not None:
            axis = max(rank, x2.rank) + place - (rank == 1 and place == -1)
            return x2.on_parts(lambda number, part: original(parts[number], part), axis=axis)
    if isinstance(x1, SplitTensor) and not isinstance(x2, SplitTensor) and len(x2.shape) == 2 and x1.axis < x1.rank - 1:
        columns = x1.shared(x2)
        return x1.on_parts(lambda number, part: original(part, columns[number]))
    return original(whole(x1), whole(x2))


def einsum(original: Operation, subscripts: str, *operands: Any, **kwargs: Any) -> Any:
    """Returns what an equation says of tensors or variables; `original` computes it of whole ones."""
    values = [operand(value) for value in operands]
    split = [value for value in values if isinstance(value, SplitTensor)]
    if not split:
        return original(subscripts, *values, **kwargs)
    letters, result = _letters(subscripts, [value.shape for value in values])
    if letters is None or any(len(set(each)) < len(each) for each in letters):
        return original(subscripts, *(whole(value) for value in values), **kwargs)
    # The letter along which the variable is split, or else the first split operand.
    variables = [i for i, given in enumerate(operands) if values[i] is not given]
    leader = variables[0] if variables else next(i for i, value in enumerate(values) if isinstance(value, SplitTensor))
    letter = letters[leader][values[leader].axis]
    parts = [
        parts_along(value, own.index(letter), values[leader]) if letter in own else values[leader].shared(whole(value))
        for value, own in zip(values, letters, strict=True)
    ]
    equation = f"{','.join(letters)}->{result}"

    def on_part(number: int, _: Any) -> Any:
        return original(equation, *(each[number] for each in parts), **kwargs)

    if letter in result:
        return values[leader].on_parts(on_part, axis=result.index(letter))
    return values[leader].added(on_part)


def _letters(subscripts: str, shapes: list[Any]) -> tuple[list[str] | None, str]:
    """Returns the letters of each operand and of the result of an equation, with letters in place of `...`.

    Without `->`, and if operands are broadcast inside `...`, it returns None for the operands.
    """
    inputs, arrow, result = subscripts.replace(" ", "").partition("->")
    letters = inputs.split(",")
    if not arrow or len(letters) != len(shapes):
        return None, ""
    free = [letter for letter in string.ascii_letters if letter not in subscripts]
    hidden = []
    for each, shape in zip(letters, shapes, strict=True):
        if "..." in each:
            begin = each.index("...")
            hidden.append(list(shape)[begin : begin + len(shape) - len(each) + 3])
    if len(set(map(len, hidden))) > 1 or any(1 in sizes and set(sizes) != {1} for sizes in zip(*hidden, strict=False)):
        return None, ""
    batch = "".join(free[: len(hidden[0])]) if hidden else ""
    return [each.replace("...", batch) for each in letters], result.replace("...", batch)


def _take(original: Operation, x: Any, indices: Any, axis: int | None = None) -> Any:
    rows = table(x) if axis == 0 else None
    x = operand(x) if rows is None else x
    if isinstance(x, SplitTensor) and rows is None and axis is not None and axis % x.rank != x.axis:
        return moves.gathered(x, whole(indices), axis % x.rank, lambda part, numbers, place: original(part, numbers, place))
    if rows is None:
        return original(whole(x), whole(indices), axis)
    return take_rows(rows.take, whole(indices))


def transpose(original: Operation, x: Any, axes: Any = None) -> Any:
    """Returns a tensor or variable with its axes in another order; `original` orders those of a whole one."""
    x = operand(x)
    if not isinstance(x, SplitTensor):
        return original(x, axes)
    order = list(range(x.rank))[::-1] if axes is None else [axis % x.rank for axis in axes]
    return x.on_parts(lambda number, part: original(part, axes), axis=order.index(x.axis))


def _reshape(original: Operation, x: Any, newshape: Any) -> Any:
    """Keeps the split of a bias that a convolution reshapes to (1, …, channels), and of a table with other axes before it."""
    x = operand(x)
    if not isinstance(x, SplitTensor):
        return original(x, newshape)
    found = moves.reshape(x, newshape)
    return original(x.whole(), newshape) if found is None else found


def _sigmoid(original: Operation, x: Any) -> Any:
    """Gives the result of a whole tensor its logits, as Keras does, for a loss that uses them; not that of a variable."""
    value = operand(x)
    return original(whole(x)) if value is x else tf.sigmoid(value)


def _softmax(original: Operation, x: Any, axis: Any = -1) -> Any:
    x = operand(x)
    if not isinstance(x, SplitTensor):
        return original(x, axis)
    axes = range(x.rank) if axis is None else [each % x.rank for each in ([axis] if isinstance(axis, int) else axis)]
    if x.axis in axes:
        return original(x.whole(), axis)
    return x.on_parts(lambda number, part: original(part, axis))


def _attention(
    original: Operation, query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """Computes the heads on their devices."""
    heads = 2
    tensors = (query, key, value)
    if not all(isinstance(each, SplitTensor) and each.axis == heads for each in tensors):
        return original(*(whole(each) for each in tensors), whole(bias), whole(mask), *args, **kwargs)

    def own(extra: Any) -> Any:
        extra = whole(extra)
        place = None if extra is None else len(extra.shape) - 3  # Of the heads: (…, heads, queries, keys).
        if place is None or place < 0 or extra.shape[place] == 1:
            return query.shared(extra)
        return query.cut(extra, place)

    biases, masks = own(bias), own(mask)
    return query.on_parts(
        lambda number, part: original(
            part, key.parts[number], value.parts[number], biases[number], masks[number], *args, **kwargs
        )
    )


def _dropout(original: Operation, inputs: Any, rate: float, noise_shape: Any = None, seed: Any = None) -> Any:
    """Multiplies the parts by those of one mask, which is the mask of a tensor that is not split."""
    if not isinstance(inputs, SplitTensor):
        return original(inputs, rate, noise_shape, seed)
    part = inputs.parts[0]
    shape = tf.tensor_scatter_nd_update(tf.shape(part), [[inputs.axis]], [part.shape[inputs.axis] * inputs.count])
    ones = tf.ensure_shape(tf.ones(shape, part.dtype), inputs.shape)
    return elementwise(tf.multiply, inputs, original(ones, rate, noise_shape, seed))
