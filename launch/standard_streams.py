"""`open_closed`: makes sure that a command has its three standard streams, however it was started."""

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
