"""What both ways of writing Kubernetes manifests share: the user's program, names and ports, pods, and the YAML."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from tfdist.cluster import Cluster, Task
from tfdist.dialects.kubernetes_jobs import TF_CONTAINER, TF_PORT, TF_PORT_NAME
from tfdist.dialects.kubernetes_pods import GPUS, is_label
from tfdist.dialects.unsupported import cannot
from tfdist.errors import Source, nearest

PLACEHOLDER_IMAGE = "registry.example.com/your-image:tag"
PLACEHOLDER_COMMAND = ("python", "train.py")
DEFAULT_NAME = "tfdist"
MAX_VARIABLE = (128 << 10) - len("TF_CONFIG=") - 1
"""Bytes that Linux passes as the value of TF_CONFIG (MAX_ARG_STRLEN, execve(2), without the name and the end)."""

_LONGEST = 63
_HOST = re.compile(
    r"(?P<name>[a-z0-9][-a-z0-9]*)-(?:chief|master|worker|ps|evaluator)-[0-9]+"
    r"(?:\.(?P<space>[a-z0-9][-a-z0-9]*)\.svc(?:\..*)?|\.(?P=name)(?:\.(?P<far_space>[a-z0-9][-a-z0-9]*)\.svc)?)"
)
"""Host names of tasks: those of TFJob, with a service for each pod, and those that `kubernetes_objects` writes."""
_PLAIN = re.compile(r"[A-Za-z][-A-Za-z0-9._/]+", re.ASCII)
"""Text that needs no quotes in any reader's YAML, unless it is a word such as `yes`, which PyYAML quotes."""


@dataclass(frozen=True)
class Program:
    """What the pods run, and what they are called.

    Attributes:
        image: container image; None for a placeholder.
        command: the program and its arguments, which run without a shell; None for a placeholder.
        name: name of the job, of which the names of all objects are made; by default that of the cluster's hosts, where these
            are names that Kubernetes gave, else `tfdist`.
        namespace: its namespace; by default that of the hosts, else none, which leaves the choice to kubectl.
    """

    image: str | None = None
    command: tuple[str, ...] | None = None
    name: str | None = None
    namespace: str | None = None

    @property
    def words(self) -> list[str]:
        """The command, or the placeholder."""
        return list(PLACEHOLDER_COMMAND if self.command is None else self.command)


def program(options: Mapping[str, Any]) -> Program:
    """The program of the options `image`, `command` (a list, or text in the words of a shell), `name` and `namespace`.

    Raises:
        ClusterError: for an option that does not exist, or a value that Kubernetes would not take.
    """
    known = [entry.name for entry in fields(Program)]
    values: dict[str, Any] = {}
    for option, value in options.items():
        error = Source("flags", f"--{option}").error
        if option not in known:
            raise error(f"there is no such option{nearest(option, known)}")
        if value is None:
            continue
        if option == "command":
            value = _words(value)
        if not value or not all(isinstance(part, str) for part in (value if option == "command" else (value,))):
            raise error(f"{value!r} is not right; expected text that is not empty")
        if option in ("name", "namespace") and not is_label(value):
            raise error(f"{value[:70]!r} is not a name that Kubernetes takes: at most 63 of a-z, 0-9 and -")
        values[option] = value
    return Program(**values)


def _words(command: "str | Sequence[str]") -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command)) if isinstance(command, str) else tuple(command)
    except ValueError as error:
        raise Source("flags", "--command").error(f"this is not a command: {error}") from None


def named(cluster: Cluster, given: Program) -> Program:
    """The program with a name: the one given, else the one of which the hosts were made, where Kubernetes made them.

    Raises:
        ClusterError: where the names of the tasks would be too long.
    """
    matches = [_HOST.fullmatch(task.host) if task.host else None for task in cluster.tasks]
    found = {(match["name"], match["space"] or match["far_space"]) for match in matches if match}
    name, space = found.pop() if len(found) == 1 and all(matches) else (None, None)
    result = replace(given, name=given.name or name or DEFAULT_NAME, namespace=given.namespace or space)
    assert result.name is not None
    longest = f"{result.name}-evaluator-{max(task.index for task in cluster.tasks)}"
    if len(longest) > _LONGEST or not result.name[0].isalpha():
        raise cluster.source.error(
            f"the name {result.name} would give pods names such as {longest}; they are at most {_LONGEST} characters and "
            "start with a letter: choose another name",
            field="--name",
        )
    return result


def alike(cluster: Cluster, what: str, job: str) -> Task:
    """A task that stands for all of a job, which in Kubernetes are copies of one pod.

    Raises:
        ClusterError: where the tasks differ in their GPUs.
    """
    tasks = cluster.job(job)
    if len({task.gpus for task in tasks}) > 1:
        raise cannot(cluster, what, f"{job} tasks with different numbers of GPUs")
    return tasks[0]


def with_addresses(cluster: Cluster, host: "Mapping[str, str]") -> Cluster:
    """The cluster with the names that Kubernetes gives: `host[job]` with `{}` for the index, one port per job."""
    ports = {job: _port(cluster.job(job)) for job in host}
    tasks = [replace(task, host=host[task.job].format(task.index), port=ports[task.job]) for task in cluster.tasks]
    return replace(cluster, tasks=tuple(tasks))


def _port(tasks: tuple[Task, ...]) -> int:
    """The port that all tasks of a job have, else 2222: every pod has an address of its own, so one is enough."""
    ports = {task.port for task in tasks}
    only = ports.pop() if len(ports) == 1 else None
    return TF_PORT if only is None else only


def pod(given: Program, task: Task, env: "Sequence[Mapping[str, Any]]" = ()) -> dict[str, Any]:
    """The specification of the pods that run `task` and its like: one container, restarted where its program fails."""
    container: dict[str, Any] = {"name": TF_CONTAINER, "image": given.image or PLACEHOLDER_IMAGE, "command": given.words}
    if env:
        container["env"] = [dict(entry) for entry in env]
    container["ports"] = [{"name": TF_PORT_NAME, "containerPort": task.port}]
    if task.gpus:
        container["resources"] = {"limits": {GPUS[0]: str(task.gpus)}}
    return {"containers": [container]}


def placeholder_note(given: Program, where: str) -> list[str]:
    """The comment about an image or a command that the user did not give."""
    if given.image is not None and given.command is not None:
        return []
    return [f"Replace the image and the command by your own; the program is the same {where}."]


def notes(before: Cluster, after: Cluster, given: Program) -> list[str]:
    """What a reader of the manifest has to know: placeholders, and addresses that it does not carry over."""
    lines = placeholder_note(given, "in every pod")
    moved = [task for task, other in zip(before.tasks, after.tasks, strict=True) if task.host not in (None, other.host)]
    if moved:
        lines.append(
            f"Kubernetes names the pods: the host {moved[0].host} of {moved[0].name} is not carried over, nor are others."
        )
    changed = [task for task, other in zip(before.tasks, after.tasks, strict=True) if task.port not in (None, other.port)]
    if changed:
        lines.append(f"Every pod has an address of its own: all {changed[0].job} tasks listen on one port.")
    return lines


def metadata(name: str, given: Program, **more: Any) -> dict[str, Any]:
    """The metadata of an object."""
    return {"name": name} | ({"namespace": given.namespace} if given.namespace else {}) | more


def dump(objects: Iterable[Mapping[str, Any]], comments: Iterable[str]) -> str:
    """YAML documents after comments. All text is quoted as YAML needs it, whatever is in it."""
    import yaml  # Here, because TF_CONFIG needs none of it and every process reads TF_CONFIG.

    class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
        def ignore_aliases(self, _: object) -> bool:
            return True

    def quoted(dumper: Any, value: str) -> Any:
        # PyYAML leaves words plain that other readers take for numbers or bools (1e3, y).
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if _PLAIN.fullmatch(value) else "'")

    Dumper.add_representer(str, quoted)
    text = "---\n".join(yaml.dump(entry, Dumper=Dumper, sort_keys=False, width=2**30) for entry in objects)
    return "".join(f"# {line}\n" for line in comments) + text
