"""`PatchPoint`: a function of TensorFlow or Keras that tfdist replaces at run time: see patches.py and file_patches.py."""

import functools
import sys
from collections.abc import Callable
from typing import Any

from tfdist.errors import UnsupportedVersionError
from tfdist.strategies.private_api.checks import need_function
from tfdist.strategies.private_api.tracebacks import without_own_frames

Replacement = Callable[..., Any]


class PatchPoint:
    """A function of TensorFlow or Keras that tfdist replaces at run time.

    Attributes:
        owner: the class or module that has the function.
        name: the attribute of `owner`.
        why: the reason.
        original: the function of TensorFlow or Keras itself, without any replacement.
    """

    def __init__(self, owner: Any, name: str, parameters: str, why: str) -> None:
        """Checks that the function exists.

        Args:
            owner: as the attribute.
            name: as the attribute.
            parameters: the names of the parameters, separated by commas, `self` included.
            why: as the attribute.

        Raises:
            UnsupportedVersionError: if `owner` has no such function, or one with other parameters.
        """
        self.owner = owner
        self.name = name
        self.why = why
        self.original = need_function(owner, name, parameters, "replaces")
        self._replacements: list[Replacement] = []

    def patch(self, replacement: Replacement) -> None:
        """Replaces the function by `replacement(original, *args, **kwargs)`; does nothing if this replacement is in place.

        Several replacements nest: the `original` of one is the function with the replacements before it.
        """
        if replacement in self._replacements:
            return
        self._replacements.append(replacement)
        original = getattr(self.owner, self.name)

        @functools.wraps(original)
        def replaced(*args: Any, **kwargs: Any) -> Any:
            try:
                return replacement(original, *args, **kwargs)
            except Exception as error:
                raise error.with_traceback(without_own_frames(error))  # noqa: B904, it is the same error

        for owner in self._owners(original):
            setattr(owner, self.name, replaced)

    def _owners(self, original: Any) -> list[Any]:
        """Returns what has the function that is to be replaced."""
        return [self.owner]


class PublicPatchPoint(PatchPoint):
    """A function that programs call, and that TensorFlow has in several modules: `tf`, `tf.compat.v1`, `tf.compat.v2`.

    When a program imports one of them by its name, as with `import tensorflow.compat.v1`, TensorFlow makes another module, also
    later, and takes the function from the one that defines it.
    """

    def _owners(self, original: Any) -> list[Any]:
        modules = [module for name, module in list(sys.modules.items()) if name.startswith("tensorflow.")]
        return [module for module in modules if vars(module).get(self.name) is original]


class AddedMethod:
    """A method that tfdist gives to a class of Keras, which has none of this name, because others look for it.

    Attributes:
        owner: the class.
        name: the name of the method.
        why: the reason.
    """

    def __init__(self, owner: Any, name: str, why: str) -> None:
        """Raises UnsupportedVersionError if the class has such a method already."""
        if hasattr(owner, name):
            raise UnsupportedVersionError(f"{owner.__qualname__} has its own method {name} now, which tfdist would replace")
        self.owner = owner
        self.name = name
        self.why = why

    def add(self, method: Callable[..., Any]) -> None:
        """Adds the method. Adding it again does nothing."""
        setattr(self.owner, self.name, method)
