"""`run_submitted`: hands a plan to a back end with a supervision of its own, and shows the job until it has ended."""

import sys
import time

from tfdist.launch.backends.interface import BackendError, Detached, NoAnswerError, Plan, handle_of
from tfdist.launch.backends.outage import Outage
from tfdist.launch.jobs.job_status import JobStatus, State

AGAIN_SECONDS = 2.0
"""Delay before a question without an answer is asked again."""


def run_submitted(backend: str, runs: Detached, plan: Plan, *, follow: bool) -> int:
    """Submits the plan; returns the exit code of the command.

    With `follow` it shows the output of the tasks until the job has ended, and Ctrl-C ends only that; else it prints the
    handle.

    Raises:
        BackendError: if the back end does not take the job. Later errors are shown, with exit code 1: the job may go on.
    """
    job_id = runs.submit(plan)
    handle = handle_of(backend, job_id)
    if not follow:
        print(handle)
        return 0
    print(f"tfdist: {plan.job.cluster.describe()}, submitted as {handle}", flush=True)
    try:
        for line in runs.logs(job_id, None, follow=True):
            print(line.shown, flush=True)
        status = _status(runs, job_id)
    except KeyboardInterrupt:
        print(
            f"tfdist: the job goes on; tfdist logs -f {handle} shows it again, tfdist cancel {handle} ends it", file=sys.stderr
        )
        return 130
    except BackendError as error:  # Not 2, with which nothing was started.
        print(f"tfdist: {error}; the job may go on: tfdist status {handle} asks for it", file=sys.stderr)
        return 1
    print(f"tfdist: {handle} {status.state}{f': {status.reason}' if status.reason else ''}", flush=True)
    return 0 if status.state == State.SUCCEEDED else status.exit_code or 1


def _status(runs: Detached, job_id: str) -> JobStatus:
    outage = Outage()
    while True:
        try:
            return runs.status(job_id)
        except NoAnswerError as error:
            outage.without_answer(error)
            time.sleep(AGAIN_SECONDS)
