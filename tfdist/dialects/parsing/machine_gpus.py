"""The GPUs of this machine, for command lines that ask for one process on each of them."""

from collections.abc import Mapping

from tfdist import machine
from tfdist.devices import visible


def visible_gpus(environ: Mapping[str, str]) -> int:
    """Returns the number of GPUs of this machine that a process with these variables sees, found without a library."""
    return len(visible(machine.installed(), environ))
