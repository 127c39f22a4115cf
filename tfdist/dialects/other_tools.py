"""Files of other tools that people take for cluster descriptions: why they are none, and what to give instead."""

from collections.abc import Iterable

_TOOLS: tuple[tuple[frozenset[str], str], ...] = (
    (
        frozenset({"zero_optimization", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size"}),
        "a DeepSpeed configuration says how to train, not where; give the deepspeed command line or its host file",
    ),
    (
        frozenset({"head_node_type", "available_node_types", "worker_nodes"}),
        "a Ray cluster file describes machines, and Ray decides where tasks run; start the program with Ray Train",
    ),
    (
        frozenset({"entrypoint", "entry_point", "source_dir", "instance_count", "instance_type", "framework_version"}),
        "an estimator's arguments are read by SageMaker; give resourceconfig.json of the job",
    ),
    (
        frozenset({"enabled", "mpi", "parameter_server", "torch_distributed", "multi_worker_mirrored_strategy"})
        | {"smdistributed", "dataparallel", "modelparallel"},
        "an estimator's distribution is read by SageMaker and names no hosts; give resourceconfig.json of the job",
    ),
    (
        frozenset({"TrainingJobName", "ResourceConfig", "AlgorithmSpecification", "InstanceCount", "InstanceType"}),
        "a request to SageMaker names no hosts; give resourceconfig.json of the job",
    ),
    (
        frozenset({"sagemaker_program", "sagemaker_submit_directory", "sagemaker_mpi_enabled"}),
        "hyperparameters of SageMaker name no hosts; give resourceconfig.json of the job",
    ),
    (
        frozenset({"num_workers", "use_gpu", "resources_per_worker"}),
        "Ray decides where the workers of a ScalingConfig run; start the program with Ray Train",
    ),
    (frozenset({"services"}), "a Compose file describes containers; give the TF_CONFIG of one of them"),
    (
        frozenset({"command", "distribution"}),
        "a job of Azure ML gets TF_CONFIG or the variables of its launcher there; start the program without a description",
    ),
)
"""Names that identify the file, and the reason."""


def reason_against(names: Iterable[str]) -> str | None:
    """Returns why a file with these names is no cluster description, or None if its tool is not known."""
    given = set(names)
    return next((reason for marks, reason in _TOOLS if len(marks & given) >= min(2, len(marks))), None)
