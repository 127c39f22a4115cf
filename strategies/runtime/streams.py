"""The files of a process that ends without Python's own teardown."""

import gc
import io
import sys

_FILE = io.IOBase.__mro__[1]
"""The class of all files. `io.IOBase` itself has a slow `issubclass`."""


def flush_streams() -> None:
    """Writes what the standard streams hold back, and then all other open files.

    Ignores a reader that is gone, a full disk, and files that are closed.
    """
    objects = gc.get_objects()
    kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, _FILE)}
    # Standard streams may be objects of the program.
    for file in (sys.stdout, sys.stderr, *(each for each in objects if type(each) in kinds)):
        try:
            file.flush()  # type: ignore[attr-defined]
        except Exception:  # ValueError: closed. AttributeError: None, or an object without it. Others: a program's own.
            pass
