"""The back end `slurm`: submits a batch script.

The script starts `tfdist run --backend srun` (srun.py) on the first node of its allocation. That is the launcher: it supervises
the tasks as everywhere else.
"""

import contextlib
import dataclasses
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tfdist.errors import Source
from tfdist.launch.backends import interpreter
from tfdist.launch.backends.interface import Backend, BackendError, LogLine, NoAnswerError, Plan
from tfdist.launch.backends.outage import Outage
from tfdist.launch.jobs import job_status
from tfdist.launch.jobs.job import Job
from tfdist.launch.jobs.job_status import JobStatus, State
from tfdist.launch.jobs.settings import END_SECONDS, GRACE_SECONDS
from tfdist.strategies.checkpoint.environment import FOLDER

COMMAND_SECONDS = 60.0
"""How long a command of Slurm may take: a busy controller answers late."""

WARNING_SECONDS = 25
"""How long before the time limit the launcher gets SIGTERM, besides that grace period."""

POLL_SECONDS = 2.0

_QUEUED = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SUSPENDED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
_RUNNING = {"RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "STOPPED", "RESIZING"}


def plan(job: Job) -> Plan:
    """Plans a batch job. The batch script is `Plan.request`."""
    refusal = None
    if shutil.which("sbatch") is None:
        refusal = Source("environment", "PATH").error("--backend slurm needs the commands of Slurm (sbatch)")
    hosts = {task.host for task in job.cluster.tasks if task.host is not None}
    nodes = job.options.get("slurm_nodes") or str(max(1, len(hosts)))
    try:
        options = shlex.split(job.options.get("slurm_options", ""))
        if int(nodes) < 1 or any(not word.startswith("-") or "\n" in word for word in options):
            raise ValueError
    except ValueError:
        raise Source("flags", "--slurm_options").error(
            "expected options of sbatch, each as one word: --slurm_options='--partition=gpu --time=1:00:00'; and a number of "
            "nodes from 1 in --slurm_nodes"
        ) from None
    lines = [
        "--job-name=tfdist",
        f"--nodes={nodes}",
        "--ntasks-per-node=1",
        f"--chdir={job.folder}",
        "--output=tfdist-%j.log",
        "--open-mode=append",  # After a requeue it goes on.
        "--export=ALL",
        f"--signal=B:TERM@{WARNING_SECONDS + math.ceil(_given_grace(job))}",  # So that the tasks save and end in order.
        *([f"--nodelist={','.join(sorted(hosts))}"] if hosts else []),
        *options,
    ]
    run = [sys.executable, *interpreter.options(), "-m", "tfdist", "run", "--backend=srun", "--nodefaults", *job.flags]
    state = f'--state_file="{_state_name("$SLURM_JOB_ID")}"'  # For `status`; the shell puts the number in.
    first, backup = _own_backup(job)
    run_script = f"{first}exec {shlex.join(run)} {state} {backup}{shlex.join([*job.program.words, '--', *job.program.args])}"
    script = "".join(f"#SBATCH {shlex.quote(line)}\n" for line in lines)
    return Plan(
        dataclasses.replace(job, cluster=job.cluster.addressed()),
        notes=(("addresses", "are chosen on the nodes when the job starts"),),
        request=f"#!/bin/bash\n{script}{run_script}\n",
        refusal=refusal,
    )


class Batch:
    """Batch jobs: the verbs of `Detached`."""

    def submit(self, plan: Plan) -> str:
        """See `Detached`. Variables of `--env` travel in the environment of sbatch, which Slurm hands on."""
        environ = {**os.environ, **plan.job.environment}
        environ.pop("SBATCH_EXPORT", None)  # It would win over what the script says.
        return command_output("sbatch", "--parsable", text=plan.request, environ=environ).strip().partition(";")[0]

    def status(self, job_id: str) -> JobStatus:
        """See `Detached`."""
        fields = _show(job_id)
        state, reason = fields["JobState"], fields.get("Reason", "None")
        code, _, number = fields.get("ExitCode", "0:0").partition(":")
        exit_code = 128 + int(number) if int(number) else int(code)
        nodes = fields.get("NodeList", "")
        written = _written(job_id, fields)
        tasks, progress = written.tasks, written.progress
        if state in _QUEUED:
            return JobStatus(State.QUEUED, reason=f"Slurm says {state}, {reason}")
        if state in _RUNNING:
            return JobStatus(State.RUNNING, tasks, f"on {nodes}", progress=progress, binding=written.binding)
        tasks = tuple(each if each.state.is_final else dataclasses.replace(each, state=State.LOST) for each in tasks)
        if state == "COMPLETED":
            return JobStatus(State.SUCCEEDED, tasks, f"on {nodes}", exit_code=0, progress=progress)
        # A job that `cancel` ended has the exit code of a launcher that received SIGTERM.
        is_cancelled = state == "CANCELLED" or (state == "FAILED" and exit_code == 143)
        more = "" if reason in ("None", "NonZeroExitCode") else f", {reason}"
        said = f"Slurm says {state}, exit code {exit_code}{more}"
        if is_cancelled and exit_code == 143:
            said += "; the launcher received SIGTERM, from tfdist cancel or shortly before the time limit"
        return JobStatus(State.CANCELLED if is_cancelled else State.FAILED, tasks, said, exit_code or 1, progress)

    def logs(self, job_id: str, task: str | None, follow: bool) -> Iterator[LogLine]:
        """See `Detached`: the output of the launcher in the batch job."""
        path: Path | None = None
        position, buffered, outage = 0, b"", Outage()
        while True:
            try:
                path = path or _output(job_id)
                has_ended = not follow or self.status(job_id).state.is_final  # Before the read, which then gets everything.
                said = outage.answered()
            except NoAnswerError as error:
                if not follow:
                    raise
                has_ended, said = False, outage.without_answer(error)
            if said:
                yield LogLine("", f"tfdist: {said}")
            data = b""
            if path is not None:
                data, position = _read(path, position)
            *lines, buffered = (buffered + data).split(b"\n")
            for line in lines + ([buffered] if has_ended and buffered else []):
                shown = LogLine.of_launcher(line.decode("utf-8", "replace"))
                if task is None or shown.task == task:
                    yield shown
            if has_ended:
                return
            time.sleep(POLL_SECONDS)

    def cancel(self, job_id: str) -> None:
        """See `Detached`. The launcher in the batch job ends the tasks first; one that does not is ended by Slurm."""
        if self.status(job_id).state == State.RUNNING:
            command_output("scancel", "--batch", "--signal=TERM", job_id)
            deadline = time.monotonic() + END_SECONDS + _grace(job_id)
            while time.monotonic() < deadline:
                with contextlib.suppress(NoAnswerError):
                    if self.status(job_id).state.is_final:
                        return
                time.sleep(POLL_SECONDS / 4)
        command_output("scancel", job_id)


def _output(job_id: str) -> Path:
    """Returns the file with the output of a batch job."""
    path = _show(job_id).get("StdOut")
    if path is None:
        raise BackendError(f"the job {job_id} is no batch job: its output is where it was started")
    return Path(path)


def _read(path: Path, position: int) -> tuple[bytes, int]:
    """Returns what a log has from a position on, and the position of its end. One that was cut is read from its beginning."""
    try:
        with open(path, "rb") as file:
            begin = position if position <= os.fstat(file.fileno()).st_size else 0
            file.seek(begin)
            data = file.read()
            return data, begin + len(data)
    except FileNotFoundError:
        return b"", position  # The job has not started.
    except OSError as error:
        raise BackendError(f"{path} cannot be read: {error.strerror}") from error


def _own_backup(job: Job) -> tuple[str, str]:
    """Returns a line of the script, and a flag, for the backup of a job whose log folder would hold it; else empty texts.

    After a requeue the log folder is another one. A folder with the number of the job may be that of an earlier cluster.
    """
    restarts, folder = _given("max_restarts", job), _given("backup_dir", job)
    job_dir = job.cluster.job_dir
    has_variable = FOLDER in {*os.environ, *job.environment}
    if int(restarts or 0) < 1 or folder is not None or has_variable or (job_dir and "://" not in job_dir):
        return "", ""
    name = '"tfdist-$SLURM_JOB_ID.backup"'
    return f'test "${{SLURM_RESTART_COUNT:-0}}" != 0 || rm -rf {name}\n', f"--backup_dir={name} "


def _given(flag: str, job: Job) -> str | None:
    """Returns the value of a flag of the launcher, or None."""
    values = [value for name, _, value in (each.partition("=") for each in job.flags) if name == f"--{flag}"]
    return values[-1] if values else None


def _given_grace(job: Job) -> float:
    return float(_given("grace_period", job) or GRACE_SECONDS)


def _grace(job_id: str) -> float:
    """Returns the grace period of a job, as its launcher has written it."""
    path = Path(_show(job_id).get("WorkDir", ""), _state_name(job_id))
    try:
        return float(json.loads(path.read_text(encoding="utf-8"))["grace_period"])
    except (OSError, ValueError, KeyError, TypeError):
        return GRACE_SECONDS


def _state_name(job_id: str) -> str:
    return f"tfdist-{job_id}.state.json"


def _written(job_id: str, fields: dict[str, str]) -> JobStatus:
    """Returns the status that the launcher in the batch job has written; without tasks if it has not."""
    return job_status.read(Path(fields.get("WorkDir", ""), _state_name(job_id))) or JobStatus(State.STARTING)


def _show(job_id: str) -> dict[str, str]:
    """Returns what Slurm knows about a job: from its controller, or after some minutes from its accounting, if there is one."""
    if not re.fullmatch(r"[0-9]+(_[0-9]+)?", job_id, re.ASCII):
        raise BackendError(f"{job_id!r} is not a job id of Slurm; expected a number")
    try:
        line = command_output("scontrol", "show", "job", "--oneliner", job_id)
        # Values hold blanks; a field begins with a name in capitals after a blank.
        return {name: value.strip() for name, value in re.findall(r"(?:^| )([A-Z]\w*)=(.*?)(?= [A-Z]\w*=|$)", line)}
    except BackendError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise
        if "Invalid job id" not in str(error):
            raise NoAnswerError(str(error)) from error
    fields = ("State", "ExitCode", "NodeList", "Reason")
    try:
        line = command_output("sacct", "-n", "-X", "-P", "-j", job_id, "-o", ",".join(fields)).splitlines()[0]
    except (BackendError, IndexError):
        raise BackendError(f"Slurm does not know the job {job_id} (any more)") from None
    found = dict(zip(fields, line.split("|"), strict=True))
    return {**found, "JobState": found["State"].partition(" ")[0], "StdOut": f"tfdist-{job_id}.log"}


def command_output(*command: str, text: str | None = None, environ: dict[str, str] | None = None) -> str:
    """Returns what a command of Slurm prints, given a text and the environment. Raises BackendError."""
    try:
        got = subprocess.run(
            command,
            input=text,
            env=environ,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",  # As Python does with paths.
            timeout=COMMAND_SECONDS,
            check=False,
        )
    except FileNotFoundError as error:
        raise BackendError(f"{command[0]} is not installed here; is this a machine of the cluster?") from error
    except subprocess.TimeoutExpired as error:
        raise BackendError(f"{command[0]} did not answer within {COMMAND_SECONDS:.0f} s") from error
    if got.returncode != 0:
        raise BackendError(f"{command[0]}: {' '.join(got.stderr.split()) or f'exit code {got.returncode}'}")
    return got.stdout


BACKEND = Backend(
    name="slurm",
    title="a batch job of Slurm",
    plan=plan,
    runs=Batch(),
    options={
        "slurm_nodes": "Number of nodes. Default: the hosts of the description, else 1.",
        "slurm_options": "Further options of sbatch: '--partition=gpu --time=1:00:00 --gpus-per-node=4'.",
    },
    tools=("sbatch", "scontrol", "scancel"),
)
