"""`state_of`: the state of a job in plain words, from what Kubernetes says about its objects, pods and events."""

import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tfdist.launch.backends.kubernetes.manifests import REQUIRED, TRAINS, names_of_tasks
from tfdist.launch.jobs.job_status import JobStatus, State, TaskStatus
from tfdist.messages import printable
from tfdist.strategies.runtime.server import EXIT_CHIEF_FAILED

_PULL = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"}
_INDEX_KEYS = ("batch.kubernetes.io/job-completion-index", "training.kubeflow.org/replica-index")
_NODE_GONE = "Kubernetes has taken its node away"
_SUCCEEDED, _FAILED = ("Complete", "Succeeded"), ("Failed", "FailureTarget")


def task_of(pod: Mapping[str, Any]) -> str:
    """Returns the task of a pod, `job:index`."""
    metadata = pod["metadata"]
    marks = {**metadata.get("annotations", {}), **metadata.get("labels", {})}
    index = next((marks[key] for key in _INDEX_KEYS if key in marks), "0")
    role = marks.get("app.kubernetes.io/component") or marks.get("training.kubeflow.org/replica-type", "worker")
    return f"{'chief' if role == 'master' else role}:{index}"


def container_of(pod: Mapping[str, Any]) -> str:
    """Returns the name of the container that runs the program."""
    names = [str(each["name"]) for each in pod["spec"]["containers"]]
    return next((name for name in ("tensorflow", "node") if name in names), names[0])


def newest(pods: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Returns the latest pod of each task: Kubernetes replaces pods that it has lost."""
    found: dict[str, Mapping[str, Any]] = {}
    for pod in sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp", ""))):
        found[task_of(pod)] = pod
    return found


def state_of(
    workloads: Sequence[Mapping[str, Any]], pods: Iterable[Mapping[str, Any]], events: Iterable[Mapping[str, Any]]
) -> JobStatus:
    """Returns the state of a job.

    Args:
        workloads: its Jobs, or its TFJob or TrainJob; the first owns the others.
        pods: its pods.
        events: warnings of its namespace, the oldest first.
    """
    warnings = {_identity(event["involvedObject"]): printable(str(event.get("message", ""))) for event in events}
    by_task = newest(pods)
    ended = dict(ended_job for each in workloads if (ended_job := _ended_job(each)))
    tasks = [
        _task(name, by_task.get(name), warnings, ended.get(name.partition(":")[0], "")) for name in names_of_tasks(workloads)
    ]
    active = [task for task in tasks if task.name in by_task and _is_active(by_task[task.name])]
    training = [each for each in workloads if _annotation(each, TRAINS)]
    # The owner, which trains, goes first.
    if not training or any("deletionTimestamp" in each["metadata"] for each in workloads):
        return JobStatus(State.CANCELLED, tuple(tasks), "its objects are being deleted", 143)
    required = [each for each in workloads if _annotation(each, REQUIRED)]
    if all(_has(each, _SUCCEEDED) for each in training):
        if not active:
            return JobStatus(State.SUCCEEDED, tuple(tasks), exit_code=0)
        return JobStatus(State.RUNNING, tuple(tasks), f"the training has ended; still running: {_names(active)}")
    failed = [each for each in (*training, *required) if _has(each, _FAILED)]
    if failed:
        reason, code = _root_cause(tasks, by_task, failed[0])
        if not active:
            return JobStatus(State.FAILED, tuple(tasks), reason, code)
        return JobStatus(State.RUNNING, tuple(tasks), f"{reason}; still running: {_names(active)}; tfdist cancel ends them")
    waiting = [task for task in tasks if task.state in (State.QUEUED, State.STARTING)]
    if tasks and not waiting:
        return JobStatus(State.RUNNING, tuple(tasks), _first_note([task for task in tasks if task.state == State.RUNNING]))
    why = _first_note(waiting) or _why_no_pods(workloads, warnings)
    return JobStatus(State.QUEUED if len(waiting) == len(tasks) else State.STARTING, tuple(tasks), why)


def _first_note(tasks: Iterable[TaskStatus]) -> str:
    return next((f"{task.name}: {task.note}" for task in tasks if task.note), "")


def _why_no_pods(workloads: Sequence[Mapping[str, Any]], warnings: Mapping[str, str]) -> str:
    """Returns why Kubernetes creates no pods for a job, as far as it says so."""
    for workload in workloads:
        if (key := _identity(workload["metadata"])) in warnings:
            return f"its pods cannot be created: {warnings[key]}"
    return "it is suspended: by a queue such as Kueue, or by somebody" if _is_suspended(workloads) else ""


def _task(name: str, pod: Mapping[str, Any] | None, warnings: Mapping[str, str], end_of_job: str) -> TaskStatus:
    if pod is None:
        return TaskStatus(name, State.FAILED if end_of_job else State.QUEUED, note=end_of_job)
    status = pod.get("status", {})
    where = str(pod["spec"].get("nodeName", ""))
    container = _container_status(pod)
    restarts = int(container.get("restartCount", 0))
    phase = status.get("phase", "Pending")
    ended = _ended(container)
    if phase == "Succeeded":
        return TaskStatus(name, State.SUCCEEDED, where, 0, restarts)
    if phase == "Failed":
        code, words = _end_in_words(status, ended)
        return TaskStatus(name, State.FAILED, where, code, restarts, words)
    note, is_waiting = _waiting(pod, container, ended)
    if is_waiting:
        is_plain = note in ("", "its container is being created")
        note = warnings.get(_identity(pod["metadata"]), note) if is_plain else note
        return TaskStatus(name, State.STARTING if where else State.QUEUED, where, None, restarts, note)
    return TaskStatus(name, State.RUNNING, where, None, restarts, _deletion(pod))


def _deletion(pod: Mapping[str, Any]) -> str:
    """Returns why a pod that has not ended is being deleted; empty if it is not. On a lost node it stays so forever."""
    if "deletionTimestamp" not in pod["metadata"]:
        return ""
    disruption = _disruption(pod.get("status", {}))
    return f"{_NODE_GONE}: {_text(disruption)}" if disruption is not None else "its pod is being deleted"


def _waiting(pod: Mapping[str, Any], container: Mapping[str, Any], ended: Mapping[str, Any]) -> tuple[str, bool]:
    """Returns what a pod waits for, in words, and whether it waits at all."""
    status = pod.get("status", {})
    for condition in status.get("conditions", ()):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"waits for a node: {_text(condition)}", True
    waiting = container.get("state", {}).get("waiting", {})
    reason = waiting.get("reason", "")
    if reason in _PULL:
        image = next(each["image"] for each in pod["spec"]["containers"] if each["name"] == container_of(pod))
        return f"its image {image} cannot be pulled: {_text(waiting)}", True
    if reason == "CrashLoopBackOff":
        _, words = _end_in_words({}, ended)
        return f"its program fails again and again: {words}; Kubernetes starts it again later", True
    if reason in ("ContainerCreating", "PodInitializing"):
        return "its container is being created", True
    if reason:
        return f"its container cannot be started: {reason}, {_text(waiting)}", True
    return "", status.get("phase", "Pending") == "Pending"


def _end_in_words(status: Mapping[str, Any], ended: Mapping[str, Any]) -> tuple[int, str]:
    """Returns the exit code of a task, minus the number of the signal that killed it, and its end in words."""
    code = int(ended.get("exitCode", 1))
    reason = status.get("reason") or ended.get("reason", "")
    disruption = _disruption(status)
    if reason == "OOMKilled":
        return -signal.SIGKILL, "it used more memory than its limit allows, and was killed (OOMKilled)"
    if disruption is not None or reason in ("Evicted", "NodeLost", "Preempting", "Shutdown", "Terminated"):
        text = _text(disruption) if disruption is not None else printable(str(status.get("message", reason)))
        return -signal.SIGKILL if code > 128 or not ended else code, f"{_NODE_GONE}: {text}"
    if not ended:
        return 1, printable(f"{reason or 'it failed'}: {status.get('message', '')}".rstrip(": "))
    if reason in ("ContainerCannotRun", "StartError"):
        return code, f"it could not be started: {_text(ended)}"
    if code > 128:
        try:
            return 128 - code, f"it was killed by {signal.Signals(code - 128).name}"
        except ValueError:
            pass
    return code, f"it exited with {code}"


def _disruption(status: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return next((each for each in status.get("conditions", ()) if each.get("type") == "DisruptionTarget"), None)


def _root_cause(
    tasks: Sequence[TaskStatus], pods: Mapping[str, Mapping[str, Any]], failed: Mapping[str, Any]
) -> tuple[str, int]:
    """Returns why the job failed, and its exit code: the failure that came first and does not follow from the chief's."""
    ends = [
        (task.exit_code == EXIT_CHIEF_FAILED, str(_ended(_container_status(pods[task.name])).get("finishedAt", "")), task)
        for task in tasks
        if task.state == State.FAILED and task.name in pods
    ]
    if not ends:
        return _without_end(tasks, pods, failed), 1
    _, _, first = min(ends, key=lambda each: each[:2])
    code = first.exit_code or 1
    if code == EXIT_CHIEF_FAILED:  # The chief's own process ends a little later.
        return f"{first.name} has ended because the program of the chief failed", code
    return f"{first.name} failed first: {first.note}", code if code >= 0 else 128 - code


def _without_end(tasks: Sequence[TaskStatus], pods: Mapping[str, Mapping[str, Any]], failed: Mapping[str, Any]) -> str:
    """Returns why the job failed, where no pod tells how it ended: a deleted pod counts as failed."""
    for task in tasks:
        if task.name in pods and (why := _deletion(pods[task.name])):
            return f"{task.name} failed first: {why}"
    role = failed["metadata"].get("labels", {}).get("app.kubernetes.io/component")
    gone = [task for task in tasks if task.name.partition(":")[0] == role and task.name not in pods]
    if not gone or not any(each.get("reason") == "BackoffLimitExceeded" for each in failed["status"]["conditions"]):
        return _end_of_job(failed)
    whose = gone[0].name if len(gone) == 1 else f"a {role}"
    return f"the pod of {whose} was deleted, by somebody or to empty its node, which counts as its failure"


def _end_of_job(failed: Mapping[str, Any]) -> str:
    condition = next(each for each in failed["status"]["conditions"] if each["type"] in _FAILED)
    return f"Kubernetes has ended it: {_text(condition)}"


def _ended_job(entry: Mapping[str, Any]) -> tuple[str, str] | None:
    """Returns the role of the tasks of a Job that has failed, and why. Kubernetes has deleted those of its pods that ran."""
    if entry["kind"] != "Job" or not _has(entry, _FAILED):
        return None
    return entry["metadata"]["labels"]["app.kubernetes.io/component"], _end_of_job(entry)


def _container_status(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    name = container_of(pod)
    return next((each for each in pod.get("status", {}).get("containerStatuses", ()) if each["name"] == name), {})


def _ended(container: Mapping[str, Any]) -> Mapping[str, Any]:
    for state in ("state", "lastState"):
        if found := container.get(state, {}).get("terminated"):
            return dict(found)
    return {}


def _is_active(pod: Mapping[str, Any]) -> bool:
    """Returns whether a pod goes on until somebody ends it. One on a lost node is being deleted, and never ends."""
    has_ended = pod.get("status", {}).get("phase", "Pending") in ("Succeeded", "Failed")
    return not has_ended and "deletionTimestamp" not in pod["metadata"]


def _identity(entry: Mapping[str, Any]) -> str:
    """Returns what tells an object from an earlier one of its name, whose events stay for an hour."""
    return str(entry.get("uid", entry["name"]))


def _annotation(entry: Mapping[str, Any], key: str) -> bool:
    """Returns what an annotation says of a Job; TFJob and TrainJob have none, and are the whole job."""
    return bool(entry["metadata"].get("annotations", {}).get(key, "true") == "true")


def _has(entry: Mapping[str, Any], types: tuple[str, ...]) -> bool:
    conditions = entry.get("status", {}).get("conditions") or ()
    return any(each["type"] in types and each["status"] == "True" for each in conditions)


def _is_suspended(workloads: Iterable[Mapping[str, Any]]) -> bool:
    return any(_has(each, ("Suspended",)) for each in workloads)


def _text(entry: Mapping[str, Any]) -> str:
    return printable(" ".join(str(entry.get("message") or entry.get("reason") or "").split()))


def _names(tasks: Sequence[TaskStatus]) -> str:
    return ", ".join(task.name for task in tasks[:4]) + (", ..." if tasks[4:] else "")
