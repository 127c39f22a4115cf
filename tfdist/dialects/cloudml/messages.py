"""The messages of a CloudML job: their fields, in either spelling, with the places of the values.

Source: ml.v1.json of google-api-python-client 2.202.0.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from tfdist.dialects.parsing.document import Document, shown
from tfdist.dialects.parsing.node import Node
from tfdist.errors import ClusterError, Source, nearest


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
"""Message -> field -> the message that the field contains, or `""` for a plain value."""

JOB_FIELDS, TRAINING_FIELDS = MESSAGES["Job"].keys(), MESSAGES["TrainingInput"].keys()


def snake(name: str) -> str:
    """Returns a name in camel case in snake case."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda match: f"_{match[1].lower()}", name)


def camel(name: str) -> str:
    """Returns a name in snake case in camel case."""
    return re.sub(r"(?<=[a-z0-9])_([a-z0-9])", lambda match: match[1].upper(), name)


def flag(content: object, name: str, source: Source) -> Node:
    """Returns the value of a flag, which stands in the place of a field."""
    return Node(content, (f"--{name}",), Document(source.name), source)


def fields(message: Node | None) -> dict[str, Node]:
    """Returns the fields of a message that was read, by name in camel case; none without a message."""
    return {} if message is None else cast("dict[str, Node]", message.value)


def training_fields(document: Document, source: Source) -> dict[str, Node]:
    """Returns the fields of TrainingInput by name in camel case. Raises ClusterError for an unknown field."""
    top = Node(document.mapping, (), document, source)
    names = {camel(key) for key in document.mapping if isinstance(key, str)}
    if not document.mapping:
        return {}
    if "trainingInput" not in names and (names & TRAINING_FIELDS or not names & JOB_FIELDS):
        return _read(top, "TrainingInput")
    job = _read(top, "Job")
    if "trainingInput" not in job:
        raise source.error("the job has no trainingInput, which describes the machines")
    return fields(job["trainingInput"])


def _read(node: Node, kind: str) -> dict[str, Node]:
    """Returns the fields of a message by name in camel case, without null ones, to the depth of `MESSAGES`."""
    known = MESSAGES[kind]
    if not isinstance(node.value, Mapping):
        raise node.error(f"{shown(node.value)} is not a mapping; expected {kind} with {', '.join(known)}")
    values: dict[str, Node] = {}
    for key, content in node.value.items():
        name = camel(key) if isinstance(key, str) else ""
        value = replace(node, value=content, path=(*node.path, key if isinstance(key, str) else shown(key)))
        if name not in known:
            raise _unknown(value, name or shown(key), kind)
        if name in values:
            raise value.error(f"the same is given as {values[name].field}; keep one of them")
        if content is not None:
            values[name] = replace(value, value=_read(value, known[name])) if known[name] else value
    return values


def _unknown(value: Node, name: str, kind: str) -> ClusterError:
    if kind == "Job" and name in TRAINING_FIELDS:
        return value.error("this field belongs inside trainingInput; move it there")
    # A bare TrainingInput may be a Job whose one important field is misspelled.
    known = [*MESSAGES[kind], "trainingInput"] if kind == "TrainingInput" else list(MESSAGES[kind])
    hint = nearest(name, known, otherwise=f"; the fields are {', '.join(MESSAGES[kind])}")
    return value.error(f"{kind} has no such field{hint}")
