"""`run_submitted`: hands a plan to a back end with a supervision of its own, and shows the job until it has ended."""

import sys

from tfdist.launch.backends.interface import Detached, Plan, handle_of
from tfdist.launch.jobs.job_status import State


def run_submitted(backend: str, runs: Detached, plan: Plan, *, follow: bool) -> int:
    """Submits the plan; returns the exit code of the command.

    Args:
        backend: name of the back end.
        runs: the back end.
        plan: the plan.
        follow: whether to show the output of the tasks until the job has ended. Otherwise the handle is printed. Ctrl-C ends
            the showing, and not the job.

    Raises:
        BackendError: if the back end does not take the job.
    """
    job_id = runs.submit(plan)
    handle = handle_of(backend, job_id)
    if not follow:
        print(handle)
        return 0
    print(f"tfdist: {plan.job.cluster.describe()}, submitted as {handle}", flush=True)
    try:
        for line in runs.logs(job_id, None, follow=True):
            print(f"{line.task} | {line.text}" if line.task else line.text, flush=True)
    except KeyboardInterrupt:
        print(
            f"tfdist: the job goes on; tfdist logs -f {handle} shows it again, tfdist cancel {handle} ends it", file=sys.stderr
        )
        return 130
    status = runs.status(job_id)
    print(f"tfdist: {handle} {status.state}{f': {status.reason}' if status.reason else ''}", flush=True)
    return 0 if status.state == State.SUCCEEDED else status.exit_code or 1
