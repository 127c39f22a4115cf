"""What has been said of a model or layer: each warning comes once for each object, also if another one has the same name."""

from typing import Any

_ATTRIBUTE = "_tfdist_said"


def is_new(of: Any, what: str) -> bool:
    """Returns whether it is the first time that this is said of a model or layer."""
    said: set[str] = vars(of).setdefault(_ATTRIBUTE, set())  # Keras would track an attribute that is assigned.
    if what in said:
        return False
    said.add(what)
    return True
