"""`tfdist scale`: changes the number of workers of a job while it trains."""

import time
from pathlib import Path

from tfdist.launch.background.background_jobs import BackgroundJobs
from tfdist.launch.background.job_folder import JobFolder
from tfdist.launch.commands.job_commands import job_of
from tfdist.launch.errors import UsageError
from tfdist.launch.supervision.scaling import REQUEST, Room, ask, is_asked

USAGE = """usage: tfdist scale HANDLE worker=N
       tfdist scale LOG_FOLDER worker=N

Changes the number of workers of a job while it trains under parameter_server or hogwild. The job is named by its handle, or
by its log folder if it runs in a terminal. Workers are added and removed at the end: with worker=3, worker:0 to worker:2
train. There is room for as many workers as the description has, or as --max_workers gave.

Exit code: 0 if the launcher starts and ends workers now; 2 if it cannot.
"""

ANSWER_SECONDS = 10.0
"""How long the launcher may take to read the request."""


def main(argv: list[str]) -> int:
    """Runs the command; returns its exit code."""
    if {"--help", "-h"} & set(argv):
        print(USAGE, end="")
        return 0
    if len(argv) != 2:
        raise UsageError("tfdist scale: expected HANDLE worker=N; tfdist status lists your jobs")
    room = scale(argv[0], _number(argv[1]))
    print(f"{argv[0]}  {room.now} of at most {room.most} workers")
    return 0


def scale(name: str, number: int) -> Room:
    """Makes a job train with `number` workers, and returns what its launcher says then.

    Raises:
        UsageError: if that is not possible; the message says why.
        BackendError: for a wrong handle.
    """
    log_dir = _log_dir(name)
    room = Room.read(log_dir)
    if room is None:
        raise UsageError(f"{name}: no launcher supervises a job there; it has ended, or is only being started")
    if room.refusal is not None:
        raise UsageError(f"{name}: {room.refusal}")
    if not 1 <= number <= room.most:
        raise UsageError(
            f"{name}: {number} workers are not possible: 1 to {room.most} are (tfdist run --max_workers makes room for more)"
        )
    try:
        ask(log_dir, number)
    except OSError as error:
        raise UsageError(f"{log_dir / REQUEST}: {error.strerror}") from error
    deadline = time.monotonic() + ANSWER_SECONDS
    while is_asked(log_dir):
        if time.monotonic() > deadline:
            (log_dir / REQUEST).unlink(missing_ok=True)
            raise UsageError(f"{name}: its launcher has not answered within {ANSWER_SECONDS:.0f} s; has it been stopped?")
        time.sleep(0.05)
    answer = Room.read(log_dir)
    if answer is None:  # A launcher that ends removes the request, too.
        raise UsageError(f"{name} has ended meanwhile")
    return answer


def _number(word: str) -> int:
    job, _, number = word.partition("=")
    if job != "worker":
        raise UsageError(f"tfdist scale: {word}: only workers join and leave a training; expected worker=N")
    if not (number.isascii() and number.isdecimal()):
        raise UsageError(f"tfdist scale: {word}: expected worker=N, a whole number")
    return int(number)


def _log_dir(name: str) -> Path:
    """Returns the log folder of the job with this handle or log folder."""
    if "://" not in name:
        return Path(name)
    jobs, job_id = job_of(name)
    if not isinstance(jobs, BackgroundJobs):
        raise UsageError(f"{name}: workers cannot join or leave a job of this back end")
    status = jobs.status(job_id)
    if status.state.is_final:
        raise UsageError(f"{name} has ended: {status.state}")
    return Path(str(JobFolder.open(name.partition("://")[0], job_id).job.get("log_dir", "")))
