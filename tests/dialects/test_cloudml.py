"""CloudML's scale tiers and config.yaml: what each becomes, everything that is refused, and the way back."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tfdist.cluster import Cluster, Task
from tfdist.dialects import read
from tfdist.dialects.cloudml import write
from tfdist.dialects.cloudml.machines import MACHINES
from tfdist.dialects.cloudml.messages import snake as snake_case
from tfdist.errors import ClusterError

TIERS = {
    "BASIC": ("1 chief", {"chief": "n1-standard-4"}),
    "STANDARD_1": ("1 chief, 4 workers, 3 ps", {"chief": "n1-highcpu-8", "worker": "n1-highcpu-8", "ps": "n1-standard-4"}),
    "PREMIUM_1": ("1 chief, 19 workers, 11 ps", {"chief": "n1-highcpu-16", "worker": "n1-highcpu-16", "ps": "n1-highmem-8"}),
    "BASIC_GPU": ("1 chief", {"chief": "n1-standard-8+1xNVIDIA_TESLA_K80"}),
    "BASIC_TPU": ("1 chief", {"chief": "cloud_tpu"}),
}

DOC_EXAMPLE = """trainingInput:
  scaleTier: CUSTOM
  masterType: n1-highcpu-16
  workerType: n1-highcpu-16
  parameterServerType: n1-highmem-8
  evaluatorType: n1-highcpu-16
  workerCount: 9
  parameterServerCount: 3
  evaluatorCount: 1
"""


def custom(**fields: Any) -> dict[str, Any]:
    return {"scaleTier": "CUSTOM", "masterType": "n1-standard-4", **fields}


@pytest.mark.parametrize("tier", TIERS)
def test_every_tier(tier: str) -> None:
    described, machines = TIERS[tier]
    cluster = read(tier)
    assert cluster.describe() == described
    assert {task.job: task.machine_type for task in cluster.tasks} == machines
    assert [task.gpus for task in cluster.tasks] == [int(tier == "BASIC_GPU")] * len(cluster.tasks)
    for spelling in (tier.lower(), tier.lower().replace("_", "-"), {"scaleTier": tier.lower()}, f"scaleTier: {tier}"):
        assert read(spelling) == cluster
    assert all(task.host is None and task.port is None for task in cluster.tasks)


def test_the_example_of_the_documentation() -> None:
    cluster = read(DOC_EXAMPLE)
    assert cluster.describe() == "1 chief, 9 workers, 3 ps, 1 evaluator"
    assert cluster.find("ps", 2).machine_type == "n1-highmem-8"
    assert len(cluster.worker_groups) == 9


def _spellings(camel: dict[str, Any]) -> list[Any]:
    snake = {snake_case(name): value for name, value in camel.items()}
    jobs = [
        camel,
        {"trainingInput": camel},
        {"training_input": snake},
        {"jobId": "j", "trainingInput": snake, "state": "QUEUED"},
    ]
    return [form for job in jobs for form in (job, json.dumps(job))]


def test_all_spellings_mean_the_same() -> None:
    camel = custom(workerType="n1-standard-4", workerCount="2", jobDir="gs://b/o", useChiefInTfConfig=True, args=["--x"])
    expected = read(camel)
    assert expected.describe() == "1 chief, 2 workers"
    assert expected.job_dir == "gs://b/o"
    for form in _spellings(camel):
        assert read(form) == expected


def test_other_fields_of_the_job_are_tolerated() -> None:
    config = {
        "jobId": "x",
        "labels": {"a": "b"},
        "createTime": "now",
        "trainingOutput": {"consumedMLUnits": 1},
        "trainingInput": custom(
            hyperparameters={"goal": "MAXIMIZE", "maxTrials": 4, "params": [{}]},
            scheduling={"maxRunningTime": "3600s"},
            encryptionConfig={"kmsKeyName": "k"},
            masterConfig={"imageUri": "gcr.io/x", "diskConfig": {"bootDiskSizeGb": 200}},
            packageUris=[],
            region="us-east1",
            network="n",
            serviceAccount="s",
            enableWebAccess=True,
            workerCount=None,
        ),
    }
    assert read(config).describe() == "1 chief"


@pytest.mark.parametrize("name", MACHINES)
def test_legacy_machine_types_and_their_gpus(name: str) -> None:
    cluster = read(
        {"scaleTier": "CUSTOM", "masterType": name, "parameterServerType": name, "workerType": name}
        | {"workerCount": 1, "parameterServerCount": 1}
    )
    expected = {"gpu": 1, "p100": 1, "v100": 1}.get(name.rpartition("_")[2], 0)
    expected *= 4 if "model_m" in name else 8 if "model_l" in name else 1
    chief, worker, server = cluster.tasks
    assert (chief.gpus, chief.slots) == (worker.gpus, worker.slots) == (expected, max(1, expected))
    # A ps holds one shard, also on a machine with GPUs.
    assert (server.gpus, server.slots) == (0, 1)
    assert cluster.worker_groups == (tuple(range(max(1, expected))),)


@pytest.mark.parametrize(
    ("name", "gpus"),
    [
        ("n1-highcpu-96", 0),
        ("e2-standard-4", 0),
        ("c2-standard-60", 0),
        ("n2d-highmem-8", 0),
        ("a2-highgpu-4g", 4),
        ("a2-megagpu-16g", 16),
    ],
)
def test_machine_types_of_compute_engine(name: str, gpus: int) -> None:
    assert read({"scaleTier": "CUSTOM", "masterType": name}).tasks[0].gpus == gpus


def test_accelerators_are_slots_of_their_replicas() -> None:
    accelerator = {"acceleratorConfig": {"count": "2", "type": "NVIDIA_TESLA_T4"}}
    fields = custom(masterConfig=accelerator, workerType="n1-standard-8", workerCount=2, workerConfig=accelerator)
    cluster = read(
        fields | {"parameterServerType": "n1-highmem-2", "parameterServerCount": 1, "parameterServerConfig": accelerator}
    )
    assert [(task.name, task.slots, task.gpus) for task in cluster.tasks] == [
        ("chief:0", 2, 2),
        ("worker:0", 2, 2),
        ("worker:1", 2, 2),
        ("ps:0", 1, 0),
    ]


def test_a_tpu_goes_with_either_kind_of_machine() -> None:
    tpu = {"acceleratorConfig": {"type": "TPU_V2", "count": 8}}
    cluster = read(custom(workerType="cloud_tpu", workerCount=1, workerConfig=tpu))
    assert (cluster.tasks[1].machine_type, cluster.tasks[1].gpus) == ("cloud_tpu+8xTPU_V2", 0)
    assert read({"scaleTier": "CUSTOM", "masterType": "standard", "workerType": "cloud_tpu", "workerCount": 1}).job("worker")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"trainingInput": {}}, "scaleTier: scaleTier is required; choose one of BASIC, STANDARD_1"),
        ({"masterType": "standard"}, "scaleTier is missing; masterType goes with CUSTOM"),
        ({"scaleTier": "STANDARD1"}, "'STANDARD1' is not a scale tier; "),
        ({"scaleTier": "STANDARD1"}, "did you mean STANDARD_1?"),
        ({"scaleTier": 5}, "5 is not a scale tier"),
        ({"scaleTier": "CUSTOM"}, "scaleTier CUSTOM needs a masterType"),
        ({"scaleTier": "CUSTOM", "masterType": "starndard_gpu"}, "did you mean standard_gpu?"),
        ({"scaleTier": "CUSTOM", "masterType": "stardard_p100"}, "did you mean standard_p100?"),
        ({"scaleTier": "CUSTOM", "masterType": "n1-standard"}, "did you mean n1-standard-"),
        ({"scaleTier": "CUSTOM", "masterType": "a2-highgpu-99g"}, "is not a machine type"),
        ({"scaleTier": "CUSTOM", "masterType": ""}, "is not a text"),
        ({"scaleTier": "CUSTOM", "masterType": 4}, "4 is not a text"),
        ({"scaleTier": "BASIC", "workerCount": 1}, "workerCount: this goes with scaleTier CUSTOM, and scaleTier is BASIC"),
        ({"scaleTier": "BASIC", "masterType": "standard"}, "masterType: this goes with scaleTier CUSTOM"),
        ({"scaleTier": "BASIC", "masterConfig": {"acceleratorConfig": {"count": 1}}}, "accelerators go with scaleTier CUSTOM"),
        (custom(workerCount=4), "workerCount: there are 4 of these but no workerType"),
        (custom(workerType="standard", workerCount=1), "standard is a legacy type and masterType n1-standard-4 is a Compute"),
        (custom(workerType="n1-standard-4", workerCount=-1), "-1 is not a count; expected a whole number from 0"),
        (custom(workerType="n1-standard-4", workerCount="-1"), "'-1' is not a count"),
        (custom(workerType="n1-standard-4", workerCount=4.5), "4.5 is not a count"),
        (custom(workerType="n1-standard-4", workerCount=4.0), "4.0 is not a count"),
        (custom(workerType="n1-standard-4", workerCount="4.5"), "'4.5' is not a count"),
        (custom(workerType="n1-standard-4", workerCount=True), "True is not a count"),
        (custom(workerType="n1-standard-4", workerCount="010"), "'010' is not a count"),
        (
            custom(workerType="n1-standard-4", workerCount=100001),
            "100001 is not a count; expected a whole number from 0 to",
        ),
        (custom(workerType="n1-standard-4", workerCount=100000), "100001 machines or GPUs, more than 100000"),
        (custom(workerType="n1-standard-4", workerCount=10**5000), "is not a count"),
        (custom(workerTyp="n1-standard-4"), "workerTyp: TrainingInput has no such field; did you mean workerType?"),
        (custom(worker_typ="n1-standard-4"), "worker_typ: TrainingInput has no such field; did you mean workerType?"),
        (custom(worker_count=1, workerCount=1), "the same is given as worker_count"),
        ({"trainingInput": custom(), "workerCount": 4}, "workerCount: this field belongs inside trainingInput"),
        ({"trainingInput": custom(), "lables": {}}, "lables: Job has no such field; did you mean labels?"),
        ({"trainingInputs": custom()}, "did you mean trainingInput?"),
        ({"jobId": "x"}, "the job has no trainingInput"),
        ({"trainingInput": [1]}, "trainingInput: [1] is not a mapping"),
        (custom(masterConfig={"acceleratorConfg": {}}), "masterConfig.acceleratorConfg: ReplicaConfig has no such field; did"),
        (custom(masterConfig={"acceleratorConfig": {"cout": 1}}), "did you mean count?"),
        (custom(masterConfig={"diskConfig": {"bootDisk": 1}}), "did you mean bootDiskType?"),
        (custom(masterConfig=5), "masterConfig: 5 is not a mapping"),
        (custom(hyperparameters={"maxTrial": 1}), "did you mean maxTrials?"),
        (custom(masterConfig={"acceleratorConfig": {"count": 1}}), "needs both a type and a count"),
        (
            custom(masterConfig={"acceleratorConfig": {"count": 1, "type": "NVIDIA_TESLA_V10"}}),
            "did you mean NVIDIA_TESLA_V100?",
        ),
        (custom(masterConfig={"acceleratorConfig": {"count": 0, "type": "NVIDIA_TESLA_T4"}}), "0 is not a count"),
        (custom(masterConfig={"acceleratorConfig": {"count": 17, "type": "NVIDIA_TESLA_T4"}}), "do not fit into one machine"),
        (custom(masterConfig={"acceleratorConfig": {"count": 8, "type": "TPU_V2"}}), "TPUs need cloud_tpu"),
        (
            custom(masterType="standard", masterConfig={"acceleratorConfig": {"count": 1, "type": "NVIDIA_TESLA_T4"}}),
            "accelerators go with machine types of Compute Engine, and masterType is standard",
        ),
        (custom(workerConfig={"acceleratorConfig": {"count": 1, "type": "NVIDIA_TESLA_T4"}}), "workerType is missing"),
        (custom(runtimeVersion="2.1", masterConfig={"imageUri": "x"}), "both this and masterConfig.imageUri are given"),
        (custom(args=[], masterConfig={"containerArgs": ["x"]}), "both this and masterConfig.containerArgs are given"),
        (custom(parameterServerType="n1-standard-4", parameterServerCount=2), "there are ps tasks but no workers"),
        (custom(jobDir=5), "jobDir: 5 is not a text"),
        ({"scaleTier": "BASIC", 5: 6}, "TrainingInput has no such field"),
    ],
)
def test_what_is_refused_and_how(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ClusterError) as caught:
        read(config)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            DOC_EXAMPLE.replace("workerCount: 9", "workerCount: nine"),
            "<text>:7: trainingInput.workerCount: 'nine' is",
        ),
        (
            DOC_EXAMPLE.replace("workerCount: 9", "workerCount: 010"),
            "<text>:7: trainingInput.workerCount: '010' is",
        ),
        (
            DOC_EXAMPLE.replace("evaluatorType", "evaluatrType"),
            "<text>:6: trainingInput.evaluatrType: TrainingInput",
        ),
        (DOC_EXAMPLE.replace("CUSTOM", "BASIC"), "<text>:3: trainingInput.masterType: this goes with scaleTier CUSTOM"),
        (DOC_EXAMPLE.replace("  workerType", " workerType"), "<text>:4: this is not YAML"),
        (DOC_EXAMPLE + "  workerCount: 8\n", "<text>:10: 'workerCount' is given twice, first in line 7"),
        (DOC_EXAMPLE.replace("9", "!!binary 9"), "<text>:7: the tag 'tag:yaml.org,2002:binary' is not allowed"),
    ],
)
def test_yaml_gives_the_line(text: str, message: str) -> None:
    with pytest.raises(ClusterError) as caught:
        read(text)
    assert message in str(caught.value)


def test_flags_win_over_the_file() -> None:
    cluster = read(
        DOC_EXAMPLE,
        overrides={
            "worker_count": 2,
            "parameter_server_count": "1",
            "evaluator_count": None,
            "master_machine_type": "e2-standard-4",
        },
    )
    assert cluster.describe() == "1 chief, 2 workers, 1 ps, 1 evaluator"
    assert cluster.tasks[0].machine_type == "e2-standard-4"
    assert read({"jobDir": "a", "scaleTier": "BASIC"}, overrides={"job_dir": "b"}).job_dir == "b"
    assert read({"workerCount": 1, "workerType": "standard", "masterType": "standard"}, overrides={"tier": "custom"}).slots == 1


def test_flags_alone_are_a_description(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    overrides = {"tier": "custom", "master_machine_type": "standard", "worker_machine_type": "standard", "worker_count": "2"}
    assert read(None, overrides=overrides).describe() == "1 chief, 2 workers"
    assert read(None, overrides={"tier": "standard-1"}) == read("STANDARD_1")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"worker_count": 2}, "scaleTier is missing; --worker_count goes with CUSTOM"),
        ({"tier": "BASIK"}, "flags: --tier: 'BASIK' is not a scale tier; the tiers are"),
        ({"tier": "custom"}, "needs a masterType (--master_machine_type)"),
        ({"tier": "basic", "worker_count": 2}, "flags: --worker_count: this goes with scaleTier CUSTOM"),
        (
            {"tier": "custom", "master_machine_type": "standard", "worker_machine_type": "standard"},
            "--worker_machine_type: this flag needs a workerCount (--worker_count) as well",
        ),
        ({"tier": "custom", "master_machine_type": "standard", "worker_count": "two"}, "--worker_count: 'two' is not a count"),
        ({"teir": "basic"}, "--teir: there is no such option; did you mean tier?"),
    ],
)
def test_bad_flags(overrides: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(ClusterError) as caught:
        read(None, overrides=overrides)
    assert message in str(caught.value)


@pytest.mark.parametrize("source", [*TIERS, DOC_EXAMPLE, {"scaleTier": "BASIC", "jobDir": "gs://a b/\u00e9\n"}])
def test_what_is_written_reads_back(source: Any) -> None:
    cluster = read(source)
    again = read(write.write(cluster))
    assert again == cluster
    assert [task.machine_type for task in again.tasks] == [task.machine_type for task in cluster.tasks]


def test_accelerators_are_written() -> None:
    accelerator = {"acceleratorConfig": {"count": "2", "type": "NVIDIA_TESLA_T4"}}
    cluster = read(custom(workerType="n1-standard-8", workerCount=2, workerConfig=accelerator))
    assert read(write.write(cluster)) == cluster
    assert "count: '2'" in write.write(cluster)


def test_a_tier_is_written_by_its_name() -> None:
    assert write.write(read("PREMIUM_1")) == "trainingInput:\n  scaleTier: PREMIUM_1\n"
    open_machines = Cluster((Task("chief", 0, "a", 1), Task("worker", 0, "b", 1)))
    assert read(write.write(open_machines)).tasks[1].machine_type == "n1-standard-4"


CHIEF = Task("chief", 0)


def vertex(machine: str, accelerator: str | None, count: int = 1) -> Callable[[], Cluster]:
    """A cluster that Vertex AI describes."""
    more = {"acceleratorType": accelerator, "acceleratorCount": count} if accelerator else {}
    return lambda: read({"workerPoolSpecs": [{"machineSpec": {"machineType": machine, **more}, "replicaCount": 1}]})


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        (Cluster((Task("worker", 0),)), "a cluster without a chief"),
        (Cluster((CHIEF,), sync_period=2), "sync_period other than the usual"),
        (Cluster((CHIEF, Task("worker", 0), Task("worker", 1), Task("ps", 0)), worker_groups=((0, 1),)), "worker_groups"),
        (Cluster((CHIEF, Task("worker", 0), Task("worker", 1, slots=2))), "worker tasks on different machines"),
        (Cluster((CHIEF, Task("worker", 0, slots=2))), "2 replicas on a machine with 0 GPUs"),
        (Cluster((Task("chief", 0, slots=2, gpus=2),)), "GPUs of chief tasks whose machine type is open"),
        (vertex("g2-standard-8", "NVIDIA_L4"), "the machine g2-standard-8+1xNVIDIA_L4 of chief:0; translate to vertex"),
        (vertex("a3-highgpu-8g", "NVIDIA_H100_80GB", 8), "the machine a3-highgpu-8g+8xNVIDIA_H100_80GB of chief:0"),
        (vertex("ct5lp-hightpu-4t", None), "the machine ct5lp-hightpu-4t of chief:0"),
        (vertex("n1-standard-8", "TPU_V2", 8), "this cluster (training"),
        (vertex("n1-standard-8\n  workerCount: 9", None), "cannot be printed"),
        (vertex("n1-standard-8: {}", None), "the machine 'n1-standard-8: {}' of chief:0"),
    ],
)
def test_what_cloudml_cannot_say_is_refused(cluster: Cluster | Callable[[], Cluster], message: str) -> None:
    with pytest.raises(ClusterError) as caught:
        write.write(cluster if isinstance(cluster, Cluster) else cluster())
    assert message in str(caught.value)
