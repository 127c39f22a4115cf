"""The GPUs of this machine, for command lines that ask for one process on each of them."""

from collections.abc import Mapping

from tfdist import machine
from tfdist.devices import visible

ON_NODE = "SLURM_GPUS_ON_NODE"
"""The GPUs of each node of a batch script, which runs on nodes that Slurm chooses, and not on this machine."""


def visible_gpus(environ: Mapping[str, str]) -> int:
    """Returns the number of GPUs of this machine that a process with these variables sees, found without a library.

    With `ON_NODE` they are those of a node of Slurm, and CUDA_VISIBLE_DEVICES lists them.
    """
    if ON_NODE in environ:
        return len([gpu for gpu in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu.strip()])
    return len(visible(machine.installed(), environ))


def chosen_gpus(environ: Mapping[str, str]) -> int:
    """Returns the number of GPUs that CUDA_VISIBLE_DEVICES lists by number, on whatever machine; else `visible_gpus`.

    DeepSpeed's and Paddle's launchers believe the variable.
    """
    listed = [gpu for gpu in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu.strip().isdecimal()]
    return len(listed) or visible_gpus(environ)
