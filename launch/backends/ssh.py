"""The back end `ssh`: an agent on each host, started with the user's own `ssh`, runs the tasks of that host."""

import dataclasses
import math
import re
import shlex
import shutil
import sys

from tfdist.errors import Source
from tfdist.launch.backends import interpreter
from tfdist.launch.backends.agents.frames import BOOTSTRAP, SILENCE_SECONDS
from tfdist.launch.backends.agents.remote_tasks import RemoteTasks, by_host
from tfdist.launch.backends.interface import Attached, Backend, Plan
from tfdist.launch.backends.local.ports import LOCAL_HOSTS
from tfdist.launch.jobs.job import Job, JobFiles

ALIVE_SECONDS, ALIVE_COUNT = 5, 4
"""How often ssh asks whether the host is there, and after how many questions without an answer, at least, it gives up."""


def plan(job: Job) -> Plan:
    """Plans a job on the hosts of its description."""
    cluster = job.cluster
    refusal = None
    hosts = by_host(cluster)
    open_host = next((task.name for task in cluster.tasks if task.host is None), None)
    loopback = next((host for host in hosts if host in LOCAL_HOSTS), None)
    if open_host is not None:
        refusal = cluster.source.error(
            f"{open_host} has no host; --backend ssh needs a description that names all hosts, such as --cluster 'horovodrun "
            "-np 4 -H a:2,b:2'"
        )
    elif loopback is not None and len(hosts) > 1:
        refusal = cluster.source.error(f"{loopback} is another machine on each of the hosts; give the name of the machine")
    elif cluster.job("evaluator") and len(hosts) > 1 and not cluster.job_dir:
        refusal = Source("flags", "--job_dir").error("an evaluator on several hosts needs a folder that all of them share")
    elif _silence(job) is None:
        refusal = Source("flags", "--ssh_silence").error(f"{job.options['ssh_silence']!r} is not a number of seconds from 3")
    elif shutil.which("ssh") is None:
        refusal = Source("environment", "PATH").error("--backend ssh needs the command ssh")
    named = [tasks for tasks in hosts.values() if tasks[0].host is not None]
    notes = [("host", f"{tasks[0].host}: {', '.join(task.name for task in tasks)}") for tasks in named]
    command = shlex.join(_command("HOST", job))
    return Plan(
        dataclasses.replace(job, cluster=cluster.addressed(), folder=job.options.get("ssh_folder", job.folder)),
        open_ports=frozenset(task.name for task in cluster.tasks if task.port is None),
        notes=(*notes, ("machine", "GPUs and cores of each host are divided among its tasks there"), ("ssh", command)),
        refusal=refusal,
    )


def _silence(job: Job) -> float | None:
    """Returns the seconds of `--ssh_silence`; None for what is no number from 3."""
    try:
        seconds = float(job.options.get("ssh_silence", SILENCE_SECONDS))
    except ValueError:
        return None
    return seconds if 3 <= seconds < 1e6 else None


def _command(host: str, job: Job) -> list[str]:
    """Returns the command line that starts the agent. Neither variables nor arguments of the program are in it."""
    config = job.options.get("ssh_config")
    python = job.options.get("ssh_python", sys.executable)
    home = re.match(r"~[\w.-]*/", python)  # Outside of the quotes the shell of the host puts its home folder in.
    place = home[0] + shlex.quote(python[home.end() :]) if home else shlex.quote(python)
    remote = f"exec {place} {shlex.join([*interpreter.options(), '-c', BOOTSTRAP])}"
    count = max(ALIVE_COUNT, math.ceil((_silence(job) or SILENCE_SECONDS) / ALIVE_SECONDS))
    alive = [f"ServerAliveInterval={ALIVE_SECONDS}", f"ServerAliveCountMax={count}"]
    options = ["BatchMode=yes", "ConnectTimeout=15", "ControlPath=none", *alive]
    words = [word for option in options for word in ("-o", option)]
    return ["ssh", *(["-F", config] if config else []), "-T", "-e", "none", *words, "--", host, remote]


def start(plan: Plan, files: JobFiles) -> RemoteTasks:
    """Starts the agents."""
    job = plan.job
    return RemoteTasks(plan, files, lambda host: _command(host, job), job.folder, _silence(job) or SILENCE_SECONDS)


BACKEND = Backend(
    name="ssh",
    title="the hosts of the description, over ssh",
    plan=plan,
    runs=Attached(start),
    options={
        "ssh_config": "File with the configuration of ssh. Default: yours.",
        "ssh_python": "Python on the hosts, with tfdist installed; '~/...' is in the home folder there. Default: the path of "
        "this one.",
        "ssh_folder": "Working folder on the hosts; '~/...' is in the home folder there. Default: the path of the current one.",
        "ssh_silence": f"Seconds of silence after which a connection is lost, at least 3. Default: {SILENCE_SECONDS:.0f}.",
    },
    tools=("ssh",),
)
