"""`tfdist status`, `tfdist logs` and `tfdist cancel`: what can be asked about a job by its handle."""

import dataclasses
import json
import os
import re
import sys
import time

from absl import flags

from tfdist.cluster import Cluster
from tfdist.dialects import read
from tfdist.launch.backends.interface import Attached, BackendError, Detached, handle_of
from tfdist.launch.backends.registry import find
from tfdist.launch.background import job_folder
from tfdist.launch.background.background_jobs import BackgroundJobs
from tfdist.launch.background.job_folder import JobFolder
from tfdist.launch.errors import UsageError
from tfdist.launch.jobs.job_status import JobStatus, State, TaskStatus
from tfdist.launch.jobs.progress import size
from tfdist.messages import print_error, printable
from tfdist.pictures import mermaid, svg

USAGE = {
    "status": """usage: tfdist status [--json | --mermaid | --svg FILE] [HANDLE]

Shows the state of a job and of its tasks, and while it trains what binds it: a link, a processor, the chief. Without a handle,
shows all jobs of yours in the background on this machine.

  --json       print JSON, for programs
  --mermaid    print a flowchart of the tasks, colored by their states
  --svg FILE   write the same picture to a file

Exit code: 0; 1 if the job has failed, was cancelled or is lost.
""",
    "logs": """usage: tfdist logs [-f] HANDLE [TASK]

Prints what the tasks of a job have printed so far, each line with the name of its task; with TASK (worker:1), that of one.

  -f, --follow   go on until the job has ended

Exit code: 0, however the job ends; 2 if there is no such job, or its logs are gone.
""",
    "cancel": """usage: tfdist cancel HANDLE

Ends a job with SIGTERM, and waits until it has ended. A job that has ended already stays as it is.

Exit code: 0 if the job has ended; 2 if there is no such job, or it does not end.
""",
}

_HANDLE = re.compile(r"([a-z][a-z0-9_]*)://(\S+)", re.ASCII)


def main(argv: list[str]) -> int:
    """Runs `status`, `logs` or `cancel`, the first word; returns its exit code."""
    verb, *words = argv
    values = flags.FlagValues()
    flags.DEFINE_boolean("help", False, "", short_name="h", flag_values=values)
    if verb == "status":
        flags.DEFINE_boolean("json", False, "", flag_values=values)
        flags.DEFINE_boolean("mermaid", False, "", flag_values=values)
        flags.DEFINE_string("svg", None, "", flag_values=values)
    if verb == "logs":
        flags.DEFINE_boolean("follow", False, "", short_name="f", flag_values=values)
    words = values([f"tfdist {verb}", *words])[1:]
    if values["help"].value:
        print(USAGE[verb], end="")
        return 0
    if verb == "status":
        forms = [f"--{name}" for name in ("json", "mermaid", "svg") if values[name].present]
        if len(forms) > 1:
            raise UsageError(f"status: {' and '.join(forms)} are different forms of the answer; give one of them")
        if values["mermaid"].value or values["svg"].value is not None:
            form = "--svg FILE" if values["svg"].value else "--mermaid"
            return _picture(_one(words, f"status {form}"), values["svg"].value)
        return _status(words, bool(values["json"].value))
    if verb == "logs":
        return _logs(words, bool(values["follow"].value))
    return _cancel(words)


def job_of(handle: str) -> tuple[Detached | BackgroundJobs, str]:
    """Returns who answers for a handle, and the id of the job there. Raises BackendError."""
    match = _HANDLE.fullmatch(handle)
    if match is None:
        if os.path.isdir(handle):
            raise BackendError(
                f"{handle!r} is a folder, not a handle; only jobs in the background (tfdist run --detach) have one. A job in a "
                "terminal writes its state to a file with --state_file, and its logs are in its log folder"
            )
        raise BackendError(f"{handle!r} is not a handle; expected BACKEND://ID, as tfdist run --detach prints it")
    runs = find(match[1]).runs
    return (BackgroundJobs(match[1]) if isinstance(runs, Attached) else runs), match[2]


def _status(words: list[str], as_json: bool) -> int:
    if not words:
        return _table(as_json)
    jobs, job_id = job_of(_one(words, "status"))
    status = jobs.status(job_id)
    if as_json:
        print(json.dumps({"handle": words[0], **status.as_json()}, indent=2))
    else:
        print(f"{words[0]}  {status.state}{f': {printable(status.reason)}' if status.reason else ''}")
        if status.progress is not None:
            left = None if status.state.is_final else status.progress.seconds_left
            print(f"  {printable(dataclasses.replace(status.progress, seconds_left=left).describe())}")
        if status.binding is not None:
            print(f"  binds: {printable(str(status.binding['text']))}")
        for row in _columns([_task_row(task) for task in status.tasks]):
            print(f"  {row}")
    return 1 if status.state in (State.FAILED, State.CANCELLED, State.LOST) else 0


def _picture(handle: str, path: str | None) -> int:
    """Draws a job with the states of its tasks; prints a flowchart without a `path`."""
    jobs, job_id = job_of(handle)
    if not isinstance(jobs, BackgroundJobs):
        raise BackendError(f"{handle}: there are pictures only of jobs in the background on this machine")
    status = jobs.status(job_id)
    config = JobFolder.open(handle.partition("://")[0], job_id).job.get("cluster")
    if config is None:
        raise BackendError(f"{handle}: its tasks have not been started")
    cluster = read(config)
    assert isinstance(cluster, Cluster)
    states = {task.name: str(task.state) for task in status.tasks}
    if path is None:
        print(mermaid.write(cluster, states), end="")
        return 0
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(svg.write(cluster, states))
    except OSError as error:
        raise UsageError(f"--svg {path}: {error.strerror}") from error
    return 0


def _task_row(task: TaskStatus) -> list[str]:
    code = "" if task.exit_code is None else f"exit code {task.exit_code}"
    restarts = f"{task.restarts} restart{'s' * (task.restarts > 1)}" if task.restarts else ""
    pid = f"process {task.pid}" if task.pid is not None else ""
    memory = size(task.memory) if task.memory is not None else ""
    use = "" if task.use is None else task.use.text
    extra = ", ".join(part for part in (code, restarts, pid, memory, use, task.note) if part)
    return [task.name, str(task.state), task.where, printable(extra)]


def _table(as_json: bool) -> int:
    jobs = []
    for folder, job in JobFolder.all(left_out=print_error):
        try:
            jobs.append((handle_of(str(job.get("backend", "local")), folder.id), job, folder.status()))
        except BackendError as error:
            print_error(error)
    if as_json:
        print(json.dumps([{"handle": handle, **job, **status.as_json()} for handle, job, status in jobs], indent=2))
    elif not jobs:
        print("no jobs in the background; tfdist run --detach starts one")
    else:
        for row in _columns([_job_row(*each) for each in jobs]):
            print(row)
    return 0


def _job_row(handle: str, job: "dict[str, object]", status: JobStatus) -> list[str]:
    created = time.strftime("%Y-%m-%d %H:%M", time.localtime(job_folder.created(job)))
    topology = f"{job.get('topology', '')}, {job.get('strategy', '')}" if "topology" in job else ""
    return [handle, str(status.state), created, topology, printable(str(job.get("program", "")))]


def _columns(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _logs(words: list[str], follow: bool) -> int:
    if not 1 <= len(words) <= 2:
        raise UsageError("tfdist logs: expected HANDLE or HANDLE TASK; tfdist status lists your jobs")
    jobs, job_id = job_of(words[0])
    task = words[1] if len(words) > 1 else None
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # Tasks print arbitrary characters.
    for line in jobs.logs(job_id, task, follow):
        print(line.shown if task is None else line.text, flush=follow)
    return 0


def _cancel(words: list[str]) -> int:
    jobs, job_id = job_of(_one(words, "cancel"))
    before = jobs.status(job_id).state
    if before.is_final:
        print(f"{words[0]} has ended already: {before}")
        return 0
    jobs.cancel(job_id)
    print(f"{words[0]}  {jobs.status(job_id).state}")
    return 0


def _one(words: list[str], verb: str) -> str:
    if len(words) != 1:
        raise UsageError(f"tfdist {verb}: expected one HANDLE; tfdist status lists your jobs")
    return words[0]
