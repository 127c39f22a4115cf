"""`read`: takes a cluster description in any dialect and any form."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from tfdist.cluster import Cluster, Task
from tfdist.dialects import environment, registry
from tfdist.dialects.commands import stated_jobs
from tfdist.dialects.detection import Detected, detect, detect_launches
from tfdist.dialects.dialect import Described, TextReader
from tfdist.dialects.launched import ASK_SCHEDULERS, read_launches
from tfdist.dialects.parsing.document import Document
from tfdist.errors import ClusterError, Source, UnstatedError, nearest
from tfdist.rank_info import RankInfo, UnplacedError

JOB_DIR = "job_dir"
"""The override that every dialect takes."""

WAYS = (
    "give a file (a SINGA job.conf, a CloudML config.yaml, TF_CONFIG, a host file, ...) or a command line (horovodrun, mpirun, "
    f"torchrun, ...) with --cluster or in {environment.CLUSTER_VARIABLE}, a scale tier with --tier, or start the program "
    "in an environment that describes one (TF_CONFIG, a Slurm step, torchrun, ...)"
)


def read(
    source: object = None, *, hostfile: "str | os.PathLike[str] | None" = None, overrides: Mapping[str, Any] | None = None
) -> Cluster:
    """Reads a cluster description in any dialect.

    Args:
        source: one of
            a path, or text (a str that contains a line break, a `{` or a `: `; bytes are always text);
            the name of a CloudML scale tier, `STANDARD_1` or `standard-1`;
            a dict: numbers of tasks (`{"chief": 1, "worker": 4, "ps": 3}`), TF_CONFIG, a cluster specification, a CloudML Job
            or TrainingInput, a manifest, or the options of another launcher;
            a `tf.train.ClusterSpec` or a `ClusterResolver`; a list of Vertex AI's worker pools;
            a `Cluster`, returned as it is;
            a command line, `horovodrun -np 4 -H a:2,b:2 python train.py`, or a shell script with one; nothing of it is
            executed, and of its variables only literals that are set once are expanded;
            None: the environment of this process, TF_CONFIG for instance.
        hostfile: path of the hosts of a SINGA cluster, one per line.
        overrides: options that win over the description, by the names of their flags: `job_dir` for every dialect, and
            CloudML's (`tier`, `worker_count`, ...). None means absent.

    Returns:
        The cluster.

    Raises:
        ClusterError: if the description cannot be used. The message is one line that says where and why.
        TypeError: if `source` is of none of these types.
    """
    described = description(source, hostfile=hostfile, overrides=overrides)
    if isinstance(described, RankInfo):
        hint = "tfdist.strategy() finds them when it runs on all ranks; to translate it, " if described.store else ""
        raise described.source.error(f"this describes {described.size} ranks without addresses; {hint}name the hosts")
    return described


def description(
    source: object = None, *, hostfile: "str | os.PathLike[str] | None" = None, overrides: Mapping[str, Any] | None = None
) -> Described:
    """Reads a description as `read` does; returns a RankInfo if it gives ranks, but no addresses."""
    options = {name: value for name, value in (overrides or {}).items() if value is not None}
    owners = {name: dialect for dialect, reader in registry.text_readers().items() for name in reader.overrides}
    for name in options:
        if name not in (known := (*owners, JOB_DIR)):
            raise Source("flags", f"--{name}").error(f"there is no such option{nearest(name, known)}")
    job_dir = _job_dir(options.pop(JOB_DIR, None))
    hosts = None if hostfile is None else os.fspath(hostfile)
    if source is None and not _standalone(options):
        source = from_environment()
        if source is None and not options:
            source = environment.find_blank()
        if source is None and not options:
            raise Source("environment", "environment").error(
                f"no cluster is described: neither TF_CONFIG nor another launcher's variables are set; {WAYS}"
            )
    if source is None:
        owner = owners[next(iter(options))]
        described = _parse(Detected(owner, registry.text_readers()[owner], Document("flags")), hosts, options)
    else:
        described = _described(source, hosts, options)
    if job_dir is None or isinstance(described, RankInfo):
        return described
    return dataclasses.replace(described, job_dir=job_dir)


def from_environment() -> Described | None:
    """Returns what `TFDIST_CLUSTER` or the environment of this process describes, or None.

    Raises:
        ClusterError: for a bad one. It names the variable, which may be left over.
    """
    given = os.environ.get(environment.CLUSTER_VARIABLE, "").strip()
    if not given or environment.is_started(os.environ):  # The launcher has another description, or has read this one.
        return environment.find()
    return _given(given, environment.CLUSTER_VARIABLE)


def _given(text: str, place: str) -> Described:
    """Returns what the value of a variable describes. Messages begin with the `place` of the variable."""
    try:
        described = description(text)
    except ClusterError as error:
        is_text, fault = str(error).startswith("<text>:"), str(error).removeprefix("<text>:")
        raise ClusterError(f"{place}:{fault if is_text else f' {fault}'}") from None
    except RecursionError:
        raise ClusterError(f"{place}: these files refer to each other") from None
    name = "" if described.source.name == "<text>" else f": {described.source.name}"
    return dataclasses.replace(described, source=Source(described.source.dialect, f"{place}{name}"))


def _standalone(options: Mapping[str, Any]) -> bool:
    return any(options.keys() & reader.standalone for reader in registry.text_readers().values())


def _described(source: object, hosts: str | None, options: Mapping[str, Any]) -> Described:
    if isinstance(source, Cluster | RankInfo):
        if hosts is not None or options:
            raise _does_not_take(source.source, hosts, options)
        return source
    detected = detect(source)
    if isinstance(detected, Detected):
        return _parse(detected, hosts, options)
    if hosts is not None or options:
        raise _does_not_take(Source(detected.launches[0].dialect, detected.source.name), hosts, options)
    variables = (launch.variables.get(environment.CLUSTER_VARIABLE, "").strip() for launch in detected.launches)
    if (given := next(filter(None, variables), None)) and given != detected.source.name:
        return _given(given, f"{detected.source.name}: {environment.CLUSTER_VARIABLE}")
    return read_launches(detected)


def _parse(detected: Detected, hosts: str | None, options: Mapping[str, Any]) -> Described:
    reader, document = detected.reader, detected.document
    refused = {name: value for name, value in options.items() if name not in reader.overrides}
    bad_hosts = None if reader.takes_hostfile else hosts
    if bad_hosts is not None or refused:
        raise _does_not_take(Source(detected.dialect, document.name), bad_hosts, refused)
    given = reader.refers(document.text)
    if given is not None and given != document.name:  # Its own name asks for what the script says without that.
        return _given(given, f"{document.name}: {environment.CLUSTER_VARIABLE}")
    document = dataclasses.replace(document, hostfile=hosts, overrides=options)
    return _of_script(detected.dialect, reader, document) if reader.is_script else reader.parse(document)


def _of_script(dialect: str, reader: TextReader, document: Document) -> Described:
    """Returns what another launcher in a script describes, else what the script itself does."""
    own: Described | UnstatedError
    try:
        own = reader.parse(document)
    except UnstatedError as error:
        own = error
    started = None if isinstance(own, RankInfo) else _started(dialect, reader, document, own)
    if started is not None:
        return started
    if isinstance(own, UnstatedError):
        raise own
    return own


def _started(dialect: str, reader: TextReader, document: Document, own: Cluster | UnstatedError) -> Cluster | None:
    """Returns the cluster of TF_CONFIG or of the launchers of other dialects in a script; None if there are none, or they ask
    the scheduler."""
    inner = detect_launches(document.text, document.name, reader.variables(document.text))
    launches = [each for each in inner.launches if each.dialect != dialect] if inner is not None else []
    others = [each for each in launches if each.words or each.dialect == stated_jobs(each.variables)]
    if inner is None or not others:
        return None
    tasks = own.tasks if isinstance(own, UnstatedError) else len(own.tasks)
    try:
        has_steps = len(launches) < len(inner.launches)
        started = read_launches(dataclasses.replace(inner, launches=others), tasks, has_steps)
    except UnstatedError:
        return None  # mpirun asks the scheduler.
    except UnplacedError as error:
        started = error.outline  # The script says it when it runs.
    cluster = dataclasses.replace(started.outline() if isinstance(started, RankInfo) else started, task=None)
    if "localhost" in document.text or not all(launch.words[:1] and launch.words[0] in ASK_SCHEDULERS for launch in others):
        return cluster
    # Without hosts of their own they start ranks on the nodes of the job, and not here.
    return dataclasses.replace(cluster, tasks=tuple(_without_localhost(task) for task in cluster.tasks))


def _without_localhost(task: Task) -> Task:
    return dataclasses.replace(task, host=None, port=None) if task.host == "localhost" else task


def _job_dir(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    raise TypeError(f"job_dir is a path, not a {type(value).__name__}")


def _does_not_take(source: Source, hosts: str | None, options: Mapping[str, Any]) -> ClusterError:
    dialects = [dialect for dialect in registry.dialects().values() if dialect.text]
    is_file = source.name not in ("<text>", "flags")  # These say nothing beside the flag.
    place = source if is_file else Source("flags", "")
    if hosts is not None:
        takers = " or ".join(dialect.title for dialect in dialects if dialect.text and dialect.text.takes_hostfile)
        return place.error(
            f"a host file goes with a {takers} description, this one is {source.dialect}; leave the host file out, or describe "
            "workers on these hosts: 'horovodrun -np 4 --hostfile FILE'",
            field="--hostfile",
        )
    flag = next(iter(options))
    owner = next(dialect.title for dialect in dialects if dialect.text and flag in dialect.text.overrides)
    return place.error(
        f"this option changes a {owner} description, this one is {source.dialect}; change the description instead",
        field=f"--{flag}",
    )
