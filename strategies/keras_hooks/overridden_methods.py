"""Methods of Keras that a class of the user's overrides: what is replaced in Keras' own has to be replaced in these, too."""

import functools
from collections.abc import Callable
from typing import Any

from tfdist.strategies.keras_hooks.checks.own_code import is_known, owner_of


def replace_overridden(user_class: type, name: str, replacement: Callable[..., Any]) -> None:
    """Replaces the method of a class by `replacement(original, self, ...)`, unless it is Keras' own. Again, it does nothing."""
    owner = owner_of(user_class, name)
    original = vars(owner)[name]
    if is_known(owner) or hasattr(original, "tfdist_original"):
        return

    @functools.wraps(original)
    def replaced(self: Any, *args: Any, **kwargs: Any) -> Any:
        return replacement(original, self, *args, **kwargs)

    replaced.tfdist_original = original  # type: ignore[attr-defined]
    setattr(owner, name, replaced)
