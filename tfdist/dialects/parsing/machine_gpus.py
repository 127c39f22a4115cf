"""The GPUs of this machine, for command lines that ask for one process on each of them."""

from collections.abc import Mapping

from tfdist import machine
from tfdist.devices import visible

ON_NODE = "SLURM_GPUS_ON_NODE"
"""The GPUs of each node of a batch script, which runs on nodes that Slurm chooses, and not on this machine."""

NODES = "SLURM_NNODES"
"""The number of the nodes of a batch script."""


def visible_gpus(environ: Mapping[str, str]) -> int:
    """Returns the number of GPUs of this machine that a process with these variables sees, found without a library.

    With `ON_NODE`, which is empty for a command that lists its GPUs itself, CUDA_VISIBLE_DEVICES lists those of any machine.
    """
    if ON_NODE not in environ:
        return len(visible(machine.installed(), environ))
    return len([gpu for gpu in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu.strip() not in ("", "-1")])
