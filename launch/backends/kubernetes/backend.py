"""The back end `kubernetes`: the verbs of `Detached` for jobs of Kubernetes."""

import contextlib
import dataclasses
import importlib.util
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

from tfdist.cluster import Cluster
from tfdist.dialects import read
from tfdist.errors import ClusterError, Source
from tfdist.extras import pip_install
from tfdist.launch.backends.interface import Backend, BackendError, LogLine, NoAnswerError, Plan
from tfdist.launch.backends.kubernetes.logs import PodLogs, whole_lines
from tfdist.launch.backends.kubernetes.manifests import INSTANCE, KINDS, TRAINS, manifest, names_of_tasks, objects
from tfdist.launch.backends.kubernetes.server import NotFound, Server
from tfdist.launch.backends.kubernetes.state import container_of, newest, state_of
from tfdist.launch.backends.outage import Outage
from tfdist.launch.jobs.job import Job
from tfdist.launch.jobs.job_status import JobStatus, State, TaskStatus

POLL_SECONDS = 2.0

_WORKLOADS = {"job": "Job", "tfjob": "TFJob", "trainjob": "TrainJob"}
_OPERATORS = {"TFJob": "Kubeflow's training operator", "TrainJob": "Kubeflow's Trainer"}
_WITHOUT_EFFECT = (
    "log_dir",
    "summary",
    "max_restarts",
    "task_restarts",
    "restart_window",
    "stall_timeout",
    "start_timeout",
    "step_timeout",
    "grace_period",
    "tensorboard",
    "fail_at",
)
"""Flags of what the launcher does, which here does not run beside the tasks."""


def plan(job: Job) -> Plan:
    """Plans a job of Kubernetes. The manifest is `Plan.request`."""
    kind = job.options.get("kubernetes_kind", "job")
    if kind not in KINDS:
        raise Source("flags", "--kubernetes_kind").error(f"{kind!r} is not one of {', '.join(KINDS)}")
    if "kubernetes_runtime" in job.options and kind != "trainjob":
        raise Source("flags", "--kubernetes_runtime").error("only --kubernetes_kind trainjob has a runtime")
    given = {flag.lstrip("-").partition("=")[0] for flag in job.flags}
    ignored = [f"--{name}" for name in _WITHOUT_EFFECT if name in given]
    if ignored:
        raise Source("flags", ignored[0]).error("the launcher does not supervise jobs of --backend kubernetes; leave it out")
    request = manifest(job)
    names = read(request)  # Its hosts are the names of the pods.
    assert isinstance(names, Cluster)
    pods = {task.name: task for task in names.addressed().tasks}
    tasks = (dataclasses.replace(task, host=pods[task.name].host, port=pods[task.name].port) for task in job.cluster.tasks)
    return Plan(
        dataclasses.replace(job, cluster=dataclasses.replace(job.cluster, tasks=tuple(tasks))),
        request=request,
        refusal=_refusal(job),
    )


def _refusal(job: Job) -> ClusterError | None:
    if "kubernetes_image" not in job.options:
        return Source("flags", "--kubernetes_image").error(
            "--backend kubernetes needs the image of the pods, which holds Python, tfdist and the program"
        )
    if job.cluster.job("evaluator") and not job.cluster.job_dir:
        return Source("flags", "--job_dir").error("an evaluator needs a folder that its pod and the chief's share")
    if importlib.util.find_spec("kubernetes") is None:
        return Source("flags", "--backend kubernetes").error(f"it needs the package kubernetes: {pip_install('kubernetes')}")
    return None


class Pods:
    """Jobs of Kubernetes: the verbs of `Detached`. An id is `[CONTEXT/]NAMESPACE/KIND/NAME`."""

    def __init__(self) -> None:
        self._cancelled: set[str] = set()  # By this process: nothing is left by which Kubernetes could tell.

    def submit(self, plan: Plan) -> str:
        """See `Detached`. What was created before an error is deleted, and so is what may have been."""
        options = plan.job.options
        server = Server(options.get("kubernetes_context"), options.get("kubernetes_namespace"))
        entries = objects(plan.request, plan.job.environment)
        owner = next(entry for entry in entries if entry["kind"] in _OPERATORS or entry["kind"] == "Job")
        created: list[Mapping[str, Any]] = []
        try:
            _create(server, entries, owner, created, has_own_name="kubernetes_name" in options)
        except BaseException as error:
            for entry in reversed(created):
                with contextlib.suppress(BackendError):
                    server.delete(entry["kind"], entry["metadata"]["name"])
            if isinstance(error, NotFound) and owner["kind"] in _OPERATORS:
                raise BackendError(
                    f"this cluster has no {owner['kind']}; install {_OPERATORS[owner['kind']]}, or use --kubernetes_kind job"
                ) from error
            raise
        context = f"{quote(server.context, safe=':@/')}/" if server.context else ""
        name = owner["metadata"]["labels"][INSTANCE]
        return f"{context}{server.namespace}/{options.get('kubernetes_kind', 'job')}/{name}"

    def status(self, job_id: str) -> JobStatus:
        """See `Detached`."""
        if job_id in self._cancelled:
            return JobStatus(State.CANCELLED, reason="its objects are deleted", exit_code=143)
        return _SubmittedJob(job_id).status()

    def logs(self, job_id: str, task: str | None, follow: bool) -> Iterator[LogLine]:
        """See `Detached`. When it follows, it also says what tasks wait for."""
        job = _SubmittedJob(job_id)
        if not follow:
            _check_task(task, names_of_tasks(job.workloads()))
            for name, pod in newest(job.pods(task)).items():
                with contextlib.suppress(BackendError):  # A pod that has not run.
                    lines = whole_lines(job.server.log(pod["metadata"]["name"], container_of(pod), follow=False))
                    yield from (LogLine(name, line.partition(" ")[2]) for line in lines)
            return
        outage = Outage()
        while True:
            try:
                known = names_of_tasks(job.workloads())
                break
            except NoAnswerError as error:
                if shown := outage.without_answer(error):
                    yield LogLine("", f"tfdist: {shown}")
                time.sleep(POLL_SECONDS)
        _check_task(task, known)
        yield from _followed(job, task, outage)

    def cancel(self, job_id: str) -> None:
        """See `Detached`. Deletes the owner, and Kubernetes everything that it owns."""
        job = _SubmittedJob(job_id)
        job.server.delete(job.kind, job.workloads()[0]["metadata"]["name"])
        self._cancelled.add(job_id)


def _check_task(task: str | None, known: list[str]) -> None:
    if task is not None and task not in known:
        raise BackendError(f"this job has no task {task!r}; it has {', '.join(known)}")


def _followed(job: "_SubmittedJob", task: str | None, outage: Outage) -> Iterator[LogLine]:
    """Yields the lines of a job, or of one of its tasks, until that has ended, and what tasks wait for."""
    streams, said = PodLogs(job.server), ""
    try:
        while True:
            try:
                status = job.status()
                pods = job.pods(task)
                shown = outage.answered()
            except NoAnswerError as error:
                if shown := outage.without_answer(error):
                    yield LogLine("", f"tfdist: {shown}")
                yield from streams.lines(POLL_SECONDS)
                continue
            except NotFound:
                yield LogLine("", "tfdist: the job is gone: somebody has cancelled it")
                return
            if shown:
                yield LogLine("", f"tfdist: {shown}")
            streams.follow(pods)
            if status.reason != said and not status.state.is_final:
                said = status.reason
                yield LogLine("", f"tfdist: {status.state}{f': {said}' if said else ''}")
            if status.state.is_final or (task is not None and _has_ended(status, task)):
                yield from streams.rest(pods)
                return
            yield from streams.lines(POLL_SECONDS)
    finally:
        streams.close()


def _has_ended(status: JobStatus, name: str) -> bool:
    tasks: dict[str, TaskStatus] = {task.name: task for task in status.tasks}
    return tasks[name].state.is_final


def _create(
    server: Server,
    entries: Sequence[Mapping[str, Any]],
    owner: Mapping[str, Any],
    created: list[Mapping[str, Any]],
    has_own_name: bool,
) -> None:
    """Creates the objects of a job: the owner when all that its pods need is there. It then owns the others.

    Args:
        server: the API server.
        entries: the objects.
        owner: the one among them that owns the others.
        created: gets the objects to delete after an error, as soon as they may exist.
        has_own_name: whether the user has chosen the name. An object of this name may then be that of another job.
    """

    def create(entry: Mapping[str, Any]) -> dict[str, Any]:
        created.append(entry)
        try:
            return server.create(entry)
        except BaseException as error:
            is_refused = isinstance(error, BackendError) and not isinstance(error, NoAnswerError)
            if is_refused or has_own_name:
                created.pop()
            raise

    before = [entry for entry in entries if entry["kind"] in ("Service", "Secret")]
    for entry in before:
        create(entry)
    stored = create(owner)
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": stored["metadata"]["uid"],
    }
    for entry in before:
        server.set_owner(entry, reference)
    for entry in entries:
        if entry is not owner and entry not in before:
            metadata = {**entry["metadata"], "ownerReferences": [reference]}
            server.create({**entry, "metadata": metadata})


class _SubmittedJob:
    """A job by its id: the server where it is, and the kind of its workloads."""

    def __init__(self, job_id: str) -> None:
        parts = job_id.rsplit("/", 3)
        if len(parts) < 3 or parts[-2] not in KINDS or not all(parts):
            raise BackendError(f"{job_id!r} is not an id of a job of Kubernetes; expected CONTEXT/NAMESPACE/KIND/NAME")
        context, (namespace, kind, self._name) = unquote("".join(parts[:-3])), parts[-3:]
        self.kind = _WORKLOADS[kind]
        self.server = Server(context or None, namespace)

    def workloads(self) -> list[dict[str, Any]]:
        """Returns its Jobs, the owner first; or its TFJob or TrainJob. Raises NotFound if there is none."""
        if self.kind != "Job":
            return [{**self.server.get(self.kind, self._name), "kind": self.kind}]
        jobs = self.server.list("Job", labelSelector=f"{INSTANCE}={self._name}")
        jobs = [each for each in jobs if TRAINS in each["metadata"].get("annotations", {})]  # Helm, too, uses this label.
        if not jobs:
            raise NotFound(f"Kubernetes has no job {self._name} in the namespace {self.server.namespace} (any more)")
        return sorted(jobs, key=lambda entry: "ownerReferences" in entry["metadata"])

    def pods(self, task: str | None = None) -> list[Mapping[str, Any]]:
        """Returns its pods, or those of one task."""
        label = "jobset.sigs.k8s.io/jobset-name" if self.kind == "TrainJob" else INSTANCE
        pods = self.server.list("Pod", labelSelector=f"{label}={self._name}")
        if self.kind == "Job":
            pods = [pod for pod in pods if any(map(self._is_own, pod["metadata"].get("ownerReferences", ())))]
        return [pod for pod in pods if task is None or newest([pod]).keys() == {task}]

    def _is_own(self, owner: Mapping[str, Any]) -> bool:
        return owner["kind"] == "Job" and str(owner["name"]).startswith(f"{self._name}-")

    def status(self) -> JobStatus:
        """Returns its state."""
        workloads = self.workloads()
        pods = self.pods()
        events: list[dict[str, Any]] = []
        if any(pod.get("status", {}).get("phase", "Pending") == "Pending" for pod in pods) or not pods:
            with contextlib.suppress(BackendError):  # Not every user may read events.
                events = self.server.list("Event", fieldSelector="type=Warning")
        events.sort(key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))
        return state_of(workloads, pods, events)


BACKEND = Backend(
    name="kubernetes",
    title="pods of a cluster of Kubernetes",
    plan=plan,
    runs=Pods(),
    packages=("kubernetes",),
    options={
        "kubernetes_image": "Image of the pods: with Python, tfdist and the program. Always needed.",
        "kubernetes_folder": "Working folder in the image, where the program is. Default: that of the image.",
        "kubernetes_python": "Python in the image. Default: python.",
        "kubernetes_kind": "What is submitted: job (indexed Jobs and a Service), tfjob or trainjob (Kubeflow's). Default: job.",
        "kubernetes_namespace": "Namespace. Default: that of the context.",
        "kubernetes_context": "Context of the kubeconfig. Default: the current one; inside a pod, that of its service account.",
        "kubernetes_name": "Name of the job, with which the names of its objects begin. Default: tfdist- and six hex digits.",
        "kubernetes_pod": "YAML file with further fields of the pods' spec: resources, volumes, nodeSelector.",
        "kubernetes_runtime": "Name of the ClusterTrainingRuntime of a TrainJob.",
    },
)
