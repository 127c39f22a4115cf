"""Adds functions to TensorFlow's runtime, and removes those that the program has dropped, without Python's lock.

TensorFlow does both on all tasks, by calls that wait for each, and holds the lock meanwhile. Each dataset and each traced step
adds functions, and a dropped one removes them: all threads of a chief would stand still for as long as a ps or a worker is
stopped.
"""

import ctypes
from collections.abc import Callable
from typing import Any

from tfdist.strategies.private_api import c_interface, patches

_add = c_interface.need_context_function("TFE_ContextAddFunction", ctypes.c_void_p)
_add_def = c_interface.need_context_function("TFE_ContextAddFunctionDef", ctypes.c_char_p, ctypes.c_size_t)
_remove = c_interface.need_context_function("TFE_ContextRemoveFunction", ctypes.c_char_p)

_keeps_all = False
"""Whether the process ends, and its functions are not removed any more."""


def install() -> None:
    """Adds and removes functions so from now on. Calling it again does nothing."""
    patches.REMOTE_FUNCTIONS["add_c_function"].patch(_add_c_function)
    patches.REMOTE_FUNCTIONS["add_function_def"].patch(_add_function_def)
    patches.REMOTE_FUNCTIONS["remove_function"].patch(_remove_function)


def keep_all() -> None:
    """Leaves all functions on their servers from now on, at the end of the process: the servers end anyway.

    TensorFlow would try to remove each function from servers that are gone, and print an error for each try.
    """
    global _keeps_all
    _keeps_all = True


# Replacements. The first parameter is the function that they replace.


def _add_c_function(original: Callable[..., Any], context: Any, function: Any) -> None:
    pointer = c_interface.pointer_in(function)
    if pointer is None:
        original(context, function)
    else:
        c_interface.call(_add, pointer)


def _add_function_def(original: Callable[..., Any], context: Any, definition: Any) -> None:
    serialized = definition.SerializeToString()
    c_interface.call(_add_def, serialized, len(serialized))


def _remove_function(original: Callable[..., Any], context: Any, name: str | bytes) -> None:
    if not _keeps_all:
        c_interface.call(_remove, name.encode() if isinstance(name, str) else name)
