"""Google's machine types and accelerators, as CloudML and Vertex AI name them.

Sources: ml.v1.json of google-api-python-client 2.202.0 (enums); Google's table of machine types of 2018 (legacy types).
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """A machine type.

    Attributes:
        legacy: whether it is a legacy name of CloudML; otherwise it is a name of Compute Engine.
        gpus: its built-in GPUs.
        gpu_model: their model, for a legacy name.
        equivalent: the machine type of Compute Engine that a legacy name corresponds to.
    """

    legacy: bool
    gpus: int = 0
    gpu_model: str = ""
    equivalent: str = ""


MACHINES: dict[str, Machine] = {
    "standard": Machine(True, equivalent="n1-standard-4"),
    "large_model": Machine(True, equivalent="n1-highmem-8"),
    "complex_model_s": Machine(True, equivalent="n1-highcpu-8"),
    "complex_model_m": Machine(True, equivalent="n1-highcpu-16"),
    "complex_model_l": Machine(True, equivalent="n1-highcpu-32"),
    "standard_gpu": Machine(True, 1, "K80", equivalent="n1-standard-8"),
    "complex_model_m_gpu": Machine(True, 4, "K80", equivalent="n1-standard-16"),
    "complex_model_l_gpu": Machine(True, 8, "K80", equivalent="n1-standard-32"),
    "standard_p100": Machine(True, 1, "P100", equivalent="n1-standard-8"),
    "complex_model_m_p100": Machine(True, 4, "P100", equivalent="n1-standard-16"),
    "standard_v100": Machine(True, 1, "V100", equivalent="n1-standard-8"),
    "large_model_v100": Machine(True, 1, "V100", equivalent="n1-highmem-8"),
    "complex_model_m_v100": Machine(True, 4, "V100", equivalent="n1-standard-16"),
    "complex_model_l_v100": Machine(True, 8, "V100", equivalent="n1-standard-32"),
}
"""Legacy machine types."""

CLOUD_TPU = "cloud_tpu"
"""A machine with one Cloud TPU. It may be combined with both categories of machine types."""

_SIZES = {"standard": (4, 8, 16, 32, 64, 96), "highmem": (2, 4, 8, 16, 32, 64, 96), "highcpu": (8, 16, 32, 64, 96)}
N1_MACHINES = tuple(f"n1-{kind}-{size}" for kind, sizes in _SIZES.items() for size in sizes)
"""The machine types of the first family, for suggestions."""

MAX_GPUS = 16
"""Most GPUs in one machine (a2-megagpu-16g)."""

_GCE = re.compile(r"[a-z][0-9]{1,2}[a-z]?-[a-z]{3,12}-[0-9]{1,4}(?P<gpus>g)?", re.ASCII)


def machine(name: str) -> Machine | None:
    """Returns the machine type of a name; None for a name that neither CloudML nor Compute Engine can have.

    Compute Engine gains families every year, so every name of the form family-type-number is valid.
    """
    if name in MACHINES:
        return MACHINES[name]
    match = _GCE.fullmatch(name)
    if match is None:
        return None
    # The number of a2-highgpu-4g counts its built-in GPUs.
    gpus = int(name.rpartition("-")[2].rstrip("g")) if match["gpus"] else 0
    return Machine(False, gpus) if gpus <= MAX_GPUS else None


ACCELERATORS = (
    *("NVIDIA_TESLA_K80", "NVIDIA_TESLA_P100", "NVIDIA_TESLA_V100", "NVIDIA_TESLA_P4", "NVIDIA_TESLA_T4", "NVIDIA_TESLA_A100"),
    *("TPU_V2", "TPU_V3", "TPU_V2_POD", "TPU_V3_POD", "TPU_V4_POD"),
)
