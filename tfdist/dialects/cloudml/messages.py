"""The messages of a CloudML job: their fields, in either spelling, with the places of the values.

Source: ml.v1.json of google-api-python-client 2.202.0.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from tfdist.dialects.parsing.document import Document, Path, shown
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


@dataclass(frozen=True)
class Value:
    """A value and its place.

    Attributes:
        content: the value; of a message its fields, see `fields`.
        field: path of the field, or the flag.
        line: its line, if it is known.
    """

    content: Any
    field: str
    line: int | None = None

    @property
    def fields(self) -> "dict[str, Value]":
        """The fields of a message by name in camel case."""
        return cast("dict[str, Value]", self.content)


class Reader:
    """Reads the fields of TrainingInput in camel case or snake case, and refuses unknown fields."""

    def __init__(self, document: Document, source: Source) -> None:
        self.document = document
        self.source = source

    def training_input(self) -> dict[str, Value]:
        """Returns the fields of TrainingInput by name in camel case. Raises ClusterError for an unknown field."""
        top = self.document.mapping
        names = {camel(key) for key in top if isinstance(key, str)}
        if not top:
            return {}
        if "trainingInput" not in names and (names & TRAINING_FIELDS or not names & JOB_FIELDS):
            return self._message(top, (), "TrainingInput")
        job = self._message(top, (), "Job")
        if "trainingInput" not in job:
            raise self.source.error("the job has no trainingInput, which describes the machines")
        return job["trainingInput"].fields

    def _message(self, mapping: Mapping[Any, Any], path: Path, kind: str) -> dict[str, Value]:
        """Returns the fields of a message by name in camel case, without null ones, to the depth of `MESSAGES`."""
        known = MESSAGES[kind]
        values: dict[str, Value] = {}
        for key, content in mapping.items():
            here = (*path, key if isinstance(key, str) else shown(key))
            name = camel(key) if isinstance(key, str) else ""
            value = Value(content, ".".join(here), self.document.lines.get(here))
            if name not in known:
                raise self._unknown(value, name or shown(key), kind)
            if name in values:
                raise self._error(f"the same is given as {values[name].field}; keep one of them", value)
            if content is not None:
                values[name] = self._nested(value, here, known[name]) if known[name] else value
        return values

    def _nested(self, value: Value, path: Path, kind: str) -> Value:
        if not isinstance(value.content, Mapping):
            fields = ", ".join(MESSAGES[kind])
            raise self._error(f"{shown(value.content)} is not a mapping; expected {kind} with {fields}", value)
        return Value(self._message(value.content, path, kind), value.field, value.line)

    def _unknown(self, value: Value, name: str, kind: str) -> ClusterError:
        if kind == "Job" and name in TRAINING_FIELDS:
            return self._error("this field belongs inside trainingInput; move it there", value)
        # A bare TrainingInput may be a Job whose one important field is misspelled.
        known = [*MESSAGES[kind], "trainingInput"] if kind == "TrainingInput" else list(MESSAGES[kind])
        hint = nearest(name, known, otherwise=f"; the fields are {', '.join(MESSAGES[kind])}")
        return self._error(f"{kind} has no such field{hint}", value)

    def _error(self, message: str, value: Value) -> ClusterError:
        return self.source.error(message, field=value.field[-100:], line=value.line)
