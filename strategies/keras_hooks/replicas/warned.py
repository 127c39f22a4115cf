"""Warnings that come once: for each model or layer, also if another one has the same name, or for each text."""

import logging
from typing import Any

_given: set[str] = set()  # The texts of `warn_once`.
_ATTRIBUTE = "_tfdist_warned"


def is_first_warning(owner: Any, warning: str) -> bool:
    """Returns whether this warning has not been given for a model or layer before, and notes that it is given now."""
    given: set[str] = vars(owner).setdefault(_ATTRIBUTE, set())  # Keras would track an attribute that is assigned.
    if warning in given:
        return False
    given.add(warning)
    return True


def warn_once(message: str, *args: Any) -> None:
    """Logs a warning, unless this process has logged the same text so before."""
    text = message % args
    if text not in _given:
        _given.add(text)
        logging.getLogger("tfdist").warning(message, *args)
