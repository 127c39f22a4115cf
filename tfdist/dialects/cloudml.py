"""CloudML (later AI Platform Training): scale tiers and config.yaml.

The rules are those of TrainingInput in ml.v1.json (google-api-python-client 2.202.0) and of gcloud
(`api_lib/ml_engine/jobs.py`); the vocabulary is in `cloudml_fields`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from tfdist.cluster import Cluster, Task
from tfdist.dialects.cloudml_fields import (
    ACCELERATORS,
    CLOUD_TPU,
    MACHINES,
    MAX_GPUS,
    MESSAGES,
    N1_MACHINES,
    OPTIONS,
    REPLICAS,
    TIERS,
    Machine,
    machine,
)
from tfdist.dialects.document import MAX_TASKS, Document, Path, shown
from tfdist.errors import ClusterError, Source, nearest

NAME = "cloudml"
EXAMPLE = "CloudML config.yaml (trainingInput: {scaleTier: STANDARD_1})"
IS_MAPPING = True

_JOB, _TRAINING = MESSAGES["Job"].keys(), MESSAGES["TrainingInput"].keys()


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda match: f"_{match[1].lower()}", name)


def _camel(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])_([a-z0-9])", lambda match: match[1].upper(), name)


WORDS = frozenset(_JOB | _TRAINING | {_snake(name) for name in _JOB | _TRAINING})


def tier_name(text: object) -> str | None:
    """Returns the scale tier that `text` names in any spelling (`STANDARD_1`, `standard-1`), or None."""
    name = text.strip().upper().replace("-", "_") if isinstance(text, str) and len(text) < 40 else ""
    return name if name in TIERS else None


def parse(document: Document, *, options: Mapping[str, Any] | None = None, **_: Any) -> Cluster:
    """Reads a Job or a TrainingInput; `options` (see `OPTIONS`) are flags, which win over it."""
    source = Source(NAME, document.name)
    values = _Reader(document, source).training_input()
    for option, content in (options or {}).items():
        values[OPTIONS[option]] = Value(content, f"--{option}")
    return _Training(source, values).cluster()


def write(cluster: Cluster) -> str:
    """Returns config.yaml: the name of a tier where one fits, else CUSTOM. Addresses are left to CloudML.

    Raises:
        ClusterError: where CloudML has no words for the cluster.
    """
    from tfdist.dialects.cloudml_write import write_config

    return write_config(cluster)


@dataclass(frozen=True)
class Value:
    """A value (of a message: its fields), where it stands (a field path or a flag), and its line where that is known."""

    content: Any
    field: str
    line: int | None = None

    @property
    def fields(self) -> "dict[str, Value]":
        """The fields of a message by name in camel case."""
        return cast("dict[str, Value]", self.content)


class _Reader:
    """Finds the fields of TrainingInput in either spelling, and refuses those that do not exist."""

    def __init__(self, document: Document, source: Source) -> None:
        self.document = document
        self.source = source

    def training_input(self) -> dict[str, Value]:
        top = self.document.mapping
        names = {_camel(key) for key in top if isinstance(key, str)}
        if not top:
            return {}
        if "trainingInput" not in names and (names & _TRAINING or not names & _JOB):
            return self.message(top, (), "TrainingInput")
        job = self.message(top, (), "Job")
        if "trainingInput" not in job:
            raise self.source.error("the job has no trainingInput, which says what machines to train on")
        return job["trainingInput"].fields

    def message(self, mapping: Mapping[Any, Any], path: Path, kind: str) -> dict[str, Value]:
        """The fields of a message by name in camel case, without those that are null. As deep as MESSAGES, no deeper."""
        known = MESSAGES[kind]
        values: dict[str, Value] = {}
        for key, content in mapping.items():
            here = (*path, key if isinstance(key, str) else shown(key))
            name = _camel(key) if isinstance(key, str) else ""
            value = Value(content, ".".join(here), self.document.lines.get(here))
            if name not in known:
                raise self.unknown(value, name or shown(key), kind)
            if name in values:
                raise self.error(f"the same is given as {values[name].field}; keep one of them", value)
            if content is not None:
                values[name] = self.nested(value, here, known[name]) if known[name] else value
        return values

    def nested(self, value: Value, path: Path, kind: str) -> Value:
        if not isinstance(value.content, Mapping):
            fields = ", ".join(MESSAGES[kind])
            raise self.error(f"{shown(value.content)} is not a mapping; expected {kind} with {fields}", value)
        return Value(self.message(value.content, path, kind), value.field, value.line)

    def unknown(self, value: Value, name: str, kind: str) -> ClusterError:
        if kind == "Job" and name in _TRAINING:
            return self.error("this field belongs inside trainingInput; move it there", value)
        # A bare TrainingInput may be a Job whose one important field is misspelled.
        known = [*MESSAGES[kind], "trainingInput"] if kind == "TrainingInput" else list(MESSAGES[kind])
        hint = nearest(name, known, otherwise=f"; the fields are {', '.join(MESSAGES[kind])}")
        return self.error(f"{kind} has no such field{hint}", value)

    def error(self, message: str, value: Value) -> ClusterError:
        return self.source.error(message, field=value.field[-100:], line=value.line)


@dataclass(frozen=True)
class _Replica:
    """The machines of one job: how many, their type as shown to people, and their GPUs."""

    count: int
    machine_type: str
    gpus: int


class _Training:
    """One TrainingInput: its rules, and the tasks that it means."""

    def __init__(self, source: Source, values: dict[str, Value]) -> None:
        self.source = source
        self.values = values

    def cluster(self) -> Cluster:
        tier = self._tier()
        self._check_program()
        replicas = self._custom() if tier == "CUSTOM" else self._fixed(tier)
        tasks = []
        for job, replica in replicas.items():
            # A ps holds one shard, whatever GPUs its machine has.
            gpus = 0 if job == "ps" else replica.gpus
            tasks += [
                Task(job, index, slots=max(1, gpus), gpus=gpus, machine_type=replica.machine_type)
                for index in range(replica.count)
            ]
        return Cluster(tasks=tuple(tasks), job_dir=self._text("jobDir"), source=self.source)

    def _error(self, message: str, field: str) -> ClusterError:
        value = self.values.get(field, Value(None, field))
        return self.source.error(message, field=value.field, line=value.line)

    def _text(self, field: str) -> str | None:
        if field not in self.values:
            return None
        content = self.values[field].content
        if not isinstance(content, str) or not content:
            raise self._error(f"{shown(content)} is not a text; expected a string", field)
        return content

    def _tier(self) -> str:
        tiers = ", ".join(TIERS)
        if "scaleTier" not in self.values:
            custom = [field for field in self.values if field.endswith(("Type", "Count"))]
            if custom:
                raise self._error(f"scaleTier is missing; {self.values[custom[0]].field} goes with CUSTOM", "scaleTier")
            raise self._error(f"scaleTier is required; choose one of {tiers}", "scaleTier")
        content = self.values["scaleTier"].content
        tier = tier_name(content)
        if tier is None:
            guess = nearest(content.upper().replace("-", "_"), TIERS) if isinstance(content, str) else ""
            raise self._error(f"{shown(content)} is not a scale tier; the tiers are {tiers}{guess}", "scaleTier")
        return tier

    def _check_program(self) -> None:
        """What says which program runs is not used, but a file that CloudML would refuse is not silently taken."""
        image = self._config("master").get("imageUri")
        if image and "runtimeVersion" in self.values:
            raise self._error(f"both this and {image.field} are given; CloudML takes one of them", "runtimeVersion")
        for name, _ in REPLICAS:
            for field in ("containerCommand", "containerArgs"):
                given = self._config(name).get(field)
                if given and "args" in self.values:
                    raise self._error(f"both this and {given.field} are given; CloudML takes one of them", "args")

    def _config(self, name: str) -> dict[str, Value]:
        value = self.values.get(f"{name}Config")
        return value.fields if value else {}

    # The fixed tiers.

    def _fixed(self, tier: str) -> dict[str, _Replica]:
        for field in self.values:
            if field.endswith(("Type", "Count")):
                raise self._error(f"this goes with scaleTier CUSTOM, and scaleTier is {tier}; take one of them away", field)
        for name, _ in REPLICAS:
            accelerator = self._config(name).get("acceleratorConfig")
            if accelerator:
                message = f"accelerators go with scaleTier CUSTOM and a {name}Type, and scaleTier is {tier}"
                raise self.source.error(message, field=accelerator.field, line=accelerator.line)
        return {job: _Replica(count, kind, gpus) for job, count, kind, gpus in TIERS[tier].machines}

    # CUSTOM.

    def _custom(self) -> dict[str, _Replica]:
        if "masterType" not in self.values:
            raise self._error(
                "scaleTier CUSTOM needs a masterType (--master_machine_type); for example n1-standard-4", "masterType"
            )
        replicas: dict[str, _Replica] = {}
        for name, job in REPLICAS:
            replica = self._replica(name)
            if replica:
                replicas[job] = replica
        total = sum(replica.count * max(1, replica.gpus) for replica in replicas.values())
        if total > MAX_TASKS:
            raise self.source.error(f"there would be {total} machines or GPUs, more than {MAX_TASKS}; are the counts right?")
        return replicas

    def _replica(self, name: str) -> _Replica | None:
        type_field, count_field = f"{name}Type", f"{name}Count"
        count = 1 if name == "master" else self._count(count_field)
        kind = self._machine(type_field)
        if count and kind is None:
            raise self._error(f"there are {count} of these but no {type_field}; say which machines they are", count_field)
        is_alone = kind is not None and count_field not in self.values and name != "master"
        if is_alone and self.values[type_field].field.startswith("--"):
            # gcloud asks for both flags; a file that gives a type alone means 0, as CloudML documents.
            raise self._error(f"this flag needs a {count_field} (--{_snake(count_field)}) as well", type_field)
        gpus, suffix = self._accelerator(name, kind)
        if not count or kind is None:
            return None
        shown_type = str(self.values[type_field].content) + suffix
        return _Replica(count, shown_type, gpus or kind.gpus)

    def _count(self, field: str) -> int:
        if field not in self.values:
            return 0
        return self._number(self.values[field], 0)

    def _number(self, value: Value, least: int) -> int:
        """Accepts 4 and "4": the API's string(int64)."""
        content = value.content
        number: int | None = None
        if isinstance(content, str) and re.fullmatch(r"-?(0|[1-9][0-9]{0,18})", content, re.ASCII):
            number = int(content)
        elif isinstance(content, int) and not isinstance(content, bool):
            number = content
        if number is None or not least <= number <= MAX_TASKS:
            message = f"{shown(content)} is not a count; expected a whole number from {least} to {MAX_TASKS}"
            raise self.source.error(message, field=value.field, line=value.line)
        return number

    def _machine(self, field: str) -> Machine | None:
        name = self._text(field)
        if name is None:
            return None
        if name == CLOUD_TPU:
            return Machine(False)
        found = machine(name)
        if found is None:
            hint = nearest(
                name, (*MACHINES, CLOUD_TPU, *N1_MACHINES), otherwise="; examples are n1-standard-8 and standard_gpu"
            )
            raise self._error(f"{shown(name)} is not a machine type{hint}", field)
        master = self._text("masterType")
        if master and master != CLOUD_TPU and field != "masterType":
            first = machine(master)
            if first is not None and first.legacy != found.legacy:
                kinds = ("a Compute Engine type", "a legacy type")
                raise self._error(
                    f"{name} is {kinds[found.legacy]} and masterType {master} is {kinds[first.legacy]}; CloudML takes all "
                    "machine types of one job from one of the two",
                    field,
                )
        return found

    def _accelerator(self, name: str, kind: Machine | None) -> tuple[int, str]:
        """The GPUs that `acceleratorConfig` adds to a machine, and how they are shown."""
        value = self._config(name).get("acceleratorConfig")
        if value is None:
            return 0, ""

        def error(message: str, at: Value) -> ClusterError:
            return self.source.error(message, field=at.field, line=at.line)

        if kind is None or kind.legacy:
            machine_type = self._text(f"{name}Type")
            found = f"{name}Type is {machine_type}" if machine_type else f"{name}Type is missing"
            raise error(
                f"accelerators go with machine types of Compute Engine, and {found}; choose one such as n1-standard-8", value
            )
        model, count = value.fields.get("type"), value.fields.get("count")
        if model is None or count is None:
            raise error("acceleratorConfig needs both a type and a count", value)
        if model.content not in ACCELERATORS:
            hint = nearest(model.content, ACCELERATORS, otherwise=f"; the types are {', '.join(ACCELERATORS)}")
            raise error(f"{shown(model.content)} is not an accelerator{hint}", model)
        number = self._number(count, 1)
        is_tpu, type_name = model.content.startswith("TPU"), self._text(f"{name}Type")
        if is_tpu != (type_name == CLOUD_TPU):
            raise error(f"{model.content} and {name}Type {type_name} do not go together; TPUs need cloud_tpu", model)
        if number > MAX_GPUS and not is_tpu:
            raise error(f"{number} accelerators do not fit into one machine; there are {MAX_GPUS} at most", count)
        # No strategy here uses TPUs: a machine with one is a machine.
        return (0 if is_tpu else number), f"+{number}x{model.content}"
