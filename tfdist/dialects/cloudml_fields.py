"""The vocabulary of CloudML: scale tiers, machine types, and the fields of each message.

Sources: ml.v1.json of google-api-python-client 2.202.0 (fields, enums); Google's table of machine types of 2018 (legacy types);
the scale tiers page of Cloud ML Engine (counts and machines of the tiers).
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """A machine type: whether it is a legacy name of CloudML, its GPUs, their model, and the equivalent of Compute Engine."""

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
"""A machine with one Cloud TPU; it goes with both categories of machine types."""

_SIZES = {"standard": (4, 8, 16, 32, 64, 96), "highmem": (2, 4, 8, 16, 32, 64, 96), "highcpu": (8, 16, 32, 64, 96)}
N1_MACHINES = tuple(f"n1-{kind}-{size}" for kind, sizes in _SIZES.items() for size in sizes)
"""The machine types of the family that CloudML began with, for suggestions."""

MAX_GPUS = 16
"""Most GPUs in one machine (a2-megagpu-16g)."""

_GCE = re.compile(r"[a-z][0-9]{1,2}[a-z]?-[a-z]{3,12}-[0-9]{1,4}(?P<gpus>g)?", re.ASCII)


def machine(name: str) -> Machine | None:
    """The machine type of a name, or None where it can be neither a legacy type nor one of Compute Engine.

    Compute Engine gains families every year, so whatever has the form family-type-number is taken.
    """
    if name in MACHINES:
        return MACHINES[name]
    match = _GCE.fullmatch(name)
    if match is None:
        return None
    # a2-highgpu-4g has its GPUs built in; the number counts them.
    gpus = int(name.rpartition("-")[2].rstrip("g")) if match["gpus"] else 0
    return Machine(False, gpus) if gpus <= MAX_GPUS else None


@dataclass(frozen=True)
class Tier:
    """A scale tier: machine types by job (`chief`, `worker`, `ps`), and how many of each."""

    machines: tuple[tuple[str, int, str, int], ...]
    """(job, count, machine type as shown, GPUs of each)"""


TIERS: dict[str, Tier] = {
    "BASIC": Tier((("chief", 1, "n1-standard-4", 0),)),
    "STANDARD_1": Tier(
        (("chief", 1, "n1-highcpu-8", 0), ("worker", 4, "n1-highcpu-8", 0), ("ps", 3, "n1-standard-4", 0)),
    ),
    "PREMIUM_1": Tier(
        (("chief", 1, "n1-highcpu-16", 0), ("worker", 19, "n1-highcpu-16", 0), ("ps", 11, "n1-highmem-8", 0)),
    ),
    "BASIC_GPU": Tier((("chief", 1, "n1-standard-8+1xNVIDIA_TESLA_K80", 1),)),
    "BASIC_TPU": Tier((("chief", 1, CLOUD_TPU, 0),)),
    "CUSTOM": Tier(()),
}

ACCELERATORS = (
    *("NVIDIA_TESLA_K80", "NVIDIA_TESLA_P100", "NVIDIA_TESLA_V100", "NVIDIA_TESLA_P4", "NVIDIA_TESLA_T4", "NVIDIA_TESLA_A100"),
    *("TPU_V2", "TPU_V3", "TPU_V2_POD", "TPU_V3_POD", "TPU_V4_POD"),
)

REPLICAS = (("master", "chief"), ("worker", "worker"), ("parameterServer", "ps"), ("evaluator", "evaluator"))
"""CloudML's name of each kind of replica, and TensorFlow's name of the job."""


def _message(names: str, **nested: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), "") | nested


MESSAGES: dict[str, dict[str, str]] = {
    "Job": _message(
        "jobId labels trainingOutput predictionInput predictionOutput createTime startTime endTime state errorMessage etag "
        "jobPosition",
        trainingInput="TrainingInput",
    ),
    "TrainingInput": _message(
        "scaleTier masterType workerType parameterServerType evaluatorType workerCount parameterServerCount evaluatorCount "
        "runtimeVersion pythonVersion packageUris pythonModule args region jobDir useChiefInTfConfig network serviceAccount "
        "enableWebAccess",
        masterConfig="ReplicaConfig",
        workerConfig="ReplicaConfig",
        parameterServerConfig="ReplicaConfig",
        evaluatorConfig="ReplicaConfig",
        hyperparameters="HyperparameterSpec",
        scheduling="Scheduling",
        encryptionConfig="EncryptionConfig",
    ),
    "ReplicaConfig": _message(
        "imageUri tpuTfVersion containerCommand containerArgs",
        acceleratorConfig="AcceleratorConfig",
        diskConfig="DiskConfig",
    ),
    "AcceleratorConfig": _message("count type"),
    "DiskConfig": _message("bootDiskType bootDiskSizeGb"),
    "EncryptionConfig": _message("kmsKeyName"),
    "Scheduling": _message("maxRunningTime maxWaitTime priority"),
    "HyperparameterSpec": _message(
        "goal params maxTrials maxParallelTrials maxFailedTrials hyperparameterMetricTag algorithm enableTrialEarlyStopping "
        "resumePreviousJobId"
    ),
}
"""The fields of each message, and the message that a field holds, or `""` for a plain value."""

OPTIONS: dict[str, str] = {
    "tier": "scaleTier",
    "master_machine_type": "masterType",
    "worker_machine_type": "workerType",
    "parameter_server_machine_type": "parameterServerType",
    "evaluator_machine_type": "evaluatorType",
    "worker_count": "workerCount",
    "parameter_server_count": "parameterServerCount",
    "evaluator_count": "evaluatorCount",
    "job_dir": "jobDir",
}
"""The flags that win over the file, and the field of each."""
