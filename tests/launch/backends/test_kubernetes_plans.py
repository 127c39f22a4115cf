"""What the back end kubernetes submits, and how it understands what Kubernetes says; without a cluster."""

import dataclasses
import json
import sys
from types import SimpleNamespace

import pytest
import yaml
from tools import needs

from tfdist import Cluster, ClusterError, read
from tfdist.choice import choose, prepared
from tfdist.launch.backends.interface import BackendError
from tfdist.launch.backends.kubernetes import backend, logs
from tfdist.launch.backends.kubernetes.logs import whole_lines
from tfdist.launch.backends.kubernetes.manifests import objects
from tfdist.launch.backends.kubernetes.state import state_of
from tfdist.launch.jobs.job import Job, Program
from tfdist.launch.jobs.job_status import State

ROLES = {"chief": 1, "worker": 2, "ps": 1}


def make_job(description=ROLES, args=(), environment=None, **options):
    cluster = read(description)
    assert isinstance(cluster, Cluster)
    flags = options.pop("flags", ())
    options = {f"kubernetes_{name}": value for name, value in {"image": "i/j:1", "name": "demo", **options}.items() if value}
    job = Job(
        prepared(cluster), choose(cluster), Program("train.py", args=list(args)), environment=environment or {}, options=options
    )
    return dataclasses.replace(job, flags=flags)


def documents(job):
    return {f"{entry['kind']}/{entry['metadata']['name']}": entry for entry in yaml.safe_load_all(backend.plan(job).request)}


@needs("kubernetes")
def test_the_objects_are_what_kubernetes_takes():
    import kubernetes_validate

    for description in (ROLES, {"worker": 3}, "STANDARD_1"):
        for entry in documents(make_job(description, ["a"], {"KEY": "x"}, folder="/work", namespace="ml")).values():
            for version in ("1.25", "1.37"):
                kubernetes_validate.validate(entry, version, strict=True)
            assert entry["metadata"]["namespace"] == "ml"


def test_tasks_without_which_the_others_train_on_are_started_again_and_no_others():
    # Kubernetes ends all pods of a Job as soon as their restarts reach the limit together: 3 of each task are below it.
    for strategy, server in (("hogwild", ("OnFailure", 4)), ("parameter_server", ("Never", 0))):
        job = make_job()
        job = dataclasses.replace(job, cluster=dataclasses.replace(job.cluster, strategy=strategy))
        found = documents(dataclasses.replace(job, choice=choose(job.cluster)))
        got = {
            name: (entry["spec"]["template"]["spec"]["restartPolicy"], entry["spec"]["backoffLimit"])
            for name, entry in found.items()
            if entry["kind"] == "Job"
        }
        assert got == {"Job/demo-chief": ("Never", 0), "Job/demo-worker": ("OnFailure", 7), "Job/demo-ps": server}
        trains = {name: entry["metadata"].get("annotations", {}).get("tfdist/trains") for name, entry in found.items()}
        assert trains == {"Job/demo-chief": "true", "Service/demo": None, "Job/demo-worker": "false", "Job/demo-ps": "false"}


def test_no_value_of_env_is_in_the_plan_and_each_is_in_what_is_submitted():
    plan = backend.plan(make_job(environment={"KEY": "geheim", "OTHER": "a\nb"}))
    assert "geheim" not in repr(plan) and "KEY" in plan.request
    (secret,) = [entry for entry in objects(plan.request, plan.job.environment) if entry["kind"] == "Secret"]
    assert secret["stringData"] == {"KEY": "geheim", "OTHER": "a\nb"}


@pytest.mark.parametrize("kind", ["job", "tfjob", "trainjob"])
def test_the_flags_of_the_backup_reach_every_pod(kind):
    roles, more = ({"worker": 2}, {"runtime": "plain"}) if kind == "trainjob" else (ROLES, {"folder": "/pod"})
    job = make_job(
        roles,
        environment={"TFDIST_BACKUP_DIR": "/other", "KEY": "x"},
        kind=kind,
        flags=("--backup_dir=kept/$1", "--backup_freq=50"),
        **more,
    )
    environments = list(_environments(documents(job)))
    assert len(environments) == (1 if kind == "trainjob" else 3)
    folder = "kept/$$1" if kind == "trainjob" else "/pod/kept/$$1"  # `$$` is a $ for Kubernetes.
    for entries in environments:
        values = [(entry["name"], entry.get("value")) for entry in entries if entry["name"].startswith("TFDIST_BACKUP")]
        assert values == [("TFDIST_BACKUP_DIR", folder), ("TFDIST_BACKUP_FREQ", "50")]
    assert "TFDIST_BACKUP" not in str(list(_environments(documents(make_job(ROLES)))))


def _environments(value):
    """Yields what `env` lists say, wherever they are."""
    if isinstance(value, dict):
        for key, each in value.items():
            if key == "env":
                yield each
            else:
                yield from _environments(each)
    elif isinstance(value, list):
        for each in value:
            yield from _environments(each)


def test_the_tasks_of_the_plan_have_the_addresses_of_the_manifest():
    cluster = backend.plan(make_job()).job.cluster
    assert [task.address for task in cluster.tasks][:2] == ["demo-chief-0.demo:2222", "demo-worker-0.demo:2222"]


def test_fields_of_the_user_are_merged_into_every_pod(tmp_path):
    (tmp_path / "pod.yaml").write_text(
        "nodeSelector: {gpu: big}\nvolumes: [{name: data, emptyDir: {}}]\nrestartPolicy: Always\n"
        "containers: [{image: no, resources: {limits: {memory: 8Gi}}, env: [{name: A, value: b}]}, {name: side, image: x}]\n"
    )
    found = documents(make_job(pod=str(tmp_path / "pod.yaml")))
    for name in ("Job/demo-chief", "Job/demo-worker", "Job/demo-ps"):
        pod = found[name]["spec"]["template"]["spec"]
        first, side = pod["containers"]
        policy = "OnFailure" if name == "Job/demo-worker" else "Never"
        assert (pod["nodeSelector"], pod["restartPolicy"], side["name"]) == ({"gpu": "big"}, policy, "side")
        assert (first["image"], first["resources"]) == ("i/j:1", {"limits": {"memory": "8Gi"}})
        assert {"TF_CONFIG", "A"} <= {entry["name"] for entry in first["env"]}


def test_a_dollar_of_an_argument_is_no_reference_for_kubernetes():
    command = documents(make_job(args=["$(HOME)", "$$", "a b"]))["Job/demo-chief"]["spec"]["template"]["spec"]["containers"][0]
    assert command["command"] == ["python", "train.py", "$$(HOME)", "$$$$", "a b"]


def test_a_tfjob_and_a_trainjob_describe_the_same_cluster():
    (tfjob,) = documents(make_job(kind="tfjob", folder="/work", namespace="ml")).values()
    assert read(yaml.safe_dump(tfjob)).describe() == "1 chief, 2 workers, 1 ps"
    policies = {kind: each["restartPolicy"] for kind, each in tfjob["spec"]["tfReplicaSpecs"].items()}
    assert policies == {"Chief": "Never", "Worker": "OnFailure", "PS": "Never"}
    # With one, the operator ends the whole TFJob after some restarts of workers: with 0, at the first.
    assert "backoffLimit" not in tfjob["spec"]["runPolicy"]
    job = make_job({"worker": 2}, kind="trainjob", runtime="plain", environment={"KEY": "x"})
    trainjob = documents(job)["TrainJob/demo"]
    assert [task.host for task in read(yaml.safe_dump(trainjob)).tasks] == [f"demo-node-0-{n}.demo.default.svc" for n in (0, 1)]
    env = {entry["name"]: entry for entry in trainjob["spec"]["trainer"]["env"]}
    config = json.loads(env["TF_CONFIG"]["value"].replace("$(JOB_COMPLETION_INDEX)", "1"))
    assert config["cluster"] == {"worker": ["demo-node-0-0.demo:2222", "demo-node-0-1.demo:2222"]}
    assert env["KEY"]["valueFrom"]["secretKeyRef"] == {"name": "demo-env", "key": "KEY"}


def test_kubeflow_knows_every_field_of_a_trainjob():
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="pip install -e '.[test]'")
    job = make_job({"worker": 2}, kind="trainjob", runtime="plain", environment={"KEY": "x"}, namespace="ml")
    entry = documents(job)["TrainJob/demo"]
    assert models.TrainerV1alpha1TrainJob.from_dict(entry).to_dict() == entry


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"namespace": "Bad!"}, "is not a name that Kubernetes takes"),
        ({"name": "7up"}, "is not a name that Kubernetes takes"),
        ({"kind": "pod"}, "--kubernetes_kind: 'pod' is not one of job, tfjob, trainjob"),
        ({"kind": "trainjob"}, "--kubernetes_runtime: a TrainJob needs a ClusterTrainingRuntime"),
        ({"kind": "trainjob", "runtime": "r"}, "TrainJob has one kind of pods, and the cluster has 1 chief"),
        ({"kind": "trainjob", "runtime": "r", "folder": "/w"}, "--kubernetes_folder: the pods of a TrainJob"),
        ({"runtime": "r"}, "--kubernetes_runtime: only --kubernetes_kind trainjob"),
        ({"pod": "/nowhere.yaml"}, "--kubernetes_pod: /nowhere.yaml cannot be read"),
        ({"environment": {"A B": "1"}}, "'A B' is not a variable that Kubernetes takes"),
        *(
            ({"flags": (flag,)}, f"{flag.partition('=')[0]}: the launcher does not supervise jobs of --backend kubernetes")
            for flag in (
                "--max_restarts=2",
                "--task_restarts=worker=5",
                "--restart_window=60",
                "--step_timeout=60",
                "--grace_period=60",
                "--tensorboard=board",
                "--fail_at=worker:1,step=30",
            )
        ),
    ],
)
def test_what_kubernetes_cannot_do_is_refused(more, message):
    with pytest.raises(ClusterError, match=message.replace("(", r"\(")):
        backend.plan(make_job(**more))


def test_no_image_and_an_evaluator_without_a_folder_can_be_shown_and_not_submitted(monkeypatch):
    plan = backend.plan(make_job(image=None))
    assert "needs the image" in str(plan.refusal) and "registry.example.com/your-image" in plan.request
    plan = backend.plan(make_job({**ROLES, "evaluator": 1}))
    assert str(plan.refusal).startswith("--job_dir: an evaluator needs a folder")
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    monkeypatch.setattr(backend.importlib, "util", SimpleNamespace(find_spec=lambda name: None))
    assert "pip install 'kubernetes>=" in str(backend.plan(make_job()).refusal)


@pytest.mark.parametrize("job_id", ["", "demo", "ml/demo", "ml/pod/demo", "ml/job/", "/job/demo"])
def test_ids_that_are_none_are_refused(job_id):
    with pytest.raises(BackendError, match="is not an id of a job of Kubernetes"):
        backend.BACKEND.runs.status(job_id)


def workload(role, count=1, trains=False, required=True, **status):
    words = {"tfdist/trains": str(trains).lower(), "tfdist/required": str(required).lower()}
    labels = {"app.kubernetes.io/component": role}
    metadata = {"name": f"demo-{role}", "labels": labels, "annotations": words}
    return {"kind": "Job", "metadata": metadata, "spec": {"completions": count}, "status": status}


def condition(kind, message="", reason="PodFailurePolicy"):
    return {"conditions": [{"type": kind, "status": "True", "message": message, "reason": reason}]}


def pod(role, index=0, phase="Running", node="n1", created="1", **more):
    state, last = more.pop("state", {"running": {}}), more.pop("last", {})
    container = {"name": "tensorflow", "state": state, "lastState": last, "restartCount": more.pop("restarts", 0)}
    annotations = {"batch.kubernetes.io/job-completion-index": str(index)}
    metadata = {"name": f"demo-{role}-{index}-x", "labels": {"app.kubernetes.io/component": role}, "annotations": annotations}
    metadata |= {"creationTimestamp": created} | more.pop("metadata", {})
    spec = {"containers": [{"name": "tensorflow", "image": "i/j:1"}]} | ({"nodeName": node} if node else {})
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase, "containerStatuses": [container], **more}}


def ended(code, at="2026-01-01T00:00:00Z", reason="Error", **more):
    return {"terminated": {"exitCode": code, "finishedAt": at, "reason": reason, **more}}


def waits(reason, message=""):
    return {"waiting": {"reason": reason, "message": message}}


JOBS = [workload("chief", trains=True), workload("worker", 2)]
UNSCHEDULABLE = {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes: 3 Insufficient cpu."}]}
EVICTED = {"conditions": [{"type": "DisruptionTarget", "status": "True", "message": "preempted by a pod of higher priority"}]}
DELETED = {"metadata": {"deletionTimestamp": "2026-01-01T00:00:30Z"}}
LIMIT = condition("FailureTarget", "Job has reached the specified backoff limit", "BackoffLimitExceeded")
PS_DONE = pod("ps", phase="Succeeded", state=ended(0))
FAILED = [workload("chief", trains=True, **condition("Failed")), workload("worker", 2, **condition("Failed"))]


@pytest.mark.parametrize(
    ("jobs", "pods", "state", "reason"),
    [
        (JOBS, [], State.QUEUED, ""),
        (JOBS, [pod("chief"), pod("worker"), pod("worker", 1)], State.RUNNING, ""),
        (JOBS, [pod("chief"), pod("worker")], State.STARTING, ""),
        (
            JOBS,
            [pod("chief", phase="Pending", node="", **UNSCHEDULABLE)],
            State.QUEUED,
            "chief:0: waits for a node: 0/3 nodes: 3 In",
        ),
        (
            JOBS,
            [pod("chief", phase="Pending", state=waits("ErrImagePull", "no such\nhost")), pod("worker"), pod("worker", 1)],
            State.STARTING,
            "chief:0: its image i/j:1 cannot be pulled: no such host",
        ),
        (
            JOBS,
            [pod("chief"), pod("worker"), pod("worker", 1, state=waits("CrashLoopBackOff"), last=ended(7), restarts=3)],
            State.STARTING,
            "worker:1: its program fails again and again: it exited with 7; Kubernetes starts it again later",
        ),
        (
            JOBS,
            [pod("chief"), pod("worker"), pod("worker", 1, state=waits("CreateContainerConfigError", 'secret "x" not found'))],
            State.STARTING,
            'worker:1: its container cannot be started: CreateContainerConfigError, secret "x" not found',
        ),
        (
            FAILED,
            [
                pod("chief", phase="Failed", state=ended(1, "2026-01-01T00:00:09Z")),
                pod("worker", phase="Failed", state=ended(75, "2026-01-01T00:00:01Z")),
                pod("worker", 1, phase="Failed", state=ended(137, "2026-01-01T00:00:05Z", "OOMKilled")),
            ],
            State.FAILED,
            "worker:1 failed first: it used more memory than its limit allows, and was killed (OOMKilled)",
        ),
        (
            FAILED,
            [pod("chief"), pod("worker", phase="Failed", state=ended(139)), pod("worker", 1, phase="Failed", state=ended(75))],
            State.RUNNING,
            "worker:0 failed first: it was killed by SIGSEGV; still running: chief:0; tfdist cancel ends them",
        ),
        (
            FAILED,
            [pod("chief"), pod("worker", phase="Failed", state=ended(75))],
            State.RUNNING,
            "worker:0 has ended because the program of the chief failed; still running: chief:0",
        ),
        (
            FAILED,
            [pod("chief", phase="Failed", state=ended(143), **EVICTED)],
            State.FAILED,
            "chief:0 failed first: Kubernetes has taken its node away: preempted by a pod of higher priority",
        ),
        (
            [workload("chief", trains=True, **condition("Failed", "Job was active longer"))],
            [],
            State.FAILED,
            "Kubernetes has ended it: J",
        ),
        # A pod on a lost node is deleted for ever.
        (
            JOBS[:1],
            [pod("chief", **DELETED, **EVICTED)],
            State.RUNNING,
            "chief:0: Kubernetes has taken its node away: preempted",
        ),
        (
            [workload("chief", trains=True, **LIMIT), workload("ps")],
            [pod("chief", **DELETED, **EVICTED), PS_DONE],
            State.FAILED,
            "chief:0 failed first: Kubernetes has taken its node away: preempted by a pod of higher priority",
        ),
        (JOBS[:1], [pod("chief", **DELETED)], State.RUNNING, "chief:0: its pod is being deleted"),
        ([workload("chief", trains=True, **LIMIT), workload("ps")], [PS_DONE], State.FAILED, "the pod of chief:0 was deleted"),
        ([workload("worker", 2, trains=True, **LIMIT)], [], State.FAILED, "the pod of a worker was deleted"),
        (
            [workload("chief", trains=True, **condition("Complete")), workload("ps")],
            [pod("chief", phase="Succeeded", state=ended(0)), pod("ps")],
            State.RUNNING,
            "the training has ended; still running: ps:0",
        ),
        (
            [workload("chief", trains=True, **condition("Complete")), workload("ps", **condition("Failed"))],
            [pod("chief", phase="Succeeded", state=ended(0)), pod("ps", phase="Failed", state=ended(1))],
            State.SUCCEEDED,
            "",
        ),
        (
            [workload("worker", 1, trains=True, required=True), workload("evaluator", required=False, **condition("Failed"))],
            [pod("worker"), pod("evaluator", phase="Failed", state=ended(1))],
            State.RUNNING,
            "",
        ),
        # Kubernetes deletes the pods of a Job that has failed.
        ([JOBS[0], workload("worker", 2, required=False, **condition("Failed"))], [pod("chief")], State.RUNNING, ""),
        ([workload("chief", trains=True, **condition("Suspended"))], [], State.QUEUED, "it is suspended"),
        ([workload("ps")], [pod("ps")], State.CANCELLED, "its objects are being deleted"),
        # A pod that Kubernetes has replaced counts no more.
        (JOBS[:1], [pod("chief", phase="Failed", state=ended(1), created="1"), pod("chief", created="2")], State.RUNNING, ""),
    ],
)
def test_what_kubernetes_says_in_plain_words(jobs, pods, state, reason):
    status = state_of(jobs, pods, [])
    assert (status.state, status.reason[: max(1, len(reason))]) == (state, reason), status


def test_tasks_whose_job_has_failed_do_not_wait_for_a_pod():
    failed = workload("worker", 2, required=False, **condition("Failed", "Job has reached the specified backoff limit"))
    _, *workers = state_of([JOBS[0], failed], [pod("chief")], []).tasks
    said = "Kubernetes has ended it: Job has reached the specified backoff limit"
    assert [(task.state, task.note) for task in workers] == [(State.FAILED, said)] * 2


def test_warnings_say_why_there_are_no_pods_and_why_a_container_is_not_created():
    event = {"involvedObject": {"name": "demo-chief"}, "message": "exceeded quota: gpus"}
    assert state_of(JOBS, [], [event]).reason == "its pods cannot be created: exceeded quota: gpus"
    event["involvedObject"]["uid"] = "1"  # Of an earlier job with this name: its events stay for an hour.
    assert state_of(JOBS, [], [event]).reason == ""
    event = {"involvedObject": {"name": "demo-chief-0-x", "uid": "2"}, "message": 'MountVolume.SetUp failed: "data"'}
    chief = pod("chief", phase="Pending", state=waits("ContainerCreating"), metadata={"uid": "2"})
    assert state_of(JOBS, [chief], [event]).reason == 'chief:0: MountVolume.SetUp failed: "data"'


def test_pods_of_kubeflow_are_known_by_its_labels():
    labels = {"training.kubeflow.org/replica-type": "ps", "training.kubeflow.org/replica-index": "1"}
    spec = {"tfReplicaSpecs": {"PS": {"replicas": 2}, "Chief": {"replicas": 1}}}
    tfjob = {"kind": "TFJob", "metadata": {"name": "demo"}, "spec": spec, "status": condition("Running")}
    entry = pod("ps")
    entry["metadata"] |= {"labels": labels, "annotations": {}}
    assert [task.state for task in state_of([tfjob], [entry], []).tasks] == [State.QUEUED, State.RUNNING, State.QUEUED]
    entry["status"]["phase"] = "Succeeded"
    tfjob["status"] = condition("Succeeded")
    assert state_of([tfjob], [entry], []).state == State.SUCCEEDED


def test_lines_that_were_cut_anywhere_are_whole_again():
    text = "ä line\n\nlast".encode()
    assert list(whole_lines(text[i : i + 1] for i in range(len(text)))) == ["ä line", "", "last"]


def test_a_stream_of_output_that_is_cut_goes_on_where_it_was(monkeypatch):
    stamps = [f"2026-01-01T00:00:00.{fraction}Z" for fraction in ("1", "12", "123456789", "5")]
    lines = [f"{stamp} line {number}\n".encode() for number, stamp in enumerate(stamps)]
    asked = []

    def log(pod, container, *, follow, since):
        asked.append(since)
        yield from (lines[:2], lines[1:])[min(len(asked), 2) - 1]

    monkeypatch.setattr(logs, "AGAIN_SECONDS", 0.01)
    streams = logs.PodLogs(SimpleNamespace(log=log))
    streams.follow([pod("worker")])
    assert [line.text for line in streams.lines(0.2)] == [f"line {number}" for number in range(4)]
    assert asked[:2] == ["", stamps[1]] and list(streams.rest([pod("worker")])) == []
