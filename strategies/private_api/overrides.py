"""Overridden private methods: a rename in TensorFlow or Keras must not leave an override that nobody calls."""

from collections.abc import Callable
from typing import Any, TypeVar

from tfdist.strategies.private_api.checks import need_function, parameters_of

_Function = TypeVar("_Function", bound=Callable[..., Any])


def overrides(base: Any) -> Callable[[_Function], _Function]:
    """Decorates a method that overrides a private method of `base`, a class of TensorFlow or Keras.

    The method has to take the parameters of the one that it overrides, by the same names. One that takes `*args` and
    `**kwargs` is checked for its name only. Stands below `@property`, `@classmethod` and `@staticmethod`.

    Raises:
        UnsupportedVersionError: when the class is defined and `base` has no such method, or one with other parameters.
    """

    def check(method: _Function) -> _Function:
        parameters = parameters_of(method)
        takes_any = parameters in ("self, args, kwargs", "cls, args, kwargs")
        need_function(base, method.__name__, None if takes_any else parameters, "overrides")
        method._tfdist_overrides = base  # type: ignore[attr-defined]
        return method

    return check
