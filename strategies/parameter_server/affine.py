"""What a function that is traced computes from the old value of a variable: a multiple of it plus something else, or another
function."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.strategies.keras_hooks.replicas.function_arguments import key_of

_SAME = ("Identity", "StopGradient", "PreventGradient", "CheckNumerics", "EnsureShape", "Snapshot", "Reshape")
"""Operations whose result is their first operand."""


class Affine:
    """Finds the coefficient of a value in what a function that is traced computes from it.

    Args:
        sources: the tensors that are the value.
        graphs: the graph that is traced, those around it, and finally that of the function.
        shape: the shape of the value.
    """

    def __init__(self, sources: Sequence[Any], graphs: Sequence[Any], shape: Any) -> None:
        self._shape = shape
        self._coefficients: dict[tuple[int, str], Any] = {key_of(source): 1.0 for source in sources}
        self._dependent = _dependent(sources, graphs)

    def depends(self, tensor: Any) -> bool:
        """Returns whether a tensor is computed from the value."""
        return key_of(tensor) in self._dependent

    def of(self, tensor: Any) -> Any:
        """Returns the coefficient of the value in a tensor: a float, 0.0 if it does not depend, an array, or a tensor.

        Returns None if the tensor is no multiple of the value plus something that does not depend on it.
        """
        key = key_of(tensor)
        if key not in self._coefficients:
            self._coefficients[key] = self._of(tensor) if key in self._dependent else 0.0
        return self._coefficients[key]

    def _of(self, tensor: Any) -> Any:
        operation, inputs = tensor.op, tensor.op.inputs
        kind = operation.type
        if tensor.shape != self._shape:
            return None
        if kind == "Placeholder":
            return self.of(next(outside for outside, inside in tensor.graph.captures if inside is tensor))
        if kind == "IdentityN":
            return self.of(inputs[tensor.value_index])
        if kind in _SAME or (kind == "Cast" and inputs[0].dtype.is_floating and tensor.dtype.is_floating):
            return self.of(inputs[0])
        if kind in ("Add", "AddV2", "AddN", "Sub", "Neg"):
            parts = [self.of(each) for each in inputs]
            if any(part is None for part in parts):
                return None
            return parts[0] - parts[1] if kind == "Sub" else -parts[0] if kind == "Neg" else sum(parts[1:], parts[0])
        if kind in ("Mul", "RealDiv") and self.depends(inputs[0]) != self.depends(inputs[1]):
            own, factor = inputs if self.depends(inputs[0]) else reversed(inputs)
            coefficient = self.of(own)
            if coefficient is None or (kind == "RealDiv" and own is not inputs[0]):
                return None
            number = _number(factor)
            if not isinstance(number, float) and not tensor.dtype.is_floating:
                return None  # Of integers only sums are changed on the ps.
            return coefficient * number if kind == "Mul" else coefficient / number
        return None


def _number(tensor: Any) -> Any:
    static = tf.get_static_value(tensor)
    if static is None:
        return tensor
    return float(static) if static.ndim == 0 else static


def _dependent(sources: Sequence[Any], graphs: Sequence[Any]) -> set[tuple[int, str]]:
    """Returns the keys of all tensors of these graphs that are computed from `sources`, which are included."""
    dependent = {key_of(source) for source in sources}
    for graph in reversed(graphs):  # From the function to the innermost loop or condition.
        waiting = [source for source in sources if source.graph is graph]
        for outside, inside in getattr(graph, "captures", ()):
            if tf.is_symbolic_tensor(outside) and key_of(outside) in dependent:
                dependent.add(key_of(inside))
                waiting.append(inside)
        while waiting:
            for operation in waiting.pop().consumers():
                for output in operation.outputs:
                    if key_of(output) not in dependent:
                        dependent.add(key_of(output))
                        waiting.append(output)
    return dependent
