"""The attributes that Keras leaves out of its files, found once for each kind of object.

Keras looks for them under another name than the one under which it keeps them (`get_attr_skipset` in saving_lib.py, 3.10 to
3.15). So each save makes a layer, a metric and an optimizer to list their attributes, which takes as long as the rest of saving
a small model. Of each such optimizer 70 kB stay in TensorFlow: a training that saves after each step would fill the memory.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tfdist.strategies.private_api import file_patches

_found: dict[str, set[str]] = {}


def install() -> None:
    """Replaces the function. Calling it again does nothing."""
    file_patches.UNSAVED_ATTRIBUTES.patch(_of)


def _of(original: Callable[[str], set[str]], obj_type: str) -> set[str]:
    if obj_type not in _found:
        with ThreadPoolExecutor(1) as thread:  # In no scope: an optimizer's variable there is sent to all tasks.
            _found[obj_type] = thread.submit(original, obj_type).result()
    return _found[obj_type]
