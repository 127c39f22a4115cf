"""Amazon SageMaker: the SM_* variables of its training toolkit, and the resource configuration of a training job.

Sources: aws/sagemaker-training-toolkit `ENVIRONMENT_VARIABLES.md`; aws/sagemaker-tensorflow-training-toolkit
`src/sagemaker_tensorflow_container/training.py` (jobs and ports); `src/sagemaker_training/environment.py` of the former
(`distribution_hosts`); SageMaker documentation, "Distributed training configuration"
(`/opt/ml/input/config/resourceconfig.json`).
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tfdist.cluster import Cluster, Task, valid_host
from tfdist.dialects.dialect import Dialect, EnvironmentReader, TextReader
from tfdist.dialects.parsing.document import MAX_GPUS_PER_TASK, MAX_TASKS, Document, check_text, shown
from tfdist.dialects.parsing.load import load, load_variable
from tfdist.dialects.parsing.node import Node, root
from tfdist.errors import Source

NAME = "sagemaker"
WORDS = frozenset(
    {
        *("current_host", "hosts", "network_interface_name", "current_instance_type", "current_group_name"),
        *("instance_groups", "instance_group_name", "topology"),
    }
)

WORKER_PORT, CHIEF_PORT, PS_PORT = 8890, 2222, 2223
"""Ports of the TensorFlow toolkit: workers without ps; chief and workers of a cluster with ps; ps."""

_PS_MODE = "sagemaker_parameter_server_enabled"
_TRAINING_GROUPS = "SM_DISTRIBUTION_INSTANCE_GROUPS"


def looks_like(content: "str | Mapping[Any, Any]") -> bool:
    """Returns whether this is a resource configuration."""
    return not isinstance(content, str) and "current_host" in content and "hosts" in content


def recognizes(environ: Mapping[str, str]) -> str | None:
    """Returns SM_HOSTS, or SM_RESOURCE_CONFIG if a container has only that, or None."""
    if environ.get("SM_HOSTS", "").strip() and environ.get("SM_CURRENT_HOST", "").strip():
        return "SM_HOSTS"
    return "SM_RESOURCE_CONFIG" if environ.get("SM_RESOURCE_CONFIG", "").strip() else None


def from_environ(environ: Mapping[str, str]) -> Cluster:
    """Reads SM_HOSTS and SM_CURRENT_HOST, else SM_RESOURCE_CONFIG; SM_NUM_GPUS; and SM_FRAMEWORK_PARAMS for ps mode.

    In a heterogeneous job the hosts are those of the instance groups that train (SM_DISTRIBUTION_INSTANCE_GROUPS). A host of
    another group is a worker on its own.

    Raises:
        ClusterError: for bad variables.
    """
    resources: Mapping[Any, Any] = {}
    if environ.get("SM_RESOURCE_CONFIG", "").strip():
        resources = _object(environ, "SM_RESOURCE_CONFIG").mapping()
    variable = recognizes(environ)
    if variable == "SM_HOSTS":
        resources = {**resources, "hosts": _list(environ, "SM_HOSTS"), "current_host": environ["SM_CURRENT_HOST"].strip()}
    config = root(Document(variable or "SM_HOSTS", mapping=resources), NAME)
    gpus = environ.get("SM_NUM_GPUS", "").strip()
    number = (
        root(Document("SM_NUM_GPUS", mapping={"SM_NUM_GPUS": gpus}), NAME).child("SM_NUM_GPUS").count(0, MAX_GPUS_PER_TASK)
        if gpus
        else 0
    )
    training = _list(environ, _TRAINING_GROUPS) if environ.get(_TRAINING_GROUPS, "").strip() else []
    return _cluster(config, number, _has_ps(environ), training)


def parse(document: Document) -> Cluster:
    """Reads a resource configuration. Every host is a worker: it mentions no ps. Raises ClusterError for a bad one."""
    config = root(document, NAME)
    config.check_near(WORDS, "the resource configuration")
    return _cluster(config, 0, False)


def _cluster(config: Node, gpus: int, has_ps: bool, training: Sequence[object] = ()) -> Cluster:
    given = config.get("hosts")
    if given is None:
        raise config.error('the list of hosts is missing; expected "hosts": ["algo-1", ...]')
    hosts = [_host(entry) for entry in given.entries()]
    if not hosts:
        raise given.error("the list of hosts is empty")
    if len(hosts) * max(1, gpus) > MAX_TASKS:
        raise given.error(f"there are more than {MAX_TASKS} hosts or GPUs, which is more than tfdist supports")
    current = config.get("current_host")
    if current is not None and current.value not in hosts:
        raise current.error(f"{shown(current.value)} is not one of the {len(hosts)} hosts")
    hosts, groups = _that_train(hosts, _groups(config), training, None if current is None else str(current.value))
    here = hosts.index(current.value) if current is not None else None
    # With several instance types each host knows only its own GPUs, but all hosts have to read the same cluster.
    width = gpus if len({_instance_type(group) for group in groups}) < 2 else 0
    slots = max(1, width)
    if has_ps and len(hosts) > 1:
        tasks = [Task("chief", 0, hosts[0], CHIEF_PORT, slots, width)]
        tasks += [Task("worker", n, host, CHIEF_PORT, slots, width) for n, host in enumerate(hosts[1:])]
        tasks += [Task("ps", n, host, PS_PORT) for n, host in enumerate(hosts)]
        me = None if here is None else ("worker", here - 1) if here else ("chief", 0)
    else:
        tasks = [Task("worker", n, host, WORKER_PORT, slots, width) for n, host in enumerate(hosts)]
        me = None if here is None else ("worker", here)
    return Cluster(tuple(tasks), source=config.source, task=me)


def _that_train(
    hosts: list[str], groups: list[Node], training: Sequence[object], current: str | None
) -> tuple[list[str], list[Node]]:
    """Returns the hosts that train with the current one, and their instance groups: those that `training` names.

    A host of another group, which may only prepare data, trains with no other.
    """
    chosen = [group for group in groups if group.mapping().get("instance_group_name") in training]
    inside = {_host(entry) for group in chosen for entry in group.child("hosts").entries()}.intersection(hosts)
    if not inside:
        return hosts, groups
    if current is not None and current not in inside:
        return [current], []
    return [host for host in hosts if host in inside], chosen


def _groups(config: Node) -> list[Node]:
    groups = config.get("instance_groups")
    return [] if groups is None else list(groups.entries())


def _instance_type(group: Node) -> str:
    return json.dumps(group.mapping().get("instance_type"), default=str)


def _host(entry: Node) -> str:
    host = entry.text()
    if not valid_host(host):
        raise entry.error(f"{shown(host)} is neither a host name nor an address")
    return host


def _has_ps(environ: Mapping[str, str]) -> bool:
    """Returns whether the estimator has parameter servers: `distribution={"parameter_server": {"enabled": True}}`."""
    if not environ.get("SM_FRAMEWORK_PARAMS", "").strip():
        return False
    return _object(environ, "SM_FRAMEWORK_PARAMS").mapping().get(_PS_MODE) in (True, "true", "True")


def _object(environ: Mapping[str, str], variable: str) -> Node:
    return root(load_variable(environ, Source(NAME, variable), ", {...}"), NAME)


def _list(environ: Mapping[str, str], variable: str) -> Any:
    """Returns the list in a variable. `load` reads only objects, so the list is read as part of one."""
    source = Source(NAME, variable)
    text = check_text(environ[variable], source)
    if not text.lstrip().startswith("["):
        what, example = ("hosts", "algo") if variable == "SM_HOSTS" else ("instance groups", "group")
        raise source.error(f'{shown(text)} is not a list of {what} in JSON; expected ["{example}-1", "{example}-2"]')
    return load(Document(variable, f'{{"hosts": {text}}}'), source).mapping["hosts"]


DIALECT = Dialect(
    name=NAME,
    title="SageMaker",
    example='SageMaker\'s resourceconfig.json ({"current_host": "algo-1", "hosts": ["algo-1", "algo-2"]})',
    text=TextReader(
        parse,
        words=WORDS,
        marks=frozenset({"current_host", "current_instance_type", "current_group_name", "network_interface_name"}),
        is_mapping=True,
        looks_like=looks_like,
    ),
    environment=EnvironmentReader(recognizes, from_environ, allocates=True),
)
