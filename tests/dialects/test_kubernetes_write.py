"""Writing Kubernetes manifests: checked against the published schemas, expanded as the kubelet does, and read back."""

import dataclasses
import json
import re
from types import SimpleNamespace
from typing import Any

import kubernetes.client.models as kubernetes_models
import kubernetes_validate
import pytest
import yaml
from kubeflow.training import models
from kubernetes.client import ApiClient
from kubernetes_samples import MNIST

from tfdist.cluster import Cluster, Task
from tfdist.dialects import read
from tfdist.dialects.kubernetes import plain_objects, write_tfjob
from tfdist.errors import ClusterError

PROGRAM = {"image": "registry/me/train:1", "command": ["python", "train.py", "--lr", "1e3", "y; rm -rf $HOME `x` $(X)\n# '\""]}


def documents(text: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text))


def check_schema(manifest: dict[str, Any]) -> None:
    """Checks an object against the schema that Kubernetes publishes, which knows every field (`strict`)."""
    for version in ("1.25", "1.37"):
        kubernetes_validate.validate(manifest, version, strict=True)


def check_tfjob(manifest: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks a TFJob against the models that Kubeflow generates from its schema, and its pods against Kubernetes'."""
    for name in dir(models):
        if name.startswith("KubeflowOrgV1"):
            monkeypatch.setattr(kubernetes_models, name, getattr(models, name), raising=False)  # Where the client looks.
    client = ApiClient()
    job = client.deserialize(SimpleNamespace(data=json.dumps(manifest)), "KubeflowOrgV1TFJob")
    # What the models do not know is lost on the way, what has another type changes.
    assert client.sanitize_for_serialization(job) == manifest
    for replicas in manifest["spec"]["tfReplicaSpecs"].values():
        assert replicas["restartPolicy"] in ("Always", "OnFailure", "Never", "ExitCode")
        template = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": replicas["template"]}
        check_schema(template)


CLUSTERS = {
    "one task": Cluster((Task("chief", 0),)),
    "a tier": read("STANDARD_1"),
    "workers with GPUs": Cluster(tuple(Task("worker", n, slots=2, gpus=2) for n in range(3))),
    "a TFJob": read(MNIST),
    "other hosts": read({"worker": ["a:1", "b:1"], "ps": ["c:2"]}),
}
GROUPS = {
    "Sandblaster": read("cluster { nworkers_per_group: 3 nservers_per_group: 2 server_worker_separate: true }"),
    "Hogwild": read("cluster { nworker_groups: 3 nserver_groups: 3 sync_freq: 8 workspace: '/tmp/$(HOME)$$x' }"),
    "evaluators": Cluster((Task("chief", 0), Task("evaluator", 0), Task("evaluator", 1))),
    "CPU slots": Cluster((Task("worker", 0, slots=3),)),
}


@pytest.mark.parametrize("name", [*CLUSTERS, *GROUPS])
def test_objects_that_need_no_operator_fit_the_schemas(name: str) -> None:
    for entry in documents(plain_objects.write((CLUSTERS | GROUPS)[name], **PROGRAM, namespace="ml")):
        check_schema(entry)


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_tfjob_fits_the_schema(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (job,) = documents(write_tfjob.write(CLUSTERS[name], **PROGRAM))
    check_tfjob(job, monkeypatch)


def test_the_checks_of_the_schemas_find_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    (job,) = documents(write_tfjob.write(CLUSTERS["a tier"]))
    job["spec"]["tfReplicaSpecs"]["Worker"]["replica"] = 1
    with pytest.raises(AssertionError):
        check_tfjob(job, monkeypatch)
    service, chief, *_ = documents(plain_objects.write(CLUSTERS["a tier"]))
    chief["spec"]["completion"] = 1
    service["spec"]["clusterIP"] = 5
    for wrong in (service, chief):
        with pytest.raises(kubernetes_validate.ValidationError):
            check_schema(wrong)


def without_addresses(cluster: Cluster) -> Cluster:
    return dataclasses.replace(cluster, tasks=tuple(dataclasses.replace(task, host=None, port=None) for task in cluster.tasks))


@pytest.mark.parametrize("name", [*CLUSTERS, *GROUPS])
def test_what_is_written_reads_back(name: str) -> None:
    cluster = (CLUSTERS | GROUPS)[name]
    for dialect in (plain_objects, write_tfjob) if name in CLUSTERS else (plain_objects,):
        text = dialect.write(cluster, **PROGRAM)
        again = read(text)
        assert without_addresses(again) == without_addresses(cluster)
        # Once Kubernetes has named the pods, the names stay.
        assert read(dialect.write(again, **PROGRAM)) == again


def test_a_tfjob_that_was_read_is_written_with_its_names() -> None:
    for manifest in (MNIST, MNIST.replace("chief:", "Master:")):
        cluster = read(manifest)
        assert read(write_tfjob.write(cluster)) == cluster
        assert "kind: TFJob\nmetadata:\n  name: dist-mnist\n  namespace: ml\n" in write_tfjob.write(cluster)
        assert "not carried over" not in write_tfjob.write(cluster)


def expand(value: str, variables: dict[str, str]) -> str:
    """`$(NAME)` and `$$` as the kubelet expands them in `env` (k8s.io/kubernetes/third_party/forked/golang/expansion)."""

    def replace(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else variables.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", replace, value)


@pytest.mark.parametrize("name", [*CLUSTERS, *GROUPS])
def test_every_pod_finds_its_own_tf_config_without_a_shell(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = (CLUSTERS | GROUPS)[name]
    service, *jobs = documents(plain_objects.write(cluster, **PROGRAM))
    found = []
    for job in jobs:
        spec = job["spec"]["template"]["spec"]
        assert service["spec"]["selector"].items() <= job["spec"]["template"]["metadata"]["labels"].items()
        assert spec["subdomain"] == service["metadata"]["name"]
        for index in range(job["spec"]["completions"]):
            index_variable, config = spec["containers"][0]["env"]
            assert index_variable["valueFrom"]["fieldRef"]["fieldPath"].endswith("['batch.kubernetes.io/job-completion-index']")
            monkeypatch.setenv("TF_CONFIG", expand(config["value"], {index_variable["name"]: str(index)}))
            here = read()
            assert here.task is not None
            found.append("{}:{}".format(*here.task))
            # The pod's own name, as an indexed Job gives it, and the port that its container declares.
            pod, port = f"{job['metadata']['name']}-{index}.{spec['subdomain']}", spec["containers"][0]["ports"][0]
            space = f".{job['metadata']['namespace']}.svc" if "namespace" in job["metadata"] else ""
            assert here.find(*here.task).address == f"{pod}{space}:{port['containerPort']}"
            assert without_addresses(here) == without_addresses(cluster)
    assert found == [task.name for task in cluster.tasks]


def test_the_program_is_written_as_words_that_no_shell_sees() -> None:
    for dialect in (plain_objects, write_tfjob):
        text = dialect.write(CLUSTERS["one task"], **PROGRAM)
        manifest = documents(text)[-1]
        spec = manifest["spec"].get("template") or manifest["spec"]["tfReplicaSpecs"]["Chief"]["template"]
        assert spec["spec"]["containers"][0]["command"] == PROGRAM["command"]
        # Words that YAML 1.1 and 1.2 read differently are quoted.
        assert "- '1e3'" in text
    words = documents(plain_objects.write(CLUSTERS["one task"], command="python train.py --name 'a b'"))[1]
    assert words["spec"]["template"]["spec"]["containers"][0]["command"] == ["python", "train.py", "--name", "a b"]


def test_comments_name_what_is_left_out() -> None:
    text = write_tfjob.write(dataclasses.replace(CLUSTERS["other hosts"], job_dir="/tmp/a\nb: c"))
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert comments == [
        "# Replace the image and the command by your own; the program is the same in every pod.",
        "# Kubernetes names the pods: the host a of worker:0 is not carried over, nor are others.",
        '# TFJob has no job directory: give your program "/tmp/a\\nb: c" itself.',
    ]
    mixed = Cluster((Task("worker", 0, "a", 1), Task("worker", 1, "a", 2)))
    assert "# Every pod has its own address: all worker tasks listen on one port." in plain_objects.write(mixed)
    assert "#" not in plain_objects.write(read("BASIC"), **PROGRAM).partition("'y;")[0]


@pytest.mark.parametrize(
    ("cluster", "options", "message"),
    [
        (GROUPS["Hogwild"], {}, "TFJob has no words for server_groups other than the usual; translate to kubernetes instead"),
        (GROUPS["CPU slots"], {}, "TFJob has no words for the 3 slots of worker:0, which has 0 GPUs"),
        (GROUPS["evaluators"], {}, "TFJob has no words for several evaluators"),
        (Cluster((Task("worker", 0, gpus=1), Task("worker", 1))), {}, "worker tasks with different numbers of GPUs"),
        (Cluster((Task("worker", 3),), partial=True), {}, "TFJob has no words for a part of a cluster"),
        (CLUSTERS["a tier"], {"name": "Upper"}, "--name: 'Upper' is not a name that Kubernetes takes"),
        (CLUSTERS["a tier"], {"name": "a" * 60}, "they are at most 63 characters"),
        (CLUSTERS["a tier"], {"name": "1a"}, "start with a letter"),
        (CLUSTERS["a tier"], {"imag": "x"}, "--imag: there is no such option; did you mean image?"),
        (CLUSTERS["a tier"], {"image": ""}, "--image: '' is not right"),
        (CLUSTERS["a tier"], {"command": "a 'b"}, "--command: this is not a command: No closing quotation"),
    ],
)
def test_what_cannot_be_written(cluster: Cluster, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ClusterError) as caught:
        write_tfjob.write(cluster, **options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("completions: 4", "completions: 3"), "completions is 3, but TF_CONFIG has 4 worker tasks; make them equal"),
        (("completions: 4\n  parallelism: 4\n", "completions: 4\n"), "of 4 pods (completions) Kubernetes starts 1 at a time"),
        (('"type": "ps"', '"type": "worker"'), "two objects are the worker tasks of one cluster"),
        (('"type": "ps"', '"type": "pss"'), "task: the task is 'pss', and the cluster has 1 chief, 4 workers, 3 ps"),
        (('"type": "ps"', '"type": "' + "s" * 9999 + '"'), "task: the task is '" + "s" * 59 + "..., and the cluster has"),
        (("tfdist-ps-0.tfdist:2222", "tfdist-ps-0.tfdist:2223"), "its TF_CONFIG describes"),
        (('{"cluster"', '["cluster"'), "env.1.value: this is not a JSON object"),
    ],
)
def test_objects_that_contradict_each_other_are_refused(change: tuple[str, str], message: str) -> None:
    text = plain_objects.write(CLUSTERS["a tier"])
    head, found, tail = text.rpartition(change[0])
    head, found, tail = (head, found, tail) if "completions" not in change[0] else text.partition(change[0])
    assert found
    with pytest.raises(ClusterError) as caught:
        read(head + change[1] + tail)
    assert message in str(caught.value)


def test_stateful_sets_with_tf_config_are_read_too_and_jobs_without_completions() -> None:
    text = plain_objects.write(CLUSTERS["a tier"])
    sets = text.replace("kind: Job", "kind: StatefulSet").replace("completions:", "replicas:").replace("batch/v1", "apps/v1")
    assert read(re.sub(r"  completions: \d+\n", "", text)) == read(text)
    assert read(sets) == read(text)
    missing = "---\n".join(text.split("---\n")[:-1])
    with pytest.raises(ClusterError, match="TF_CONFIG has ps:0, and no object starts it"):
        read(missing)


def pods_of(kind: str, *who: tuple[str, object], **spec: object) -> str:
    """Objects with a TF_CONFIG of their own, as the templates of tensorflow/ecosystem make them: a task each."""
    objects = []
    for job, index in who:
        config = {"cluster": {"worker": ["e-0:5000", "e-1:5000"], "ps": ["e-ps:5000"]}, "task": {"type": job, "index": index}}
        env = [{"name": "TF_CONFIG", "value": json.dumps(config, indent=1)}]
        pod = {"containers": [{"name": "tensorflow", "image": "x", "env": env}]}
        inside = pod if kind == "Pod" else {**spec, "template": {"spec": pod}}
        objects.append({"apiVersion": "v1", "kind": kind, "metadata": {"name": f"e-{job}-{index}"}, "spec": inside})
    return yaml.safe_dump_all(objects)


@pytest.mark.parametrize("kind", ["Pod", "Deployment", "ReplicaSet", "ReplicationController", "Job", "StatefulSet"])
def test_objects_for_one_task_each_are_read(kind: str) -> None:
    cluster = read(pods_of(kind, ("worker", 0), ("worker", "1"), ("ps", 0)))
    assert [(task.name, task.address) for task in cluster.tasks] == [
        ("worker:0", "e-0:5000"),
        ("worker:1", "e-1:5000"),
        ("ps:0", "e-ps:5000"),
    ]
    with pytest.raises(ClusterError, match="TF_CONFIG has worker:1, and no object starts it"):
        read(pods_of(kind, ("worker", 0), ("ps", 0)))
    with pytest.raises(ClusterError, match="two objects are the worker task 0 of one cluster"):
        read(pods_of(kind, ("worker", 0), ("worker", 0), ("ps", 0)))
    with pytest.raises(ClusterError, match="task: the task is worker:2, and the cluster has 2 workers, 1 ps"):
        read(pods_of(kind, ("worker", 0), ("worker", 2), ("ps", 0)))


def test_pods_that_cannot_know_which_task_they_are_are_refused() -> None:
    with pytest.raises(ClusterError, match="replicas is 2, and TF_CONFIG makes each of these pods worker:0; make it 1"):
        read(pods_of("Deployment", ("worker", 0), ("worker", 1), ("ps", 0), replicas=2))
    with pytest.raises(
        ClusterError, match="the pods of a Deployment have no numbers; write one object for each of the 2 worker tasks"
    ):
        read(pods_of("Deployment", ("worker", "$(INDEX)"), ("ps", 0), replicas=1))


def test_more_than_linux_passes_in_a_variable_is_refused_or_noted() -> None:
    large = Cluster(tuple(Task("worker", n) for n in range(10_000)))
    with pytest.raises(ClusterError, match=r"TF_CONFIG of 10000 tasks is \d+ bytes, and Linux passes at most 131061"):
        plain_objects.write(large)
    assert "# The pods will not start: TF_CONFIG is over" in write_tfjob.write(large)
    assert read(write_tfjob.write(large)).describe() == "10000 workers"
