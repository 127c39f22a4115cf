"""The standard streams of a process that ends without Python's own teardown."""

import sys


def flush_streams() -> None:
    """Writes what the standard streams hold back. Ignores a reader that is gone, and streams that a program has closed."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # ValueError: closed. AttributeError: None, or an object of the program.
            pass
