"""The back end `ray`: `plan` says what each task needs, `RayTasks` runs the tasks where Ray has room for them."""

import dataclasses
import importlib.util
import os
from collections.abc import Mapping
from typing import Any

from tfdist.cluster import Cluster, Task
from tfdist.devices import computes, threads
from tfdist.errors import Source
from tfdist.extras import pip_install
from tfdist.launch.backends import interpreter
from tfdist.launch.backends.agents.frames import BOOTSTRAP
from tfdist.launch.backends.agents.remote_tasks import RemoteTasks
from tfdist.launch.backends.interface import Attached, Backend, Plan
from tfdist.launch.backends.local.ports import is_local
from tfdist.launch.backends.ray.actor import Actor
from tfdist.launch.backends.ray.actor_process import ActorProcess
from tfdist.launch.backends.ray.head_watch import HeadWatch
from tfdist.launch.backends.ray.placement import NO_HOST, WAIT_SECONDS, Placement
from tfdist.launch.jobs.events import Event, Lost, Ready
from tfdist.launch.jobs.job import Job, JobFiles, Program
from tfdist.messages import printable

STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


def plan(job: Job) -> Plan:
    """Plans a job on a cluster of Ray. It asks no cluster: which nodes the tasks get is known when the job starts."""
    refusal = None
    if importlib.util.find_spec("ray") is None:
        refusal = Source("flags", "--backend ray").error(f"it needs the package ray: {pip_install('ray')}")
    _check(job)
    needs = _needs(job)
    words = {name: ", ".join(f"{amount:g} {kind}" for kind, amount in need.items()) for name, need in needs.items()}
    notes = [
        ("bundle", f"{', '.join(name for name in words if words[name] == each)}: {each} for each")
        for each in dict.fromkeys(words.values())
    ]
    tasks = (dataclasses.replace(task, host=task.host or NO_HOST) for task in job.cluster.tasks)
    cluster = dataclasses.replace(job.cluster, tasks=tuple(tasks))
    return Plan(
        dataclasses.replace(job, cluster=cluster.addressed(), folder=job.options.get("ray_folder", job.folder)),
        open_ports=frozenset(task.name for task in job.cluster.tasks if task.port is None),
        notes=(*notes, ("addresses", "are chosen on the nodes when the job starts")),
        refusal=refusal,
    )


def _check(job: Job) -> None:
    """Raises ClusterError for a flag with a value that is none."""
    placement = job.options.get("ray_placement", "PACK")
    if placement not in STRATEGIES:
        raise Source("flags", "--ray_placement").error(f"{placement!r} is not one of {', '.join(STRATEGIES)}")
    for name, lowest in (("ray_cpus", 0.0), ("ray_wait", 0.0)):
        text = job.options.get(name, "1")
        try:
            if not lowest < float(text) < 1e6:
                raise ValueError
        except ValueError:
            raise Source("flags", f"--{name}").error(f"{text!r} is not a number above 0") from None


def _needs(job: Job) -> dict[str, dict[str, float]]:
    """Returns the resources of each task."""
    cpus = float(job.options.get("ray_cpus", "1"))
    found = {}
    for task in job.cluster.tasks:
        gpus = task.gpus if computes(task, job.choice.strategy) else 0
        found[task.name] = {"CPU": cpus} | ({"GPU": float(gpus)} if gpus else {})
    return found


class RayTasks(RemoteTasks):
    """Tasks on the nodes of a cluster of Ray, whose agents run in actors."""

    def __init__(self, plan: Plan, files: JobFiles) -> None:
        """Connects, waits for room, and starts the agents.

        Raises:
            ClusterError: if there is no cluster, no room, or a task cannot run where it would be.
        """
        job, options = plan.job, plan.job.options
        self._tasks_in_order = job.cluster.tasks
        self._needs = _needs(job)
        cpus = sum(need["CPU"] for need in self._needs.values())
        self._placement = Placement(options.get("ray_address"), job.folder, options.get("ray_folder"), cpus)
        try:
            wait = float(options["ray_wait"]) if "ray_wait" in options else None
            if wait is None and files.is_restart:  # There was room: a lost node may come back, or be replaced.
                wait = WAIT_SECONDS
            self._placement.reserve(self._tasks_in_order, self._needs, options.get("ray_placement", "PACK"), wait)
            self._nodes = self._placement.node_of_each(self._tasks_in_order)
            job = dataclasses.replace(job, cluster=self._on_nodes(job.cluster), program=self._program(job))
            self._check_evaluator(job)
            self._variables = {task.name: self._variables_of(task, job) for task in job.cluster.tasks}
            super().__init__(
                dataclasses.replace(plan, job=job),
                files,
                lambda name: ["the actor", name],
                self._placement.folder,
                hosts={task.name: [task] for task in job.cluster.tasks},
                popen=self._start_actor,
            )
        except BaseException:
            self._placement.close()
            raise
        self._head, self._has_lost_head = HeadWatch(self._placement.nodes), False

    def poll(self, timeout: float, *, output: bool = True) -> list[Event]:
        """See `TaskRunner`."""
        events = super().poll(timeout, output=output)
        if not self._has_lost_head and (why := self._head.why_lost()) is not None:
            self._has_lost_head = True
            events.append(Lost(why))
        return [self._with_places(event) if isinstance(event, Ready) else event for event in events]

    def close(self) -> list[Event]:
        """See `TaskRunner`."""
        try:
            return super().close()
        finally:
            if self._head.close() and not self._has_lost_head:
                self._placement.close()
            else:  # Ray's calls would not return.
                self._placement.leave()

    def _on_nodes(self, cluster: Cluster) -> Cluster:
        tasks = (dataclasses.replace(task, host=self._nodes[task.name]["NodeManagerAddress"]) for task in cluster.tasks)
        return dataclasses.replace(cluster, tasks=tuple(tasks))

    def _with_places(self, ready: Ready) -> Ready:
        places: dict[str, list[str]] = {}
        for name, node in self._nodes.items():
            places.setdefault(f"{node['NodeManagerAddress']} (node {node['NodeID'][:8]})", []).append(name)
        lines = (f"{', '.join(names)} on {place}" for place, names in places.items())
        return dataclasses.replace(ready, warnings=(*lines, *ready.warnings))

    def _program(self, job: Job) -> Program:
        """Returns the program with a path that is right in the folder on the nodes."""
        script = job.program.script
        if script is None or self._placement.folder != "." or not os.path.isabs(script):
            return job.program
        inside = os.path.relpath(os.path.realpath(script), os.path.realpath(job.folder))
        if inside.startswith(os.pardir + os.sep):
            raise Source("flags", "--backend ray").error(
                f"{script} is outside of the current folder, which is what Ray sends to the nodes; start the job in the folder "
                "of the program, or name a folder that all nodes share with --ray_folder"
            )
        return dataclasses.replace(job.program, script=inside)

    def _check_evaluator(self, job: Job) -> None:
        hosts = {task.host for task in job.cluster.tasks}
        if job.cluster.job("evaluator") and not job.cluster.job_dir and (len(hosts) > 1 or not is_local(hosts.pop())):
            raise Source("flags", "--job_dir").error("an evaluator on several nodes needs a folder that all of them share")

    def _variables_of(self, task: Task, job: Job) -> dict[str, str]:
        """Returns the variables of the agent of a task: its share of the cores of its node, and only GPUs that are reserved."""
        strategy = job.choice.strategy
        node = self._nodes[task.name]
        here = [each for each in job.cluster.tasks if self._nodes[each.name] is node]
        if "ray_cpus" in job.options:
            variables = threads(int(self._needs[task.name]["CPU"]), 1)
        elif len(here) > 1:
            variables = threads(int(node["Resources"].get("CPU", 1)), sum(computes(each, strategy) for each in here))
        else:
            variables = {}
        variables = {name: value for name, value in variables.items() if name not in os.environ}
        return variables if "GPU" in self._needs[task.name] else {**variables, "CUDA_VISIBLE_DEVICES": "-1"}

    def _start_actor(self, command: list[str], *, stderr: Any, **_: Any) -> ActorProcess:
        """Starts the agent of a task; called like `subprocess.Popen`. A task that is started again stays on its node."""
        name = command[1]
        index = next(i for i, task in enumerate(self._tasks_in_order) if task.name == name)
        node = self._nodes[name]
        arguments = ([*interpreter.options(), "-c", BOOTSTRAP], self._variables[name])
        actor = self._placement.actor(Actor, index, self._needs[name], *arguments)
        return ActorProcess(self._placement.ray, actor, stderr, lambda error: self._why_gone(node, error))

    def _why_gone(self, node: Mapping[str, Any], error: Exception) -> str:
        try:
            alive = {each["NodeID"] for each in self._placement.nodes()}
        except Exception:  # Ray itself does not answer.
            return "Ray does not answer any more"
        if node["NodeID"] not in alive:
            return f"the node {node['NodeManagerAddress']} is gone"
        if isinstance(error, self._placement.ray.exceptions.ActorUnavailableError):
            return f"the node {node['NodeManagerAddress']} cannot be reached, or is gone"
        return printable(" ".join(str(error).split()))[:500]


BACKEND = Backend(
    name="ray",
    title="a cluster of Ray",
    plan=plan,
    runs=Attached(RayTasks),
    packages=("ray",),
    options={
        "ray_address": "Address of the cluster, such as head:6379, or local to start one on this machine. "
        "Default: RAY_ADDRESS, else the cluster that runs on this machine, else local.",
        "ray_folder": "Working folder that all nodes share. Default: Ray sends them a copy of the current one.",
        "ray_cpus": "CPUs for each task, and its number of threads. Default: 1, and a share of the node's cores.",
        "ray_placement": f"How the tasks are spread over the nodes: {', '.join(STRATEGIES)}. Default: PACK.",
        "ray_wait": f"Seconds to wait for room. Default: {WAIT_SECONDS:.0f}, and none for what the cluster can never "
        "give, unless the job is started again.",
    },
)
