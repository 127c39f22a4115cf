"""Jobs in the background (`--detach`): the launcher itself leaves the terminal, and keeps a folder about its job."""

import os
import select
import signal
import sys
import time
import traceback
from contextlib import suppress

from tfdist.errors import ClusterError
from tfdist.launch.backends.interface import Attached, BackendError, Plan, handle_of
from tfdist.launch.background.job_folder import JobFolder
from tfdist.launch.errors import UsageError
from tfdist.launch.jobs.job import JobFiles, without_task
from tfdist.launch.jobs.job_status import JobStatus, State
from tfdist.launch.jobs.settings import Settings
from tfdist.launch.supervision import log_folder
from tfdist.launch.supervision.attached import run_attached
from tfdist.launch.supervision.watcher import StatusWriter
from tfdist.messages import print_error

HANDLE_SECONDS = 20.0
"""How long the command waits for the start of the tasks, to say why there is none. A back end may wait for room for minutes."""

_STARTED = b"started"

_ENDED_BY_SLURM = (
    "--detach: when the script or step of Slurm in which this command runs has ended, Slurm ends the job in the background, "
    "too; leave --detach out, or let the script wait with tfdist logs -f HANDLE"
)


def run_in_background(backend: str, back_end: Attached, plan: Plan, settings: Settings) -> int:
    """Starts the plan in the background and prints its handle; returns the exit code of the command.

    The process forks: this one waits until the tasks are being started, or cannot be, for at most `HANDLE_SECONDS`, and the
    other supervises them. So what runs is this very plan, and no secret passes through a command line or a file.

    Raises:
        UsageError: if the folder of the job cannot be made.
    """
    try:
        folder = JobFolder.create(backend)
    except OSError as error:
        raise UsageError(f"--detach: the folder of the job cannot be made: {error}; set TFDIST_STATE_DIR") from error
    sys.stdout.flush()
    sys.stderr.flush()
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write_end)
        return _await_start(pid, read_end, handle_of(backend, folder.id), folder)
    os.close(read_end)
    _leave_terminal(folder)
    os._exit(_supervise(back_end, plan, settings, folder, write_end))


def _await_start(pid: int, started_pipe: int, handle: str, folder: JobFolder) -> int:
    """Waits for what the process with this id says of the start, and tells the user; returns the exit code of the command."""
    try:
        with open(started_pipe, "rb") as pipe:
            is_late = not select.select([pipe], [], [], HANDLE_SECONDS)[0]
            answer = b"" if is_late else pipe.read()
    except KeyboardInterrupt:  # Nobody has the handle of this job.
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
        folder.remove()
        return 128 + signal.SIGINT
    if is_late:
        print_error("its tasks are not being started yet; tfdist logs and tfdist status tell more, with this handle")
    if is_late or answer == _STARTED:
        print(handle)
        if {"SLURM_JOB_ID", "SLURM_TASK_PID"} <= os.environ.keys():  # In a batch script, or in a task of srun.
            print_error(_ENDED_BY_SLURM)
        return 0
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    sys.stderr.write(folder.output.read_text(encoding="utf-8", errors="replace"))
    if code > 128:  # Whoever has cancelled it asks for its state.
        print_error(f"{handle} was ended before its tasks ran")
    else:
        folder.remove()
    return code if code > 0 else 1


def _supervise(back_end: Attached, plan: Plan, settings: Settings, folder: JobFolder, started_pipe: int) -> int:
    """Runs the job in this process, which has left the terminal; returns its exit code.

    What it prints is in the folder of the job, and may find the disk full.
    """
    with suppress(OSError):
        folder.write_status(JobStatus(State.STARTING))  # It names this process: the job can be cancelled from now on.
    try:
        return run_attached(back_end, plan, settings, _Recorder(folder, started_pipe, settings.grace_period))
    except (ClusterError, UsageError, BackendError) as error:
        with suppress(OSError):
            print_error(error)
        return 2
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        with suppress(OSError):
            traceback.print_exc()
        return 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()


def _leave_terminal(folder: JobFolder) -> None:
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    output = os.open(folder.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for descriptor, standard in ((null, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, standard)
    os.close(null)
    os.close(output)


class _Recorder(StatusWriter):
    """Writes what happens into the folder of the job."""

    def __init__(self, folder: JobFolder, started_pipe: int, grace_period: float) -> None:
        super().__init__(str(folder.path))
        self._folder = folder
        self._grace_period = grace_period
        self._pipe = started_pipe

    def started(self, plan: Plan, files: JobFiles) -> None:
        cluster, choice = plan.job.cluster, plan.job.choice
        program = plan.job.program
        self._folder.write_job(
            {
                "created": time.time(),
                "folder": plan.job.folder,
                "program": program.script or f"-m {program.module}",  # Not its arguments, which may be secret.
                "cluster": without_task(cluster),
                "topology": cluster.describe(),
                "strategy": choice.strategy,
                "grace_period": self._grace_period,
                "rule": choice.rule,
                "log_dir": str(files.log_dir.absolute()),
                "has_named_log_dir": log_folder.name_job(files.log_dir, self._folder.id),
                "logs": {task.name: str(files.log(task).absolute()) for task in cluster.tasks},
            }
        )
        self._folder.write_status(JobStatus(State.STARTING))
        with suppress(BrokenPipeError):  # The command has not waited for it.
            os.write(self._pipe, _STARTED)
        os.close(self._pipe)

    def write(self, status: JobStatus) -> None:
        self._folder.write_status(status)
