"""The GPUs of this machine, for command lines that ask for one process on each of them."""

import os
from collections.abc import Mapping


def visible_gpus(environ: Mapping[str, str]) -> int:
    """Returns the number of GPUs of this machine that the process may use, without a library."""
    try:
        installed = sum(name.startswith("nvidia") and name[6:].isdecimal() for name in os.listdir("/dev"))
    except OSError:
        installed = 0
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return installed
    return min(installed, len([name for name in visible.split(",") if name.strip() not in ("", "-1")]))
