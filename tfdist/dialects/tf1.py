"""TensorFlow 1: `--ps_hosts --worker_hosts --job_name --task_index`, the flags of its distributed training programs.

Sources of the names: tensorflow r1.15 `tools/dist_test/python/mnist_replica.py` and the page "Distributed TensorFlow" of r1.x;
tensorflow/benchmarks `scripts/tf_cnn_benchmarks/benchmark_cnn.py`. Every program defined these flags itself, so the flags
identify the command line, whatever the program is called. They may also be the keys of a file or dict.

Workers are asynchronous unless a flag says that they step together (`--sync_replicas`). Those of `tf_cnn_benchmarks.py` step
together unless a flag says that they do not (`--cross_replica_sync`, which is true there).
"""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from tfdist.cluster import Cluster, Task
from tfdist.dialects.dialect import CommandReader, Dialect, TextReader
from tfdist.dialects.parsing.addresses import tensorflow_address
from tfdist.dialects.parsing.command_line import names, options
from tfdist.dialects.parsing.document import MAX_GPUS_PER_TASK, MAX_TASKS, Document, close, shown
from tfdist.dialects.parsing.shell import has_variable
from tfdist.dialects.parsing.values import Values, scalar_text
from tfdist.errors import ClusterError, Source, nearest
from tfdist.rank_info import UnplacedError

NAME = "tf1"

_HOSTS = {
    "chief_hosts": "chief",
    "master_hosts": "chief",
    "worker_hosts": "worker",
    "ps_hosts": "ps",
    "evaluator_hosts": "evaluator",
}
_OF_TASK = ("job_name", "task_index", "task_id")
_SYNCHRONOUS = ("sync_replicas", "issync")
WORDS = frozenset((*_OF_TASK, "num_gpus")) | frozenset(_HOSTS) | frozenset(_SYNCHRONOUS)
MARKS = names("ps_hosts worker_hosts")
_BENCHMARK = "tf_cnn_benchmarks.py"
"""The program in which `--num_gpus` is the number of one worker's GPUs. In others it may be that of the machine."""
_BENCHMARK_SYNCHRONOUS = "cross_replica_sync"


def looks_like(content: "str | Mapping[Any, Any]") -> bool:
    """Returns whether this is a mapping with the hosts of a job."""
    return not isinstance(content, str) and not MARKS.isdisjoint(content)


def parse(document: Document) -> Cluster:
    """Reads a mapping of the flags; others are ignored. Raises ClusterError for bad values."""
    source = Source(NAME, document.name)
    texts = {}
    for key, value in document.mapping.items():
        line = document.lines.get((key,))
        if key not in WORDS:
            if isinstance(key, str) and (meant := close(key, frozenset(_HOSTS), 0.85)):
                raise source.error(f"there is no such flag; did you mean {meant}?", field=key, line=line)
            continue
        if isinstance(value, list | tuple) and all(isinstance(entry, str) for entry in value):
            value = ",".join(value)
        texts[key] = "" if value is None else scalar_text(value, source, key, line)
    return _read(Values(source, texts, ""), is_benchmark=False)


def parse_command(words: list[str], source: Source) -> Cluster:
    """Reads the command line of a training program; other flags are ignored.

    Raises:
        ClusterError: for bad values.
        UnplacedError: for a shell variable in the name or number of the task.
    """
    is_benchmark = any(os.path.basename(word) == _BENCHMARK for word in words)
    valued = WORDS - frozenset(_SYNCHRONOUS) - (frozenset() if is_benchmark else {"num_gpus"})
    switches = frozenset((*_SYNCHRONOUS, _BENCHMARK_SYNCHRONOUS) if is_benchmark else _SYNCHRONOUS)
    return _read(options(words[1:], source, valued, switches, is_program=True), is_benchmark)


def _read(values: Values, is_benchmark: bool) -> Cluster:
    gpus = values.number("num_gpus", 0, most=MAX_GPUS_PER_TASK) if is_benchmark else 0
    tasks: list[Task] = []
    for flag, job in _HOSTS.items():
        entries = [entry.strip() for entry in values.text(flag).split(",") if entry.strip()]
        if len(tasks) + len(entries) * max(1, gpus) > MAX_TASKS:
            raise values.error(flag, f"there are more than {MAX_TASKS} tasks, which is more than tfdist supports")
        if entries and any(task.job == job for task in tasks):
            raise values.error(flag, f"the {job} is given by two flags; keep one of them")
        width = 0 if job == "ps" else gpus
        for index, entry in enumerate(entries):
            host, port = tensorflow_address(entry, lambda message, flag=flag: values.error(flag, message))  # type: ignore[misc]
            tasks.append(Task(job, index, host, port, max(1, width), width))
    if not tasks:
        raise values.error("worker_hosts", "it names no host; expected host:port,host:port")
    workers = sum(task.slots for task in tasks if task.job == "worker")
    is_synchronous = any(map(values.flag, _SYNCHRONOUS)) or (is_benchmark and values.flag(_BENCHMARK_SYNCHRONOUS, True))
    has_ps = any(task.job == "ps" for task in tasks)
    groups = (tuple(range(workers)),) if is_synchronous and has_ps and workers else ()
    cluster = Cluster(tuple(tasks), worker_groups=groups, source=values.source)
    try:
        return dataclasses.replace(cluster, task=_task(values, tasks))
    except ClusterError as fault:
        if any(has_variable(values.texts.get(name, "")) for name in _OF_TASK):
            raise UnplacedError(fault, cluster) from None  # A script for each of the tasks.
        raise


def _task(values: Values, tasks: list[Task]) -> tuple[str, int] | None:
    """Returns the task of `--job_name` and `--task_index`; None if neither is given."""
    name = values.text("job_name")
    index = next((values.number(flag) for flag in ("task_index", "task_id") if values.text(flag)), 0)
    if not name:
        return None
    job = "chief" if name == "master" else name
    jobs = list(dict.fromkeys(task.job for task in tasks))
    if job not in jobs:
        raise values.error("job_name", f"{shown(name)} has no hosts here; the jobs are {', '.join(jobs)}{nearest(job, jobs)}")
    count = sum(task.job == job for task in tasks)
    if index >= count:
        raise values.error("task_index", f"{index} is too high; there are {count} {job} tasks, from 0")
    return job, index


DIALECT = Dialect(
    name=NAME,
    title="TensorFlow 1",
    example="TensorFlow 1's flags (python train.py --ps_hosts=a:2222 --worker_hosts=b:2222 --job_name=worker --task_index=0)",
    text=TextReader(parse, words=WORDS, marks=MARKS, is_mapping=True, looks_like=looks_like),
    command=CommandReader((), parse_command, options=MARKS),
)
