"""Vertex AI: worker pools by position, CLUSTER_SPEC and TF_CONFIG as its machines find them, and what is written."""

import copy
import json
from typing import Any

import pytest
import yaml
from samples import CLUSTER_SPEC, VERTEX_CONFIG, VERTEX_HOST, snake

from tfdist.cluster import Cluster
from tfdist.dialects import read
from tfdist.dialects.vertex import cluster_spec, write
from tfdist.errors import ClusterError

REDUCTION_SERVER = "us-docker.pkg.dev/vertex-ai-restricted/training/reductionserver:latest"


def config() -> dict[str, Any]:
    value: dict[str, Any] = yaml.safe_load(VERTEX_CONFIG)
    return value


def shape(cluster: Cluster) -> list[tuple[str, int, int, str | None]]:
    return [(task.name, task.slots, task.gpus, task.machine_type) for task in cluster.tasks]


def test_the_position_of_a_pool_says_what_it_is() -> None:
    cluster = read(VERTEX_CONFIG)
    t4 = "n1-standard-8+2xNVIDIA_TESLA_T4"
    assert shape(cluster) == [
        ("chief:0", 2, 2, t4),
        *((f"worker:{n}", 2, 2, t4) for n in range(3)),
        ("ps:0", 1, 0, "n1-highmem-8"),
        ("ps:1", 1, 0, "n1-highmem-8"),
        ("evaluator:0", 1, 0, "n1-standard-4"),
    ]
    assert cluster.job_dir == "gs://bucket/out"
    assert {(task.host, task.port) for task in cluster.tasks} == {(None, None)}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda spec: spec,
        lambda spec: {"displayName": "j", "jobSpec": spec, "labels": {"a": "b"}},
        lambda spec: {"displayName": "j", "trialJobSpec": spec, "studySpec": {}, "maxTrialCount": 3},
        lambda spec: {"displayName": "j", "trainingTaskDefinition": "gs://x", "trainingTaskInputs": spec},
    ],
)
def test_every_resource_that_holds_pools_is_read_in_both_spellings(wrap: Any) -> None:
    expected = read(VERTEX_CONFIG)
    for value in (wrap(config()), snake(wrap(config()))):
        assert read(value) == read(json.dumps(value)) == read(yaml.safe_dump(value)) == expected


@pytest.mark.parametrize("empty", [{}, None, {"replicaCount": 0, "machineSpec": {"machineType": "n1-standard-4"}}])
def test_empty_pools_keep_their_place(empty: Any) -> None:
    value = config()
    value["workerPoolSpecs"][2] = empty
    assert read(value).describe() == "1 chief, 3 workers, 1 evaluator"
    value["workerPoolSpecs"][1] = empty
    assert read(value).describe() == "1 chief, 1 evaluator"


def test_a_reduction_server_is_no_ps() -> None:
    value = config()
    value["workerPoolSpecs"][2]["containerSpec"]["imageUri"] = REDUCTION_SERVER
    assert read(value).describe() == read(snake(value)).describe() == "1 chief, 3 workers, 1 evaluator"


@pytest.mark.parametrize(
    ("machine", "gpus"),
    [
        ({"machineType": "a2-highgpu-4g"}, 4),
        ({"machineType": "a2-highgpu-4g", "acceleratorType": "NVIDIA_TESLA_A100", "acceleratorCount": 4}, 4),
        ({"machineType": "a3-highgpu-8g", "acceleratorType": "NVIDIA_H100_80GB", "acceleratorCount": "8"}, 8),
        ({"machineType": "n1-standard-4", "acceleratorType": "ACCELERATOR_TYPE_UNSPECIFIED", "acceleratorCount": 0}, 0),
        ({"machineType": "cloud-tpu", "acceleratorType": "TPU_V3", "acceleratorCount": 32}, 0),
        ({"machineType": "ct5lp-hightpu-4t", "tpuTopology": "2x2"}, 0),
        ({"acceleratorType": "NVIDIA_SOMETHING_NEW_9", "acceleratorCount": 1}, 1),
    ],
)
def test_accelerators_are_slots(machine: dict[str, Any], gpus: int) -> None:
    (chief,) = read({"workerPoolSpecs": [{"machineSpec": machine, "replicaCount": 1}]}).tasks
    assert (chief.gpus, chief.slots) == (gpus, max(1, gpus))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("replicaCount: 1", "replicaCount: 2"),
            "<text>:6: workerPoolSpecs.0.replicaCount: the first worker pool has 2 replicas",
        ),
        (('"3"', "'three'"), "<text>:9: workerPoolSpecs.1.replicaCount: 'three' is not a count"),
        (('"3"', "200000"), "200000 is not a count; expected a whole number from 0 to 100000"),
        (('"3"', "60000"), "there would be 120005 machines or GPUs"),
        (("acceleratorCount: 2\n", "acceleratorCount: 99\n"), "99 is not a count; expected a whole number from 1 to 16"),
        (("      acceleratorCount: 2\n", ""), "there is an acceleratorType without acceleratorCount"),
        (("      acceleratorType: NVIDIA_TESLA_T4\n", ""), "there is a count of accelerators, but no acceleratorType"),
        (("acceleratorType: NVIDIA_TESLA_T4", "acceleratorType: nvidia_tesla_t4"), "'nvidia_tesla_t4' is not an accelerator"),
        (("acceleratorType: NVIDIA_TESLA_T4", "acceleratorType: NVIDIA-TESLA-T4"), "did you mean NVIDIA_TESLA_T4?"),
        (("    replicaCount: 1", "    replicaCount: 1\n    replica_count: 1"), "the same is given as replicaCount"),
        (("    replicaCount: 1", "    replicaCounts: 1"), "a worker pool has no such field; did you mean replicaCount?"),
        (("workerPoolSpecs", "workerPoolSpec"), "the job has no workerPoolSpecs, which describe the machines; did you"),
        (("baseOutputDirectory", "  - {}\nbaseOutputDirectory"), "there are 5 worker pools; Vertex AI has 4"),
    ],
)
def test_what_is_refused_and_how(change: tuple[str, str], message: str) -> None:
    text = VERTEX_CONFIG.replace(*change, 1)
    assert text != VERTEX_CONFIG
    with pytest.raises(ClusterError) as caught:
        read(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"workerPoolSpecs": []}, "the first worker pool is empty"),
        ({"workerPoolSpecs": [{}, {"replicaCount": 1}]}, "the first worker pool is empty"),
        ({"workerPoolSpecs": {}}, "workerPoolSpecs: a mapping of 0 entries is not a list"),
        ({"workerPoolSpecs": [[]]}, "workerPoolSpecs.0: [] is not a mapping"),
        ({"workerPoolSpecs": [{"replicaCount": 1}, {}, {"replicaCount": 1}]}, "there are ps tasks but no workers"),
        ({"jobSpec": {}}, "the job has no workerPoolSpecs"),
    ],
)
def test_what_else_is_refused(value: dict[str, Any], message: str) -> None:
    with pytest.raises(ClusterError) as caught:
        read(value)
    assert message in str(caught.value)


# What a machine finds in its environment. The host names are those of a real job.


def environ(**changes: Any) -> dict[str, str]:
    return {"CLUSTER_SPEC": json.dumps(copy.deepcopy(CLUSTER_SPEC) | changes)}


def test_cluster_spec_of_the_environment() -> None:
    assert cluster_spec.recognizes(environ()) == "CLUSTER_SPEC"
    cluster = cluster_spec.from_environ(environ())
    assert cluster.describe() == "1 chief, 2 workers, 1 ps, 1 evaluator"
    assert cluster.task == ("worker", 1)
    assert cluster.find("worker", 1).address == VERTEX_HOST.format(1, 1)
    assert [(task.slots, task.gpus) for task in cluster.tasks] == [(2, 2), (2, 2), (2, 2), (1, 0), (1, 0)]
    assert read(CLUSTER_SPEC) == cluster


@pytest.mark.parametrize("job", [None, "", "{", "{}", 5, [], {"worker_pool_specs": 5}, {"worker_pool_specs": [5]}])
def test_a_job_that_cannot_be_read_only_leaves_the_gpus_out(job: Any) -> None:
    cluster = cluster_spec.from_environ(environ(job=job))
    assert cluster.describe() == "1 chief, 2 workers, 1 ps, 1 evaluator"
    assert {task.slots for task in cluster.tasks} == {1}


def with_reduction_server(spelling: Any) -> Any:
    value = config()
    value["workerPoolSpecs"][2]["containerSpec"]["imageUri"] = REDUCTION_SERVER
    return spelling(value)


@pytest.mark.parametrize("spelling", [lambda job: job, snake, json.dumps, lambda job: json.dumps(snake(job))])
def test_a_reduction_server_in_the_environment_is_no_ps(spelling: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    job = with_reduction_server(spelling)
    assert cluster_spec.from_environ(environ(job=job)).describe() == "1 chief, 2 workers, 1 evaluator"
    # Vertex AI makes TF_CONFIG of the pools by position too.
    spec = {"chief": ["a:2222"], "worker": ["b:2222"], "ps": ["c:2222"]}
    tf_config = {"cluster": spec, "task": {"type": "chief", "index": 0}, "job": job, "environment": "cloud"}
    monkeypatch.setenv("TF_CONFIG", json.dumps(tf_config))
    assert read().describe() == "1 chief, 1 worker"
    monkeypatch.setenv("TF_CONFIG", json.dumps(tf_config | {"job": config()}))
    assert read().describe() == "1 chief, 1 worker, 1 ps"


def test_cluster_spec_counts_where_there_is_no_tf_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setenv("CLUSTER_SPEC", environ()["CLUSTER_SPEC"])
    assert (read().describe(), read().task) == ("1 chief, 2 workers, 1 ps, 1 evaluator", ("worker", 1))
    alone = {"cluster": {"workerpool0": ["m:2222"]}, "environment": "cloud", "task": {"type": "workerpool0", "index": 0}}
    cluster = cluster_spec.from_environ({"CLUSTER_SPEC": json.dumps(alone)})
    assert (cluster.describe(), cluster.task) == ("1 chief", ("chief", 0))


@pytest.mark.parametrize("text", [None, "", "{}", "x", '{"cluster": {"master": ["a:1"]}}'])
def test_what_is_no_cluster_spec_of_vertex(text: str | None) -> None:
    assert cluster_spec.recognizes({} if text is None else {"CLUSTER_SPEC": text}) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"cluster": {"workerpool0": ["a:1"], "workerpool4": []}},
            "cluster: 'workerpool4' is not a worker pool; they are workerpool0",
        ),
        ({"cluster": {"workerpool0": ["a"]}}, "CLUSTER_SPEC: cluster.workerpool0.0: 'a' has no port"),
        ({"cluster": {"workerpool0": "a:1"}}, "cluster.workerpool0: 'a:1' is not a list"),
        (
            {"task": {"type": "chief", "index": 0}},
            "task.type: 'chief' is not a worker pool; expected workerpool0 to workerpool3",
        ),
        ({"task": {"type": "workerpool1", "index": 7}}, "task: the task is workerpool1:7, and `cluster` has no such machine"),
        ({"task": {"type": "workerpool1", "index": "x"}}, "task.index: 'x' is not a count"),
        ({"task": []}, "task: [] is not a mapping"),
    ],
)
def test_a_bad_cluster_spec_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ClusterError) as caught:
        cluster_spec.from_environ({"CLUSTER_SPEC": json.dumps(CLUSTER_SPEC | changes)})
    assert message in str(caught.value)


# Writing.


def test_what_is_written_reads_back() -> None:
    for source in (VERTEX_CONFIG, "STANDARD_1", "BASIC_GPU", "trainingInput: {scaleTier: BASIC, jobDir: 'gs://b/o: #x'}"):
        cluster = read(source)
        text = write.write(cluster, image="gcr.io/p/i", command=["python", "-c", "print('y')"])
        assert read(text) == cluster
        assert shape(read(text)) == shape(cluster)
        assert "#" not in text.replace("#x", "")


def test_places_that_stay_empty_are_written() -> None:
    value = config()
    value["workerPoolSpecs"][1] = value["workerPoolSpecs"][2] = {}
    pools = yaml.safe_load(write.write(read(value)))["workerPoolSpecs"]
    assert [bool(pool) for pool in pools] == [True, False, False, True]
    del value["workerPoolSpecs"][3]
    assert len(yaml.safe_load(write.write(read(value)))["workerPoolSpecs"]) == 1


def test_legacy_machines_of_cloudml_become_machines_of_compute_engine() -> None:
    job = "trainingInput: {scaleTier: CUSTOM, masterType: complex_model_m_gpu, workerType: standard, workerCount: 2}"
    first, second = yaml.safe_load(write.write(read(job)))["workerPoolSpecs"]
    assert first["machineSpec"] == {
        "machineType": "n1-standard-16",
        "acceleratorType": "NVIDIA_TESLA_K80",
        "acceleratorCount": 4,
    }
    assert second["machineSpec"] == {"machineType": "n1-standard-4"}
    assert read(write.write(read(job))) == read(job)


def test_a_list_of_pools_as_the_python_library_takes_it() -> None:
    machine = {"machine_type": "n1-standard-8", "accelerator_type": "NVIDIA_TESLA_T4", "accelerator_count": 2}
    pools = [{"machine_spec": machine, "replica_count": 1}, {"machine_spec": machine, "replica_count": 3}]
    for source in (
        pools,
        json.dumps(pools),
        f"{pools!r}\n",
        f"worker_pool_specs = {pools!r}\n",
        f"worker_pool_specs={pools!r},",
    ):
        cluster = read(source)
        assert cluster.describe() == "1 chief, 3 workers" and {task.gpus for task in cluster.tasks} == {2}
    for source in ('["a:1", "b:2"]', "[]", "[{}]", "[1, {"):
        with pytest.raises(ClusterError):
            read(source)
