"""`manifest`: the objects of a job as YAML, without the values of `--env`; `objects`: the same as they are submitted."""

import itertools
import posixpath
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdist.dialects.kubernetes import parts, plain_objects, write_tfjob
from tfdist.dialects.kubernetes.training_jobs import TF_JOBS
from tfdist.dialects.writing.containers import PLACEHOLDER_IMAGE, dump, is_label
from tfdist.errors import ClusterError, Source
from tfdist.launch.backends import interpreter
from tfdist.launch.jobs.job import Job
from tfdist.strategies.checkpoint.environment import FOLDER, FREQUENCY
from tfdist.strategies.runtime.server import ENDS_WITH_CHIEF

KINDS = ("job", "tfjob", "trainjob")
"""Values of `--kubernetes_kind`, as they are part of a handle: indexed Jobs, Kubeflow's TFJob, Kubeflow's TrainJob."""

INSTANCE = "app.kubernetes.io/instance"
TRAINS = "tfdist/trains"
"""Annotation of the Jobs with whose end the job succeeds."""

REQUIRED = "tfdist/required"
"""Annotation of the Jobs without which the job fails."""

KEPT_SECONDS = 24 * 3600
"""How long a finished job and its logs stay."""

RESTARTS = 3
"""How often a task is started again without which the others train on; of several tasks with one name, on average."""

_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*", re.ASCII)
_SECRET_NOTE = "The values of --env are filled in when this is submitted."


def manifest(job: Job) -> str:
    """Returns the objects of a job as YAML documents. The first is the owner of the others.

    Raises:
        ClusterError: if these objects cannot run the job, or an option is bad.
    """
    kind = job.options.get("kubernetes_kind", "job")
    name = job.options.get("kubernetes_name") or f"tfdist-{secrets.token_hex(3)}"
    image, namespace = job.options.get("kubernetes_image"), job.options.get("kubernetes_namespace")
    given = {"image": image, "command": _command(job), "name": name, "namespace": namespace}
    if not is_label(name) or not name[0].isalpha():
        raise _error("name", f"{name[:70]!r} is not a name that Kubernetes takes: at most 63 of a-z, 0-9 and -, a letter first")
    for variable in job.environment:
        if not _VARIABLE.fullmatch(variable):
            raise Source("flags", "--env").error(f"{variable[:60]!r} is not a variable that Kubernetes takes")
    if kind == "job":
        entries, comments = _read(plain_objects.write(job.cluster, **given))
        owner = f"{name}-{job.reporter.job}"
        entries.sort(key=lambda entry: entry["metadata"]["name"] != owner)  # The Service has the name of the job.
        for entry in entries:
            entry["metadata"].setdefault("labels", {})[INSTANCE] = name
            if entry["kind"] == "Job":
                _adapt_job(entry, job)
        entries[0]["spec"]["ttlSecondsAfterFinished"] = KEPT_SECONDS
    elif kind == "tfjob":
        entries, comments = _read(write_tfjob.write(job.cluster, **given))
        _adapt_tfjob(entries[0], job, name)
    else:
        entries, comments = [_trainjob(job, given, name)], []
    if job.environment:
        entries.append(_secret(job, name))
        comments.append(_SECRET_NOTE)
    return dump(entries, comments)


def objects(plan_request: str, environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """Returns the objects of a manifest, with the values of `--env`."""
    found, _ = _read(plan_request)
    for entry in found:
        if entry["kind"] == "Secret":
            entry["stringData"] = dict(environment)
    return found


def _read(text: str) -> tuple[list[dict[str, Any]], list[str]]:
    import yaml  # As in `containers.dump`.

    comments = [line[2:] for line in itertools.takewhile(lambda line: line.startswith("# "), text.splitlines())]
    return list(yaml.safe_load_all(text)), comments


def _command(job: Job) -> list[str]:
    """Returns the command line. Kubernetes replaces `$(NAME)` in it, and `$$` is a $ for it."""
    python, *words = job.program.command(job.options.get("kubernetes_python", "python"))
    return [word.replace("$", "$$") for word in (python, *interpreter.options(), *words)]


def _adapt_job(entry: dict[str, Any], job: Job) -> None:
    """Gives a Job what the launcher's other back ends give: variables, restarts, what its end means."""
    role = entry["metadata"]["labels"]["app.kubernetes.io/component"]
    is_required = role != "evaluator" and role not in {task.job for task in job.replaceable}
    trains = role in {task.job for task in job.training}
    words = {TRAINS: str(trains).lower(), REQUIRED: str(is_required).lower()}
    entry["metadata"]["annotations"] = words
    # Kubernetes ends all pods of a Job as soon as the sum of their restarts reaches this number (at 0: exceeds it).
    entry["spec"]["backoffLimit"] = 0 if is_required else RESTARTS * entry["spec"]["completions"] + 1
    template = entry["spec"]["template"]
    pod = template["spec"]
    pod["restartPolicy"] = "Never" if is_required else "OnFailure"
    template["spec"] = _adapted(pod, job, entry["metadata"]["name"].removesuffix(f"-{role}"))


def _adapt_tfjob(entry: dict[str, Any], job: Job, name: str) -> None:
    entry["metadata"]["labels"] = {INSTANCE: name}
    # Without a backoffLimit, a pod that is not restarted fails the TFJob. With one, restarts count too, and end all pods.
    entry["spec"]["runPolicy"]["ttlSecondsAfterFinished"] = KEPT_SECONDS
    entry["spec"]["runPolicy"]["cleanPodPolicy"] = "None"  # Their logs stay.
    replaceable = {task.job for task in job.replaceable} | {"evaluator"}
    for kind, replicas in entry["spec"]["tfReplicaSpecs"].items():
        replicas["restartPolicy"] = "OnFailure" if TF_JOBS[kind] in replaceable else "Never"
        replicas["template"]["metadata"] = {"labels": {INSTANCE: name}}
        replicas["template"]["spec"] = _adapted(replicas["template"]["spec"], job, name)


def _trainjob(job: Job, given: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns a TrainJob. Its pods are alike, so all tasks are workers."""
    runtime = job.options.get("kubernetes_runtime")
    for option in ("kubernetes_folder", "kubernetes_pod"):
        if option in job.options:
            raise Source("flags", f"--{option}").error("the pods of a TrainJob are those of its runtime; set it there")
    if runtime is None:
        raise _error("runtime", "a TrainJob needs a ClusterTrainingRuntime; `kubectl get clustertrainingruntimes` lists them")
    if {task.job for task in job.cluster.tasks} != {"worker"}:
        raise job.cluster.source.error(
            f"TrainJob has one kind of pods, and the cluster has {job.cluster.describe()}; use --kubernetes_kind job"
        )
    tail = f"{name}.{given['namespace']}.svc" if given["namespace"] else name
    cluster = parts.with_addresses(job.cluster, {"worker": f"{name}-node-0-{{}}.{tail}"})
    task = parts.alike(cluster, "TrainJob", "worker")
    trainer: dict[str, Any] = {
        "image": given["image"] or PLACEHOLDER_IMAGE,
        "command": given["command"],
        "numNodes": len(cluster.tasks),
    }
    if task.gpus:
        trainer["resourcesPerNode"] = {"limits": {"nvidia.com/gpu": str(task.gpus)}}
    trainer["env"] = [*plain_objects.tf_config_env(cluster, task), *_env(job, name)]
    metadata = {"name": name} | ({"namespace": given["namespace"]} if given["namespace"] else {})
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {**metadata, "labels": {INSTANCE: name}},
        "spec": {"runtimeRef": {"name": runtime}, "trainer": trainer},
    }


def _adapted(pod: dict[str, Any], job: Job, name: str) -> dict[str, Any]:
    """Returns the specification of a pod with variables, folder, and what `--kubernetes_pod` says."""
    container = pod["containers"][0]
    container["env"] = [*container.get("env", []), *_env(job, name)]
    if folder := job.options.get("kubernetes_folder"):
        container["workingDir"] = folder
    merged: dict[str, Any] = _merged(_pod_of_user(job), pod)
    return merged


def _env(job: Job, name: str) -> list[dict[str, Any]]:
    quiet = {} if job.verbose else {"TF_CPP_MIN_LOG_LEVEL": "2"}
    backup = _backup(job)
    defaults = {"PYTHONUNBUFFERED": "1", ENDS_WITH_CHIEF: "1", **quiet}
    plain = {key: defaults[key] for key in defaults if key not in job.environment} | backup
    found: list[dict[str, Any]] = [{"name": key, "value": value.replace("$", "$$")} for key, value in plain.items()]
    for key in job.environment:
        if key not in backup:  # The flag wins, as in the launcher.
            found.append({"name": key, "valueFrom": {"secretKeyRef": {"name": f"{name}-env", "key": key}}})
    return found


def _backup(job: Job) -> dict[str, str]:
    """Returns the variables for `--backup_dir` and `--backup_freq`. A relative folder is in the working folder of the pods."""
    given = dict(flag.removeprefix("--").partition("=")[::2] for flag in job.flags)
    variables = {}
    if "backup_dir" in given:
        variables[FOLDER] = posixpath.join(job.options.get("kubernetes_folder", ""), given["backup_dir"])
    if "backup_freq" in given:
        variables[FREQUENCY] = given["backup_freq"]
    return variables


def _secret(job: Job, name: str) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": f"{name}-env", "labels": {INSTANCE: name}}
    if namespace := job.options.get("kubernetes_namespace"):
        metadata["namespace"] = namespace
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": dict.fromkeys(job.environment, "")}


def _pod_of_user(job: Job) -> dict[str, Any]:
    """Returns the content of the file of `--kubernetes_pod`: fields of a pod's `spec`."""
    path = job.options.get("kubernetes_pod")
    if path is None:
        return {}
    import yaml

    try:
        content: Any = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise _error("pod", f"{path} cannot be read: {' '.join(str(error).split())}") from error
    containers = content.get("containers", []) if isinstance(content, dict) else None
    if not isinstance(containers, list) or not all(isinstance(entry, dict) for entry in containers) or "spec" in content:
        raise _error("pod", f"{path}: expected the fields of a pod's spec: `nodeSelector: {{...}}`, `containers: [{{...}}]`")
    for entry in containers[:1]:
        entry.setdefault("name", "tensorflow")
        if entry["name"] != "tensorflow":
            raise _error("pod", f"{path}: the first container is that of the program; its name is tensorflow, or absent")
    fields: dict[str, Any] = content
    return fields


def _merged(theirs: Any, ours: Any) -> Any:
    """Returns both values; where they contradict each other, ours. Entries of lists that have names are merged by name."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        return {
            key: _merged(theirs[key], ours[key]) if key in theirs and key in ours else ours.get(key, theirs.get(key))
            for key in {**ours, **theirs}
        }
    if isinstance(theirs, list) and isinstance(ours, list) and all(_names(theirs)) and all(_names(ours)):
        by_name = {entry["name"]: entry for entry in theirs}
        mine = [_merged(by_name[entry["name"]], entry) if entry["name"] in by_name else entry for entry in ours]
        return [*mine, *(entry for entry in theirs if entry["name"] not in set(_names(ours)))]
    return ours


def _names(entries: list[Any]) -> Iterator[str | None]:
    return (entry.get("name") if isinstance(entry, dict) else None for entry in entries)


def _error(option: str, text: str) -> ClusterError:
    return Source("flags", f"--kubernetes_{option}").error(text)


def names_of_tasks(objects: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the tasks that objects of Kubernetes start, `job:index`."""
    names: list[str] = []
    for entry in objects:
        spec = entry["spec"]
        if entry["kind"] == "Job":
            role = entry["metadata"]["labels"]["app.kubernetes.io/component"]
            names += [f"{role}:{index}" for index in range(spec["completions"])]
        elif entry["kind"] == "TFJob":
            for kind, replicas in spec["tfReplicaSpecs"].items():
                names += [f"{TF_JOBS[kind]}:{index}" for index in range(replicas["replicas"])]
        else:
            names += [f"worker:{index}" for index in range(spec["trainer"]["numNodes"])]
    return names
