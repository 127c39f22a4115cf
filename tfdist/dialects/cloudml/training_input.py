"""Reads a CloudML Job or TrainingInput: scale tiers and config.yaml.

The rules are those of TrainingInput in ml.v1.json (google-api-python-client 2.202.0) and of gcloud
(`api_lib/ml_engine/jobs.py`).
"""

from dataclasses import dataclass

from tfdist.cluster import Cluster, Task
from tfdist.dialects.cloudml.machines import ACCELERATORS, CLOUD_TPU, MACHINES, MAX_GPUS, N1_MACHINES, Machine, machine
from tfdist.dialects.cloudml.messages import JOB_FIELDS, TRAINING_FIELDS, fields, flag, snake, training_fields
from tfdist.dialects.cloudml.tiers import TIERS, tier_name
from tfdist.dialects.parsing.document import MAX_TASKS, Document, shown
from tfdist.dialects.parsing.node import Node
from tfdist.errors import ClusterError, Source, nearest

NAME = "cloudml"
WORDS = frozenset(JOB_FIELDS | TRAINING_FIELDS | {snake(name) for name in JOB_FIELDS | TRAINING_FIELDS})

_OWN = {"jobId", "trainingInput", "scaleTier", "packageUris", "pythonModule", "runtimeVersion", "useChiefInTfConfig"}
_OWN |= {name for name in TRAINING_FIELDS if name.endswith(("Type", "Count", "Config"))}
MARKS = frozenset(_OWN | {snake(name) for name in _OWN})
"""Fields that no other language has. `args`, `region` and `labels` are everybody's."""

REPLICAS = (("master", "chief"), ("worker", "worker"), ("parameterServer", "ps"), ("evaluator", "evaluator"))
"""CloudML's name of each kind of replica, and TensorFlow's name of its job."""

OVERRIDES: dict[str, tuple[str, str]] = {
    "tier": ("scaleTier", "CloudML scale tier: BASIC, STANDARD_1, PREMIUM_1, BASIC_GPU, BASIC_TPU or CUSTOM."),
    "master_machine_type": ("masterType", "CloudML machine type of the chief (tier CUSTOM)."),
    "worker_machine_type": ("workerType", "CloudML machine type of the workers (tier CUSTOM)."),
    "parameter_server_machine_type": ("parameterServerType", "CloudML machine type of the ps (tier CUSTOM)."),
    "evaluator_machine_type": ("evaluatorType", "CloudML machine type of the evaluators (tier CUSTOM)."),
    "worker_count": ("workerCount", "CloudML number of workers in addition to the chief (tier CUSTOM)."),
    "parameter_server_count": ("parameterServerCount", "CloudML number of ps (tier CUSTOM)."),
    "evaluator_count": ("evaluatorCount", "CloudML number of evaluators (tier CUSTOM)."),
}
"""Flag that wins over the file -> (field of TrainingInput, help)."""


def parse(document: Document) -> Cluster:
    """Reads a Job or a TrainingInput. `document.overrides` are flags (see `OVERRIDES`).

    Raises:
        ClusterError: for unknown fields, and for what CloudML or gcloud would refuse.
    """
    source = Source(NAME, document.name)
    values = training_fields(document, source)
    for option, content in document.overrides.items():
        values[OVERRIDES[option][0]] = flag(content, option, source)
    return read_fields(values, source)


def read_fields(values: dict[str, Node], source: Source) -> Cluster:
    """Reads the fields of a TrainingInput, by name in camel case. Raises ClusterError as `parse` does."""
    return _Training(source, values).cluster()


@dataclass(frozen=True)
class _Replica:
    """The machines of one job: their number, type as shown, and GPUs of each."""

    count: int
    machine_type: str
    gpus: int


class _Training:
    """One TrainingInput: its rules, and the tasks that it means. `values` has its fields."""

    def __init__(self, source: Source, values: dict[str, Node]) -> None:
        self.source = source
        self.values = values

    def cluster(self) -> Cluster:
        tier = self._tier()
        self._check_program()
        replicas = self._custom() if tier == "CUSTOM" else self._fixed(tier)
        tasks = []
        for job, replica in replicas.items():
            # A ps holds one shard, also on a machine with GPUs.
            gpus = 0 if job == "ps" else replica.gpus
            tasks += [
                Task(job, index, slots=max(1, gpus), gpus=gpus, machine_type=replica.machine_type)
                for index in range(replica.count)
            ]
        return Cluster(tasks=tuple(tasks), job_dir=self._text("jobDir"), source=self.source)

    def _error(self, message: str, field: str) -> ClusterError:
        value = self.values.get(field)
        return self.source.error(message, field=field) if value is None else value.error(message)

    def _text(self, field: str) -> str | None:
        value = self.values.get(field)
        return None if value is None else value.text()

    def _tier(self) -> str:
        tiers = ", ".join(TIERS)
        if "scaleTier" not in self.values:
            custom = [field for field in self.values if field.endswith(("Type", "Count"))]
            if custom:
                raise self._error(f"scaleTier is missing; {self.values[custom[0]].field} goes with CUSTOM", "scaleTier")
            raise self._error(f"scaleTier is required; choose one of {tiers}, here or with --tier", "scaleTier")
        content = self.values["scaleTier"].value
        tier = tier_name(content)
        if tier is None:
            guess = nearest(content.upper().replace("-", "_"), TIERS) if isinstance(content, str) else ""
            raise self._error(f"{shown(content)} is not a scale tier; the tiers are {tiers}{guess}", "scaleTier")
        return tier

    def _check_program(self) -> None:
        """Raises ClusterError for fields about the program that contradict each other; CloudML would refuse the file."""
        image = self._config("master").get("imageUri")
        if image and "runtimeVersion" in self.values:
            raise self._error(f"both this and {image.field} are given; CloudML takes one of them", "runtimeVersion")
        for name, _ in REPLICAS:
            for field in ("containerCommand", "containerArgs"):
                given = self._config(name).get(field)
                if given and "args" in self.values:
                    raise self._error(f"both this and {given.field} are given; CloudML takes one of them", "args")

    def _config(self, name: str) -> dict[str, Node]:
        return fields(self.values.get(f"{name}Config"))

    def _fixed(self, tier: str) -> dict[str, _Replica]:
        for field in self.values:
            if field.endswith(("Type", "Count")):
                raise self._error(f"this goes with scaleTier CUSTOM, and scaleTier is {tier}; leave one of them out", field)
        for name, _ in REPLICAS:
            accelerator = self._config(name).get("acceleratorConfig")
            if accelerator:
                raise accelerator.error(f"accelerators go with scaleTier CUSTOM and a {name}Type, and scaleTier is {tier}")
        return {job: _Replica(count, kind, gpus) for job, count, kind, gpus in TIERS[tier]}

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
            raise self._error(f"there are {count} of these but no {type_field}; give a machine type", count_field)
        is_alone = kind is not None and count_field not in self.values and name != "master"
        if is_alone and self.values[type_field].field.startswith("--"):
            # gcloud asks for both flags. In a file a type alone means 0, as CloudML documents.
            raise self._error(f"this flag needs a {count_field} (--{snake(count_field)}) as well", type_field)
        gpus, suffix = self._accelerator(name, kind)
        if not count or kind is None:
            return None
        shown_type = str(self.values[type_field].value) + suffix
        return _Replica(count, shown_type, gpus or kind.gpus)

    def _count(self, field: str) -> int:
        return self.values[field].count() if field in self.values else 0

    def _machine(self, field: str) -> Machine | None:
        name = self._text(field)
        if name is None:
            return None
        if name == CLOUD_TPU:
            return Machine(False)
        own = machine(name)
        if own is None:
            hint = nearest(
                name, (*MACHINES, CLOUD_TPU, *N1_MACHINES), otherwise="; examples are n1-standard-8 and standard_gpu"
            )
            raise self._error(f"{shown(name)} is not a machine type{hint}", field)
        master = self._text("masterType")
        if master and master != CLOUD_TPU and field != "masterType":
            first = machine(master)
            if first is not None and first.legacy != own.legacy:
                kinds = ("a Compute Engine type", "a legacy type")
                raise self._error(
                    f"{name} is {kinds[own.legacy]} and masterType {master} is {kinds[first.legacy]}; CloudML takes all "
                    "machine types of one job from one of the two",
                    field,
                )
        return own

    def _accelerator(self, name: str, kind: Machine | None) -> tuple[int, str]:
        """Returns the GPUs that `acceleratorConfig` adds to a machine, and the end of the machine type as shown."""
        value = self._config(name).get("acceleratorConfig")
        if value is None:
            return 0, ""
        if kind is None or kind.legacy:
            machine_type = self._text(f"{name}Type")
            found = f"{name}Type is {machine_type}" if machine_type else f"{name}Type is missing"
            raise value.error(
                f"accelerators go with machine types of Compute Engine, and {found}; choose one such as n1-standard-8"
            )
        model, count = fields(value).get("type"), fields(value).get("count")
        if model is None or count is None:
            raise value.error("acceleratorConfig needs both a type and a count")
        if model.value not in ACCELERATORS:
            hint = nearest(model.value, ACCELERATORS, otherwise=f"; the types are {', '.join(ACCELERATORS)}")
            raise model.error(f"{shown(model.value)} is not an accelerator{hint}")
        number = count.count(1)
        is_tpu, type_name = model.value.startswith("TPU"), self._text(f"{name}Type")
        if is_tpu != (type_name == CLOUD_TPU):
            raise model.error(f"{model.value} and {name}Type {type_name} do not go together; TPUs need cloud_tpu")
        if number > MAX_GPUS and not is_tpu:
            raise count.error(f"{number} accelerators do not fit into one machine; there are {MAX_GPUS} at most")
        # No strategy uses TPUs: they do not count as GPUs.
        return (0 if is_tpu else number), f"+{number}x{model.value}"
