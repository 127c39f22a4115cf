"""The back end `srun`: an agent on each node of an allocation of Slurm, in a batch script or in `salloc`, runs the tasks."""

import dataclasses
import os
import shlex
import shutil
import sys

from tfdist.cluster import Cluster, Task
from tfdist.errors import ClusterError, Source
from tfdist.launch.backends import interpreter
from tfdist.launch.backends.agents.frames import BOOTSTRAP
from tfdist.launch.backends.agents.remote_tasks import RemoteTasks, by_host
from tfdist.launch.backends.interface import Attached, Backend, Plan
from tfdist.launch.backends.slurm import command_output
from tfdist.launch.jobs.job import Job, JobFiles


def plan(job: Job) -> Plan:
    """Plans a job on the nodes of the allocation in which this process runs. Tasks without a host are spread over the nodes."""
    nodes, refusal = _nodes()
    cluster = _spread(job.cluster, nodes) if nodes else job.cluster
    outside = next((task for task in cluster.tasks if nodes and task.host not in nodes), None)
    if outside is not None:
        refusal = cluster.source.error(f"{outside.name} is on {outside.host}, and the allocation has {', '.join(nodes)}")
    elif cluster.job("evaluator") and len(nodes) > 1 and not cluster.job_dir:
        refusal = refusal or Source("flags", "--job_dir").error("an evaluator on several nodes needs a folder that all share")
    notes = [("node", f"{host}: {', '.join(task.name for task in tasks)}") for host, tasks in by_host(cluster).items()]
    return Plan(
        dataclasses.replace(job, cluster=cluster.addressed()),
        open_ports=frozenset(task.name for task in cluster.tasks if task.port is None),
        notes=(*(notes if nodes else ()), ("srun", shlex.join(_agent_command("NODE")))),
        refusal=refusal,
    )


def _nodes() -> tuple[list[str], ClusterError | None]:
    """Returns the nodes of the allocation, or why there are none."""
    names = os.environ.get("SLURM_JOB_NODELIST", "")
    if not names or shutil.which("scontrol") is None:
        return [], Source("flags", "--backend srun").error(
            "it runs inside an allocation of Slurm (sbatch, salloc); --backend slurm submits a job"
        )
    return command_output("scontrol", "show", "hostnames", names).split(), None


def _spread(cluster: Cluster, nodes: list[str]) -> Cluster:
    """Returns the cluster with a node for each task: those of a job in equal blocks, in order, and an evaluator on the last."""

    def node(task: Task) -> str:
        if task.job == "evaluator":
            return nodes[-1]
        tasks = cluster.job(task.job)
        return nodes[tasks.index(task) * len(nodes) // len(tasks)]

    tasks = (task if task.host is not None else dataclasses.replace(task, host=node(task)) for task in cluster.tasks)
    return dataclasses.replace(cluster, tasks=tuple(tasks))


def _agent_command(node: str) -> list[str]:
    words = ["srun", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1", f"--nodelist={node}", "--overlap", "--unbuffered"]
    return [*words, "--cpu-bind=none", "--mpi=none", sys.executable, *interpreter.options(), "-c", BOOTSTRAP]


def start(plan: Plan, files: JobFiles) -> RemoteTasks:
    """Starts an agent on each node that has tasks."""
    return RemoteTasks(plan, files, _agent_command, plan.job.folder)


BACKEND = Backend(
    name="srun",
    title="the nodes of the allocation of Slurm in which this command runs",
    plan=plan,
    runs=Attached(start),
    tools=("srun", "scontrol"),
)
