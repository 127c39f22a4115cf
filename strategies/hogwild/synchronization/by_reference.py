"""How a `tf.function` takes a `LocalVariable` as an argument: as the object that it is.

TensorFlow's own variables are replaced by their handle. A local variable has another one in each group.
"""

import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf


class ByReference(tf.types.experimental.TraceType):  # type: ignore[misc]
    """The type of one variable. Each variable gets a trace of its own."""

    def __init__(self, variable: tf.Variable) -> None:
        """Takes the variable, which the type does not keep."""
        self._variable = weakref.ref(variable)
        self._hash = id(variable)

    def is_subtype_of(self, other: Any) -> bool:
        """Returns whether another type is that of the same variable."""
        return bool(self == other)

    def most_specific_common_supertype(self, others: Sequence[Any]) -> "ByReference | None":
        """Returns the type if all others are that of the same variable, else None."""
        return self if all(self == other for other in others) else None

    def placeholder_value(self, placeholder_context: Any) -> Any:
        """Returns the variable, for the trace."""
        return self._variable()

    def cast(self, value: Any, cast_context: Any) -> Any:
        """Returns the variable."""
        return value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ByReference):
            return False
        own = self._variable()
        return own is not None and own is other._variable()

    def __hash__(self) -> int:
        return self._hash
