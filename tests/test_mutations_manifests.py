"""Damaged manifests, worker pools and SageMaker variables are read, or refused in one line; so are ten thousand tasks, and fast."""

import json
import os
import random
import time
from collections.abc import Callable, Mapping

import pytest
from test_kubernetes import MNIST, MPI_JOB, PYTORCH_JOB, SERVICE, TRAIN_JOB
from test_mutations import MUTATORS
from test_sagemaker import RESOURCES
from test_vertex import CLUSTER_SPEC, CONFIG

from tfdist.cluster import Cluster, Task
from tfdist.dialects import kubernetes, kubernetes_tfjob, read, sagemaker, vertex
from tfdist.errors import ClusterError

COUNT = int(os.environ.get("TFDIST_MUTATIONS", "1500"))

PLAIN = kubernetes.write(read("cluster { nworker_groups: 2 nserver_groups: 2 sync_freq: 4 }"))
SAMPLES = (
    *(MNIST, TRAIN_JOB, PYTORCH_JOB, MPI_JOB, SERVICE + "---\n" + MNIST, PLAIN),
    *(CONFIG, json.dumps(CLUSTER_SPEC), json.dumps(RESOURCES)),
)

ENVIRONMENTS: tuple[tuple[Callable[[Mapping[str, str]], Cluster], dict[str, str]], ...] = (
    (vertex.from_environ, {"CLUSTER_SPEC": json.dumps(CLUSTER_SPEC)}),
    (sagemaker.from_environ, {"SM_RESOURCE_CONFIG": json.dumps(RESOURCES)}),
    (
        sagemaker.from_environ,
        {
            "SM_HOSTS": '["algo-1","algo-2"]',
            "SM_CURRENT_HOST": "algo-2",
            "SM_NUM_GPUS": "4",
            "SM_FRAMEWORK_PARAMS": '{"sagemaker_parameter_server_enabled": true}',
        },
    ),
)


def damaged(text: str, rng: random.Random) -> bytes:
    content = text.encode()
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        content = rng.choice(MUTATORS)(content, rng) or b" "
    return content


def check_message(error: ClusterError, seed: int) -> None:
    message = str(error)
    assert message and message.isprintable(), f"seed {seed}: {message!r}"
    assert len(message) < 1500, f"seed {seed}: a message of {len(message)} characters"


def test_the_samples_themselves_are_read() -> None:
    for sample in SAMPLES:
        assert isinstance(read(sample), Cluster)


@pytest.mark.timeout(600)
def test_a_damaged_description_is_read_or_refused_in_one_line() -> None:
    refused = 0
    for seed in range(COUNT):
        rng = random.Random(seed)
        content = damaged(rng.choice(SAMPLES), rng)
        try:
            cluster = read(content)
            assert isinstance(cluster, Cluster)
            for write in (kubernetes.write, kubernetes_tfjob.write, vertex.write) if len(cluster.tasks) < 100 else ():
                try:
                    assert isinstance(write(cluster), str)
                except ClusterError as error:
                    check_message(error, seed)
        except ClusterError as error:
            refused += 1
            check_message(error, seed)
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
    assert COUNT * 0.2 < refused < COUNT


@pytest.mark.timeout(600)
def test_a_damaged_environment_is_read_or_refused_in_one_line() -> None:
    refused = 0
    for seed in range(COUNT):
        rng = random.Random(seed)
        read_environ, variables = rng.choice(ENVIRONMENTS)
        name = rng.choice(list(variables))
        # What cannot be in a variable: bytes that are no text, and NUL.
        value = damaged(variables[name], rng).decode("utf-8", "replace").replace("\0", "")
        environ = variables | {name: value}
        try:
            module = vertex if read_environ is vertex.from_environ else sagemaker
            if module.recognises(environ):
                assert isinstance(read_environ(environ), Cluster)
        except ClusterError as error:
            refused += 1
            check_message(error, seed)
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
    assert refused > COUNT * 0.2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &a [1]\nb: &b [*a, *a]\napiVersion: v1\nkind: List\nitems: *b\n", "the alias *a is not allowed"),
        ("apiVersion: v1\nkind: List\nitems: !!python/object/apply:os.system [touch x]\n", "the tag"),
        ("apiVersion: v1\nkind: List\nitems: " + "[" * 3000 + "\n", "nested too deeply"),
        ("apiVersion: v1\nkind: List\nitems: [" + "{}, " * 300_000 + "]\n", "the description is larger than 1 MiB"),
        ("---\n" * 20_000 + "kind: x\napiVersion: y\n", "there is no training job"),
    ],
)
def test_bombs_are_refused_quickly(text: str, message: str) -> None:
    start = time.monotonic()
    with pytest.raises(ClusterError) as caught:
        read(text)
    assert message in str(caught.value)
    assert time.monotonic() - start < 10


def test_ten_thousand_tasks_are_read_checked_and_written_within_two_seconds_each() -> None:
    job = "apiVersion: kubeflow.org/v1\nkind: TFJob\nmetadata: {name: j}\nspec:\n  tfReplicaSpecs: {Chief: {}, "
    hosts = [f"algo-{n}" for n in range(10_000)]
    pools = {"cluster": {"workerpool0": ["c:1"], "workerpool1": [f"{host}:2222" for host in hosts]}}
    machines = [{"machineSpec": {"machineType": "n1-standard-4"}, "replicaCount": count} for count in (1, "9000", 999)]
    large = Cluster((Task("chief", 0), *(Task("worker", n) for n in range(9_000)), *(Task("ps", n) for n in range(999))))
    some = Cluster((Task("chief", 0), *(Task("worker", n) for n in range(3_000))))
    work: dict[str, Callable[[], object]] = {
        "TFJob": lambda: read(job + "Worker: {replicas: 9000}, PS: {replicas: 999}}\n"),
        "TFJob written and read": lambda: read(kubernetes_tfjob.write(large)),
        "objects written and read": lambda: read(kubernetes.write(some, name="t")),
        "worker pools": lambda: read(vertex.write(read({"workerPoolSpecs": machines}))),
        "CLUSTER_SPEC": lambda: vertex.from_environ({"CLUSTER_SPEC": json.dumps(pools)}),
        "SageMaker": lambda: sagemaker.from_environ({"SM_HOSTS": json.dumps(hosts), "SM_CURRENT_HOST": hosts[-1]}),
    }
    for name, function in work.items():
        start = time.monotonic()
        assert isinstance(function(), Cluster)
        assert time.monotonic() - start < 2, name
