"""`Placement`: a connection to Ray, and the room of a job there: one placement group with a bundle for each task."""

import atexit
import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfdist import machine
from tfdist.cluster import Task
from tfdist.errors import ClusterError, Source
from tfdist.extras import pip_install
from tfdist.launch.backends.local.ports import LOCAL_HOSTS
from tfdist.messages import printable

WAIT_SECONDS = 300.0
"""How long a job waits for room that other jobs use (`--ray_wait`)."""

CONNECT_SECONDS = 10.0

INIT_SECONDS = 120.0
"""How long the start of Ray, or a cluster that accepts connections, may take."""

SAY_SECONDS = 10.0
"""Interval of the line that says what a job waits for."""

OWN_STORE_BYTES = 100 << 20
"""Size of the object store of a cluster that is started for the job: only messages pass through it."""

JOB_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Ray sets it in programs that `ray job submit` runs."""

NO_HOST = "ray"
"""The host in a plan of a task whose node is not known yet."""

ANY_HOST = frozenset((NO_HOST, *LOCAL_HOSTS))
"""Hosts that leave the node to Ray."""


def _imported_ray() -> Any:
    """Imports Ray, which sends no statistics of its use then. Raises ClusterError if it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise Source("flags", "--backend ray").error(f"it needs the package ray, {error}: {pip_install('ray')}") from error
    return ray


class Placement:
    """The room of a job.

    Attributes:
        ray: the module.
        folder: the working folder on the nodes.
    """

    def __init__(self, address: str | None, folder: str, shared_folder: str | None, cpus: float) -> None:
        """Connects to a running cluster, or starts one.

        Args:
            address: as in `ray.init`; None to look for a running cluster, then to start one; `local` to start one.
            folder: the current folder, which is sent to the nodes of a running cluster.
            shared_folder: a folder that all nodes share, instead.
            cpus: what a cluster that is started must have at least.

        Raises:
            ClusterError: if that fails.
        """
        self.ray = _imported_ray()
        self._group: Any = None
        self._own_files: str | None = None
        self.folder = shared_folder or folder
        job = json.loads(os.environ.get(JOB_VARIABLE, "{}"))
        runtime: dict[str, Any] = {}
        if shared_folder is None and job.get("runtime_env", {}).get("working_dir"):
            self.folder = "."  # `ray job submit` has sent it already.
        elif shared_folder is None and not job:
            runtime = {"working_dir": folder, "excludes": ["tfdist_logs/"]}
        given = address or os.environ.get("RAY_ADDRESS") or "auto"
        if runtime and given.startswith("ray://"):  # Ray 2.60 mostly waits forever.
            raise Source("flags", "--ray_folder").error(
                f"Ray's client cannot be relied on to send the current folder to {given}; name a folder that all nodes share"
            )
        try:
            if given == "local" or not self._joins(given, runtime, may_be_absent=given == "auto" and not address):
                self.folder = shared_folder or folder
                self._start(cpus)
        except BaseException as error:
            self.close()
            if not isinstance(error, Exception):
                raise
            what = "cannot be started here" if given == "local" or self._own_files else f"at {given} cannot be used"
            raise Source("flags", "--ray_address").error(f"the cluster of Ray {what}: {_first_line(error)}") from error

    def _joins(self, address: str, runtime: dict[str, Any], may_be_absent: bool) -> bool:
        """Connects to a running cluster; returns False if there is none and there may be none."""
        try:
            self._init(address, runtime_env=runtime or None)
        except ConnectionError:  # That there is none; with `auto` Ray looks only on this machine.
            if may_be_absent:
                return False
            raise
        self.folder = "." if runtime else self.folder
        return True

    def _start(self, cpus: float) -> None:
        """Starts a cluster on this machine. As with the back end `local`, the tasks share its cores, however few there are."""
        self._own_files = tempfile.mkdtemp(prefix="tfdist-ray-")
        more = {"num_cpus": max(machine.cores(), cpus), "include_dashboard": False, "object_store_memory": OWN_STORE_BYTES}
        self._init("local", _temp_dir=self._own_files, **more)

    def _init(self, address: str, **more: Any) -> None:
        host, colon, port = address.removeprefix("ray://").rpartition(":")
        if colon and port.isdecimal():
            # Ray itself waits for minutes, and cannot be interrupted.
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
        with _at_most(INIT_SECONDS), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Errors say the same.
            # The folder of this name becomes a folder of modules in Ray's processes. That of `python -m tfdist` is our own, and
            # holds modules (`errors`, `version`) that are not meant to be found alone.
            before, sys.argv = sys.argv, ["-c"]
            try:
                self.ray.init(address=address, log_to_driver=False, logging_level="ERROR", **more)
            finally:
                sys.argv = before

    def nodes(self) -> list[dict[str, Any]]:
        """Returns the nodes that are alive."""
        return [node for node in self.ray.nodes() if node["Alive"]]

    def reserve(self, tasks: Sequence[Task], needs: Mapping[str, dict[str, float]], strategy: str, wait: float | None) -> None:
        """Waits for a placement group with a bundle for each task.

        Args:
            tasks: the tasks, in the order of the bundles. A host other than `ANY_HOST` is that of a node.
            needs: resources by the name of the task.
            strategy: of the placement group.
            wait: seconds; None to refuse at once what no node can ever give, and to wait `WAIT_SECONDS` for the rest.

        Raises:
            ClusterError: if there is no room; says for want of what.
        """
        nodes = self.nodes()
        bundles = [{**needs[task.name], **_on_node(task, nodes)} for task in tasks]
        lack = _lack(tasks, bundles, nodes, strategy)
        if lack and wait is None:
            raise _no_room(lack)
        limit = WAIT_SECONDS if wait is None else wait
        self._group = self.ray.util.placement_group(bundles, strategy=strategy)
        begin = time.monotonic()
        while not self._group.wait(min(SAY_SECONDS, max(1.0, begin + limit - time.monotonic()))):
            waited = time.monotonic() - begin
            free = _free(self.ray.available_resources())
            lack = _lack(tasks, bundles, self.nodes(), strategy) or f"other jobs use it; free are {free}"
            if waited >= limit:
                raise _no_room(f"{lack}; waited {waited:.0f} s (--ray_wait)")
            print(f"tfdist: waiting {waited:.0f} s for room on the cluster of Ray: {lack}", file=sys.stderr, flush=True)

    def node_of_each(self, tasks: Sequence[Task]) -> dict[str, dict[str, Any]]:
        """Returns the node of each task."""
        table = self.ray.util.placement_group_table(self._group)["bundles_to_node_id"]
        nodes = {node["NodeID"]: node for node in self.ray.nodes()}
        return {task.name: nodes[table[index]] for index, task in enumerate(tasks)}

    def actor(self, actor: type, index: int, needs: Mapping[str, float], *arguments: Any) -> Any:
        """Creates an actor in a bundle; returns its handle at once."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        self.ray.cloudpickle.register_pickle_by_value(sys.modules[actor.__module__])
        options = {"num_cpus": needs["CPU"], "num_gpus": needs.get("GPU", 0), "max_concurrency": 2, "max_restarts": 0}
        place = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
        return self.ray.remote(actor).options(**options, scheduling_strategy=place).remote(*arguments)

    def close(self) -> None:
        """Gives the room back, and ends the cluster if this process has started it."""
        try:
            if self._group is not None:
                self.ray.util.remove_placement_group(self._group)
        except Exception:  # Ray is gone, and the room with it.
            pass
        self._group = None
        self.ray.shutdown()
        self._remove_files()

    def leave(self) -> None:
        """Gives up a cluster that does not answer: without a call of Ray, now and at the end of this process.

        There `ray.shutdown` does not return, and without it Ray's threads crash. The job has failed then, with 1.
        """
        atexit.register(_end_with_1)  # It is called before that of Ray.
        self._remove_files()

    def _remove_files(self) -> None:
        if self._own_files is not None:
            shutil.rmtree(self._own_files, ignore_errors=True)


def _end_with_1() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(1)


@contextlib.contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Raises TimeoutError in the block after some seconds. The supervisor, which uses signals too, does not run yet."""

    late = TimeoutError(f"it did not answer within {seconds:.0f} s")
    is_late = False

    def end(*_: object) -> None:
        nonlocal is_late
        is_late = True
        raise late

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except Exception as error:
        if is_late and error is not late:  # Ray may have caught it, and raise an error of its own.
            raise late from error
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _on_node(task: Task, nodes: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns the resource by which Ray knows the node that the description names for a task."""
    if task.host is None or task.host in ANY_HOST:
        return {}
    for node in nodes:
        names = (node["NodeManagerAddress"], node["NodeManagerHostname"], node["NodeName"])
        if task.host.lower() in (name.lower() for name in names):
            return {f"node:{node['NodeManagerAddress']}": 0.001}
    known = ", ".join(sorted({str(node["NodeManagerAddress"]) for node in nodes}))
    raise Source("flags", "--backend ray").error(f"{task.name} is on {task.host}, and the cluster of Ray has the nodes {known}")


def _lack(
    tasks: Sequence[Task], bundles: Sequence[Mapping[str, float]], nodes: Sequence[Mapping[str, Any]], strategy: str
) -> str | None:
    """Returns what a cluster lacks even when no other job runs there, as a sentence; None if nothing."""
    totals = [node["Resources"] for node in nodes]
    for task, bundle in zip(tasks, bundles, strict=True):
        if not any(all(total.get(name, 0) >= amount for name, amount in bundle.items()) for total in totals):
            named = [total for total in totals if all(name in total for name in bundle if ":" in name)]
            most = {name: max((total.get(name, 0.0) for total in named), default=0.0) for name in bundle}
            which = f"the node {task.host}" if len(named) < len(totals) else "one node"
            return f"{task.name} needs {_shown(bundle)} on {which}, and there are at most {_shown(most)}"
    for name in dict.fromkeys(name for bundle in bundles for name in bundle if ":" not in name):
        needed, there = sum(bundle.get(name, 0) for bundle in bundles), sum(total.get(name, 0) for total in totals)
        if needed > there:
            return f"the {len(tasks)} tasks need {needed:g} {name}, and its {len(nodes)} nodes have {there:g}"
    if strategy == "STRICT_SPREAD" and len(tasks) > len(nodes):
        return f"{len(tasks)} tasks need a node each (--ray_placement STRICT_SPREAD), and there are {len(nodes)}"
    return None


def _shown(amounts: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in amounts.items() if ":" not in name)


def _free(amounts: Mapping[str, float]) -> str:
    return _shown({name: amounts.get(name, 0.0) for name in ("CPU", "GPU") if name in amounts or name == "CPU"})


def _no_room(lack: str) -> ClusterError:
    return Source("flags", "--backend ray").error(f"the cluster of Ray has no room for this job: {lack}")


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return printable(lines[0]) if lines else type(error).__name__
