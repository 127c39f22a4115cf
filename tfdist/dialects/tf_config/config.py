"""Reads TF_CONFIG and cluster specifications, in all variants that schedulers write.

Sources of the rules: TensorFlow 2.21 `distribute/cluster_resolver/tfconfig_cluster_resolver.py`,
`distribute/multi_worker_util.py` and `training/server_lib.py`; kubeflow/training-operator
`pkg/controller.v1/tensorflow/tensorflow.go` v1.1 to v1.9; AI Platform Training "distributed training details".
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tfdist.cluster import EXTENSION, JOBS, Cluster, Task
from tfdist.dialects.parsing.addresses import tensorflow_address
from tfdist.dialects.parsing.document import MAX_TASKS, Document, close, shown
from tfdist.dialects.tf_config.extension import Extension, is_int
from tfdist.dialects.vertex.pools import has_reduction_server
from tfdist.errors import ClusterError, Source, nearest
from tfdist.synchronization import DEFAULTS, default_sync_period

NAME = "tf_config"

_JOB_NAMES = (*JOBS, "master")
_KEYS = frozenset({"cluster", "sparseCluster", "task", "rpc_layer", "environment", "job", EXTENSION})
_OTHER_KEYS = frozenset({"session_master", "eval_session_master", "master", "model_dir", "service", "trial", "cloud"})
WORDS = _KEYS | frozenset(_JOB_NAMES)

MARKS = frozenset({"cluster", "sparseCluster", EXTENSION, *_JOB_NAMES})

_TASK_NAME = re.compile(rf"(?:{'|'.join(_JOB_NAMES)}):[0-9]{{1,9}}", re.ASCII)
_INDEX = re.compile(r"[0-9]{1,9}", re.ASCII)
_PROTOCOL = re.compile(r"[a-z][a-z0-9+.-]{0,30}", re.ASCII)


def looks_like(content: "str | Mapping[Any, Any]") -> bool:
    """Returns whether this is a mapping with the task of TF_CONFIG, which may be its only key, or TF_CONFIG of all tasks."""
    if isinstance(content, str):
        return False
    if _is_of_all_tasks(content):
        return True
    task = content.get("task")
    return isinstance(task, Mapping) and task.get("type") in _JOB_NAMES and content.keys() <= _KEYS | _OTHER_KEYS


def parse(document: Document) -> Cluster:
    """Reads TF_CONFIG, that of all tasks as `tfdist.translate` prints it, or a bare cluster specification.

    Raises:
        ClusterError: for a bad one, and for tasks of different clusters.
    """
    if not _is_of_all_tasks(document.mapping):
        return _Reader(document).cluster()
    (first, config), *others = document.mapping.items()
    alone = {**config, "task": None}
    other = next((name for name, entry in others if {**entry, "task": None} != alone), None)
    if other is not None:
        raise Source(NAME, document.name).error(
            f"{first} and {other} describe different clusters; give TF_CONFIG of one of them"
        )
    return _Reader(dataclasses.replace(document, mapping=alone, lines={})).cluster()


def _is_of_all_tasks(content: Mapping[Any, Any]) -> bool:
    """Returns whether this is what `write` returns: name of a task -> its TF_CONFIG."""
    return bool(content) and all(
        isinstance(name, str) and _TASK_NAME.fullmatch(name) and isinstance(entry, Mapping) and "cluster" in entry
        for name, entry in content.items()
    )


def from_object(value: object) -> dict[str, Any] | None:
    """Returns TF_CONFIG of a `tf.train.ClusterSpec` or a `ClusterResolver`, None for other objects."""
    if callable(as_dict := getattr(value, "as_dict", None)):
        return {"cluster": as_dict()}
    if not callable(cluster_spec := getattr(value, "cluster_spec", None)):
        return None
    config: dict[str, Any] = {"cluster": cluster_spec().as_dict()}
    task_type, rpc_layer = getattr(value, "task_type", None), getattr(value, "rpc_layer", None)
    if task_type:
        config["task"] = {"type": task_type, "index": getattr(value, "task_id", None)}
    if rpc_layer:
        config["rpc_layer"] = rpc_layer
    return config


class _Reader:
    """Reads one TF_CONFIG."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.source = Source(NAME, document.name)
        self.config = document.mapping
        self.has_counts = False
        self.is_bare = not document.from_environment and not any(key in _KEYS for key in self.config)

    def error(self, message: str, *path: str) -> ClusterError:
        return self.source.error(message, field=".".join(path), line=self.document.lines.get(path))

    def cluster(self) -> Cluster:
        spec, where, task = self._specification()
        # Numbers of tasks in place of addresses, as in the `jobs` of SlurmClusterResolver. TensorFlow's TF_CONFIG has none.
        given = [value for value in spec.values() if value is not None]
        self.has_counts = not self.document.from_environment and all(map(is_int, given))
        extension = self._mapping(EXTENSION) if not self.is_bare else {}
        fields = Extension(extension, self.error)
        jobs = self._jobs(spec, where)
        if jobs.get("ps") and not self.is_bare and has_reduction_server(self.config.get("job")):
            del jobs["ps"]  # Vertex AI's third pool runs Google's Reduction Server, which supports only NCCL.
        partial = where == "sparseCluster" or self._is_view(spec, jobs, task)
        if partial and task and task[0] == "ps" and len(jobs.get("ps", {})) == 1:
            # TFJob shows a dynamic ps only itself: a list with one entry, at any index.
            jobs["ps"] = {task[1]: next(iter(jobs["ps"].values()))}
        self._add_evaluators(jobs, fields)
        tasks = self._tasks(jobs, task, fields)
        sees_itself = task is not None and [entry.job for entry in tasks] == ["evaluator"]
        partial = fields.flag("partial", partial or sees_itself)
        strategy = fields.text("strategy")
        cluster = Cluster(
            tasks=tuple(tasks),
            worker_groups=fields.groups("worker_groups"),
            server_groups=fields.groups("server_groups"),
            separate_servers=fields.flag("separate_servers", True),
            sync_period=fields.number("sync_period") or default_sync_period(strategy),
            synchronization=fields.synchronization(),
            partition=fields.partition(),
            share_memory=fields.flag("share_memory", True),
            job_dir=fields.text("job_dir"),
            strategy=strategy,
            min_workers=fields.number("min_workers"),
            protocol=self._protocol(),
            partial=partial,
            source=self.source,
            task=task,
            says=frozenset((*extension, *extension.get("synchronization", ()))) & {"sync_period", *DEFAULTS},
        )
        fields.check_all_used()
        return cluster

    def _specification(self) -> tuple[Mapping[Any, Any], str, tuple[str, int] | None]:
        """Returns the entries by job, the key of the document that has them, "" if it is they, and the task of this process."""
        if self.is_bare:
            return self.config, "", None
        self._check_keys()
        where = "sparseCluster" if self.config.get("sparseCluster") is not None else "cluster"
        return self._mapping(where), where, self._task()

    def _add_evaluators(self, jobs: dict[str, dict[int, str]], fields: Extension) -> None:
        """Adds the evaluators of the extension: TensorFlow wants none under `cluster`."""
        evaluators = dict(self._entries(fields.evaluators(), (EXTENSION, "evaluators")))
        if evaluators and jobs.get("evaluator"):
            raise self.error("evaluators are given here and under `cluster`; keep one of them", EXTENSION, "evaluators")
        if evaluators:
            jobs["evaluator"] = evaluators

    def _check_keys(self) -> None:
        """Raises ClusterError for a known word in the wrong place, and for a typo. Other keys are ignored, as in TensorFlow."""
        for key, value in self.config.items():
            if not isinstance(key, str):
                raise self.error(f"the key {shown(key)} is not a name; expected cluster, task or rpc_layer")
            if key in _JOB_NAMES and isinstance(value, list | tuple | Mapping):
                raise self.error(f"the job {key} is outside `cluster`; move it inside", key)
            meant = close(key, _KEYS)
            if key not in _KEYS | _OTHER_KEYS and meant:
                raise self.error(f"{shown(key)} is not a key of TF_CONFIG; did you mean {meant}?", key)
        if self._mapping("cluster") and self._mapping("sparseCluster"):
            raise self.error("both cluster and sparseCluster are given; keep one of them", "sparseCluster")

    def _mapping(self, key: str) -> Mapping[Any, Any]:
        value = self.config.get(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self.error(f"{shown(value)} is not an object; expected one such as {{...}}", key)
        return value

    def _protocol(self) -> str:
        value = None if self.is_bare else self.config.get("rpc_layer")
        if value is None:
            return "grpc"
        if not isinstance(value, str) or not _PROTOCOL.fullmatch(value):
            raise self.error(f"{shown(value)} is not a protocol; expected a name such as grpc", "rpc_layer")
        return value

    def _task(self) -> tuple[str, int] | None:
        task = self._mapping("task")
        kind, index = task.get("type"), task.get("index")
        if kind is None or kind == "":
            if index is not None:
                raise self.error(f"the task has the index {shown(index)} but no type; add one of {', '.join(JOBS)}", "task")
            return None
        if not isinstance(kind, str) or kind not in _JOB_NAMES:
            known = ", ".join(JOBS)
            raise self.error(f"{shown(kind)} is not a job; the jobs are {known}{nearest(kind, _JOB_NAMES)}", "task", "type")
        return ("chief" if kind == "master" else kind), 0 if index is None else self._index(index, "task", "index")

    def _index(self, value: object, *path: str) -> int:
        """Returns an index given as 1 or "1". TensorFlow calls int(), which also accepts 1.9 and True."""
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**9:
            return int(value)
        if isinstance(value, str) and _INDEX.fullmatch(value):
            return int(value)
        raise self.error(f"{shown(value)} is not an index; expected a whole number from 0", *path)

    def _jobs(self, spec: Mapping[Any, Any], where: str) -> dict[str, dict[int, str]]:
        """Returns job -> index -> address as it is written, without empty jobs."""
        prefix = (where,) if where else ()
        jobs: dict[str, dict[int, str]] = {}
        total = 0
        has_lists = any(isinstance(entries, list | tuple | Mapping) for entries in spec.values())
        is_mixed = not has_lists and not self.has_counts and not self.document.from_environment
        counted = next((job for job in _JOB_NAMES if is_mixed and is_int(spec.get(job))), None)
        for job, entries in spec.items():
            if not isinstance(job, str) or job not in _JOB_NAMES:
                known = ", ".join(JOBS)
                raise self.error(f"{shown(job)} is not a job; the jobs are {known}{nearest(job, _JOB_NAMES)}", *prefix)
            if counted is not None and not is_int(entries) and entries is not None:
                raise self.error(
                    f"{shown(entries)} is not a number of tasks, as {counted} has; give numbers for all jobs, or addresses",
                    *prefix,
                    job,
                )
            if entries is None and self.has_counts and any(map(is_int, spec.values())):
                # `{"worker": 2, "ps"}` is YAML, and the ps would be left out without a word.
                raise self.error("the number of tasks is missing; write 0 for none", *prefix, job)
            if counted is not None:
                continue
            addresses = dict(self._entries(entries, (*prefix, job)))
            total += len(addresses)
            if total > MAX_TASKS:
                raise self.error(f"there are more than {MAX_TASKS} tasks, which is more than tfdist supports", *prefix)
            if addresses:
                jobs[job] = addresses
        if "master" in jobs:
            if "chief" in jobs:
                raise self.error("both a master and a chief are given, which are the same; keep the chief", *prefix, "master")
            jobs["chief"] = jobs.pop("master")
        for job in ("chief",) if self.has_counts else ("chief", "evaluator"):  # TFDIST_CLUSTER may have CloudML's evaluators.
            if len(jobs.get(job, {})) > 1:
                raise self.error(f"there are {len(jobs[job])} {job} tasks; TensorFlow allows one", *prefix, job)
        return jobs

    def _entries(self, entries: Any, path: tuple[str, ...]) -> Iterator[tuple[int, Any]]:
        if isinstance(entries, Mapping):
            seen: set[int] = set()
            for key, address in entries.items():
                index = self._index(key, *path)
                if index in seen:
                    raise self.error(f"the index {index} is given twice; keep one of them", *path)
                seen.add(index)
                yield index, address
        elif isinstance(entries, list | tuple):
            yield from enumerate(entries)
        elif self.has_counts and is_int(entries) and 0 <= entries <= MAX_TASKS:
            yield from ((index, None) for index in range(entries))
        elif self.has_counts and is_int(entries):
            raise self.error(f"{shown(entries)} is not a number of tasks; expected a whole number from 0 to {MAX_TASKS}", *path)
        elif entries is not None:
            raise self.error(
                f'{shown(entries)} is not a list; expected addresses, ["host:port", ...], or for all jobs numbers of tasks',
                *path,
            )

    def _is_view(self, spec: Mapping[Any, Any], jobs: dict[str, dict[int, str]], task: tuple[str, int] | None) -> bool:
        """Returns whether this is the view of one task of a TFJob with `enableDynamicWorker`, or a specification with holes.

        A worker of such a TFJob sees only itself, as an object with one entry; a ps or a chief sees an empty object of workers.
        """
        workers = spec.get("worker")
        if task is not None and isinstance(workers, Mapping) and len(workers) <= 1:
            return True
        return any(sorted(jobs[job]) != list(range(len(jobs[job]))) for job in jobs if job != "evaluator")

    def _tasks(self, jobs: dict[str, dict[int, str]], task: tuple[str, int] | None, fields: Extension) -> list[Task]:
        where = () if self.is_bare else ("cluster",)
        tasks: list[Task] = []
        for job in JOBS:
            addresses = sorted(jobs.get(job, {}).items())
            slots = fields.slots(job, len(addresses))
            for (index, address), (count, gpus) in zip(addresses, slots, strict=True):
                host, port = self._address(address, *where, job, str(index))
                tasks.append(Task(job, index, host, port, count, gpus))
        if not tasks and (task is None or task in (("chief", 0), ("worker", 0))):
            if self.is_bare:
                raise self.error("the specification has no tasks; it needs at least a chief or a worker")
            named = self._mapping("cluster")
            if named and (task is None or task[0] in named):
                raise self.error("no job in it has a task; add addresses, or give an empty `cluster` for one task", "cluster")
            foreign = [key for key in self.config if key not in _KEYS | _OTHER_KEYS]
            if task is None and foreign and not self.document.from_environment:
                raise self.error(f"`cluster` is empty, and {shown(foreign[0], 30)} is no key of TF_CONFIG; is this TF_CONFIG?")
            return [Task(*(task or ("chief", 0)))]
        if task is not None and len(jobs.get(task[0], ())) > 1 and self._mapping("task").get("index") is None:
            raise self.error(f"there are {len(jobs[task[0]])} {task[0]} tasks; add the index of this one", "task", "index")
        if task is not None and task not in [(entry.job, entry.index) for entry in tasks]:
            self._check_missing_task(tasks, *task)
            # Vertex AI, AI Platform and gcloud keep evaluators out of `cluster`.
            tasks.append(Task(*task))
        return tasks

    def _check_missing_task(self, tasks: list[Task], job: str, index: int) -> None:
        same = [entry for entry in tasks if entry.job == job]
        if same:
            raise self.error(f"the task is {job}:{index}, but `cluster` has {len(same)} {job} tasks, from 0", "task", "index")
        if job != "evaluator":
            have = ", ".join(dict.fromkeys(entry.job for entry in tasks)) or "no tasks"
            raise self.error(f"the task is {job}:{index}, but `cluster` has {have}; add its address there", "task", "type")

    def _address(self, address: object, *path: str) -> tuple[str | None, int | None]:
        if address is None and self.has_counts:
            return None, None
        return tensorflow_address(address, lambda message: self.error(message, *path))
