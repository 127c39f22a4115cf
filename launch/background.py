"""Jobs in the background (`--detach`): the launcher itself leaves the terminal, and keeps a folder about its job."""

import os
import signal
import sys
import time
import traceback

from tfdist.errors import ClusterError
from tfdist.launch.attached import Watcher, run_attached
from tfdist.launch.backends.interface import Attached, Plan, handle_of
from tfdist.launch.errors import UsageError, print_error
from tfdist.launch.job import JobFiles
from tfdist.launch.job_folder import JobFolder
from tfdist.launch.job_status import JobStatus, State
from tfdist.launch.settings import Settings

_STARTED = b"started"

MEASURED_SECONDS = 5.0
"""How often memory and progress are written."""


def run_in_background(backend: str, back_end: Attached, plan: Plan, settings: Settings) -> int:
    """Starts the plan in the background and prints its handle; returns the exit code of the command.

    The process forks: this one waits until the tasks are being started, or cannot be, and the other supervises them. So what
    runs is this very plan, and no secret passes through a command line or a file.

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
        try:
            with open(read_end, "rb") as pipe:
                answer = pipe.read()
        except KeyboardInterrupt:
            os.kill(pid, signal.SIGTERM)
            return 128 + signal.SIGINT
        if answer == _STARTED:
            print(handle_of(backend, folder.id))
            return 0
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        sys.stderr.write(folder.output.read_text(encoding="utf-8", errors="replace"))
        folder.remove()
        return code if code > 0 else 1
    os.close(read_end)
    _leave_terminal(folder)
    os._exit(_supervise(back_end, plan, settings, _Recorder(folder, write_end, settings.grace_period)))


def _supervise(back_end: Attached, plan: Plan, settings: Settings, recorder: "_Recorder") -> int:
    try:
        return run_attached(back_end, plan, settings, recorder)
    except (ClusterError, UsageError) as error:
        print_error(error)
        recorder.failed(error, 2)
        return 2
    except Exception as error:
        traceback.print_exc()
        recorder.failed(error, 1)
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _leave_terminal(folder: JobFolder) -> None:
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    output = os.open(folder.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for descriptor, standard in ((null, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, standard)
    os.close(null)
    os.close(output)


class _Recorder(Watcher):
    """Writes what happens into the folder of the job."""

    def __init__(self, folder: JobFolder, started_pipe: int, grace_period: float) -> None:
        self._folder = folder
        self._grace_period = grace_period
        self._pipe = started_pipe
        self._complained = False
        self._written_at = 0.0

    def started(self, plan: Plan, files: JobFiles) -> None:
        cluster, choice = plan.job.cluster, plan.job.choice
        program, first = plan.job.program, cluster.tasks[0]
        config = cluster.tf_config(first.job, first.index)
        self._folder.write_job(
            {
                "created": time.time(),
                "folder": plan.job.folder,
                "program": program.script or f"-m {program.module}",  # Not its arguments, which may be secret.
                "cluster": {name: value for name, value in config.items() if name != "task"},
                "topology": cluster.describe(),
                "strategy": choice.strategy,
                "grace_period": self._grace_period,
                "rule": choice.rule,
                "log_dir": str(files.log_dir.absolute()),
                "logs": {task.name: str(files.log(task).absolute()) for task in cluster.tasks},
            }
        )
        self._folder.write_status(JobStatus(State.STARTING))
        os.write(self._pipe, _STARTED)
        os.close(self._pipe)

    def failed(self, error: Exception, code: int) -> None:
        """Takes note of an error of the launcher itself."""
        self.changed(JobStatus(State.FAILED, reason=" ".join(str(error).split()), exit_code=code))

    def measured(self, status: JobStatus) -> None:
        if time.monotonic() - self._written_at > MEASURED_SECONDS:
            self.changed(status)

    def changed(self, status: JobStatus) -> None:
        self._written_at = time.monotonic()
        try:
            self._folder.write_status(status)
        except OSError as error:  # A full disk does not end the training.
            if not self._complained:
                print(f"tfdist: {self._folder.path}: {error.strerror}; tfdist status may be out of date", flush=True)
            self._complained = True
