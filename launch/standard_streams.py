"""`open_closed`: makes sure that a command has its three standard streams, however it was started. `is_one`: whether a path is
one of them."""

import os
import sys


def open_closed() -> None:
    """Opens the null device for each standard stream that is closed, as after `tfdist run ... >&-`.

    Python has None for such a stream. Its descriptor would be that of the next file that is opened, and what others print would
    be written there.
    """
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        place: int | str = os.devnull
        try:
            os.fstat(descriptor)
        except OSError:
            place = os.open(os.devnull, os.O_RDWR)  # The lowest that is free, and those below are open: this very number.
            os.set_inheritable(place, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(place, mode, buffering=1, encoding="utf-8"))  # noqa: SIM115  for as long as it runs


def is_one(path: str) -> bool:
    """Returns whether a path, such as `/dev/stdout`, leads to a standard stream of this process."""
    for descriptor in (0, 1, 2):
        try:
            if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                return True
        except OSError:
            pass  # There is no such file, or the stream is closed.
    return False
