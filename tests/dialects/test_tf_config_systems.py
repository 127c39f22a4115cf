"""TF_CONFIG as each system writes it: one row per system and variant."""

import json
from typing import Any

import pytest

from tfdist.dialects import read

A, B, C, D = "a:2222", "b:2222", "c:2222", "d:2222"

SYSTEMS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "AI Platform, runtime 2.1": (
        {
            "cluster": {
                "chief": ["cmle-training-master-e118e0f997-0:2222"],
                "ps": ["cmle-training-ps-e118e0f997-0:2222"],
                "worker": ["cmle-training-worker-e118e0f997-0:2222", "cmle-training-worker-e118e0f997-1:2222"],
            },
            "environment": "cloud",
            "job": {"scale_tier": "CUSTOM", "worker_count": "2"},
            "task": {"cloud": "x", "index": 0, "trial": "1", "type": "worker"},
        },
        ["chief:0", "worker:0", "worker:1", "ps:0"],
    ),
    "AI Platform, runtime 1.15": (
        {"cluster": {"master": [A], "worker": [B], "ps": [C]}, "task": {"type": "master", "index": 0}, "environment": "cloud"},
        ["chief:0", "worker:0", "ps:0"],
    ),
    "AI Platform, evaluator": (
        {"cluster": {"chief": [A], "worker": [B], "ps": [C]}, "task": {"type": "evaluator", "index": 0}},
        ["chief:0", "worker:0", "ps:0", "evaluator:0"],
    ),
    "gcloud local train": (
        {
            "job": {"job_name": "trainer.task", "args": []},
            "task": {"type": "ps", "index": 1},
            "cluster": {
                "ps": ["localhost:27183", "localhost:27184"],
                "chief": ["localhost:27182"],
                "worker": ["localhost:27185", "localhost:27186"],
            },
            "environment": "cloud",
        },
        ["chief:0", "worker:0", "worker:1", "ps:0", "ps:1"],
    ),
    "gcloud local train, not distributed": ({"job": {}, "task": {}, "cluster": {}, "environment": "cloud"}, ["chief:0"]),
    "Kubeflow TFJob, evaluator in cluster": (
        {
            "cluster": {
                "chief": ["j-chief-0.ns.svc:2222"],
                "evaluator": ["j-evaluator-0.ns.svc:2222"],
                "ps": ["j-ps-0.ns.svc:2222"],
                "worker": ["j-worker-0.ns.svc:2222", "j-worker-1.ns.svc:2222"],
            },
            "task": {"type": "evaluator", "index": 0},
            "environment": "cloud",
        },
        ["chief:0", "worker:0", "worker:1", "ps:0", "evaluator:0"],
    ),
    # Before v1.0 the operator kept evaluators out of `cluster`.
    "Kubeflow TFJob v0.4, evaluator outside": (
        {
            "cluster": {"chief": ["j-chief-0:2222"], "ps": ["j-ps-0:2222"], "worker": ["j-worker-0:2222"]},
            "task": {"type": "evaluator", "index": 0},
            "environment": "cloud",
        },
        ["chief:0", "worker:0", "ps:0", "evaluator:0"],
    ),
    "Kubeflow TFJob v1.9, CUSTOM_CLUSTER_DOMAIN": (
        {
            "cluster": {"worker": [f"j-worker-{n}.ns.svc.cluster.example:2222" for n in range(2)]},
            "task": {"type": "worker", "index": 1},
            "environment": "cloud",
        },
        ["worker:0", "worker:1"],
    ),
    "Kubeflow TFJob, master": (
        {"cluster": {"master": [A], "worker": [B]}, "task": {"type": "worker", "index": 0}, "environment": "cloud"},
        ["chief:0", "worker:0"],
    ),
    "TFJob dynamic worker v1.7": (
        {"cluster": {"worker": {"1": A}, "ps": [B, C]}, "task": {"type": "worker", "index": 1}},
        ["worker:1", "ps:0", "ps:1"],
    ),
    "TFJob dynamic worker 0": (
        {"cluster": {"worker": {"0": A}, "ps": [B]}, "task": {"type": "worker", "index": 0}},
        ["worker:0", "ps:0"],
    ),
    "TFJob dynamic worker v1.1": (
        {"sparseCluster": {"worker": {"2": A}, "ps": [B]}, "task": {"type": "worker", "index": 2}},
        ["worker:2", "ps:0"],
    ),
    "TFJob dynamic worker v1.6 with full names": (
        {
            "sparseCluster": {"worker": {"0": "j-worker-0.ns.svc:2222"}, "ps": ["j-ps-0.ns.svc:2222", "j-ps-1.ns.svc:2222"]},
            "task": {"type": "worker", "index": 0},
        },
        ["worker:0", "ps:0", "ps:1"],
    ),
    "TFJob dynamic ps v1.6": ({"sparseCluster": {"worker": {}, "ps": [B]}, "task": {"type": "ps", "index": 2}}, ["ps:2"]),
    "TFJob dynamic chief v1.6": (
        {"sparseCluster": {"worker": {}, "ps": []}, "task": {"type": "chief", "index": 0}},
        ["chief:0"],
    ),
    "TFJob dynamic ps": ({"cluster": {"worker": {}, "ps": [B]}, "task": {"type": "ps", "index": 1}}, ["ps:1"]),
    "TFJob dynamic chief": ({"cluster": {"worker": {}, "ps": []}, "task": {"type": "chief", "index": 0}}, ["chief:0"]),
    "Ray Train": (
        {"cluster": {"worker": ["10.0.0.1:3001", "10.0.0.2:3002"]}, "task": {"type": "worker", "index": 1}},
        ["worker:0", "worker:1"],
    ),
    "SageMaker ps": (
        {
            "cluster": {"master": ["algo-1:2222"], "worker": ["algo-2:2222"], "ps": ["algo-1:2223", "algo-2:2223"]},
            "task": {"index": 0, "type": "master"},
            "environment": "cloud",
        },
        ["chief:0", "worker:0", "ps:0", "ps:1"],
    ),
    "SageMaker MWMS": (
        {
            "cluster": {"worker": ["algo-1:8890", "algo-2:8890"]},
            "task": {"type": "worker", "index": 0},
            "environment": "cloud",
        },
        ["worker:0", "worker:1"],
    ),
    "tf-yarn": (
        {
            "cluster": {"chief": [A], "worker": [B], "ps": [C], "evaluator": [D]},
            "task": {"type": "chief", "index": 0},
            "environment": "google",
        },
        ["chief:0", "worker:0", "ps:0", "evaluator:0"],
    ),
    "tf-yarn, a ps": (
        {
            "cluster": {"chief": ["10.0.0.4:45123"], "ps": ["10.0.0.5:37001"], "worker": ["10.0.0.6:40001", "10.0.0.7:40002"]},
            "task": {"type": "ps", "index": 0},
            "environment": "",
        },
        ["chief:0", "worker:0", "worker:1", "ps:0"],
    ),
    "TensorFlowOnSpark, master": (
        {"cluster": {"ps": [A], "master": [B], "worker": [C]}, "task": {"type": "master", "index": 0}, "environment": "cloud"},
        ["chief:0", "worker:0", "ps:0"],
    ),
    "TensorFlowOnSpark": (
        {
            "cluster": {"ps": [A], "chief": [B], "evaluator": [C], "worker": [D]},
            "task": {"type": "ps", "index": 0},
            "environment": "cloud",
        },
        ["chief:0", "worker:0", "ps:0", "evaluator:0"],
    ),
    "spark-tensorflow-distributor": (
        {"cluster": {"worker": [A, B]}, "task": {"type": "worker", "index": 0}},
        ["worker:0", "worker:1"],
    ),
    "Volcano": (
        {"cluster": {"ps": [A], "worker": [B, C]}, "task": {"type": "worker", "index": 1}},
        ["worker:0", "worker:1", "ps:0"],
    ),
    "Volcano, evaluator": (
        {
            "cluster": {
                "ps": ["j-ps-0.j:2222"],
                "worker": ["j-worker-0.j:2222"],
                "chief": ["j-chief-0.j:2222"],
                "evaluator": ["j-evaluator-0.j:2222"],
            },
            "task": {"type": "evaluator", "index": 0},
        },
        ["chief:0", "worker:0", "ps:0", "evaluator:0"],
    ),
    "Vertex AI, evaluator": (
        {
            "cluster": {"chief": ["training-workerpool0-1-0:2222"], "worker": ["training-workerpool1-1-0:2222"]},
            "task": {"type": "evaluator", "index": 0, "trial": "1", "cloud": "x"},
            "job": '{"worker_pool_specs": []}',
            "environment": "cloud",
        },
        ["chief:0", "worker:0", "evaluator:0"],
    ),
    "Vertex AI": (
        {
            "cluster": {"chief": ["training-workerpool0-1-0:2222"], "worker": ["training-workerpool1-1-0:2222"]},
            "task": {"type": "chief", "index": 0, "trial": "1"},
            "job": "{}",
            "environment": "cloud",
        },
        ["chief:0", "worker:0"],
    ),
}


@pytest.mark.parametrize("system", SYSTEMS)
def test_what_each_system_writes_is_read(system: str) -> None:
    config, tasks = SYSTEMS[system]
    for cluster in (read(config), read(json.dumps(config)), read(json.dumps(config, indent=2))):
        assert [entry.name for entry in cluster.tasks] == tasks
        assert cluster.partial is ("dynamic" in system)
        task = config["task"]
        job = {"master": "chief"}.get(task.get("type"), task.get("type"))
        assert cluster.task == ((job, int(task["index"])) if job else None)
