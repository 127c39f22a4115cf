"""Flags of `tfdist run` about what is shown, restarts and limits, and `settings`, which reads them."""

from collections.abc import Iterable
from typing import Any

from absl import flags

from tfdist.create_strategy import LONGEST_TIMEOUT
from tfdist.errors import nearest
from tfdist.launch.errors import UsageError
from tfdist.launch.jobs.fault_injection import FaultInjector, fault
from tfdist.launch.jobs.restarts import MAX_RESTARTS, WINDOW_SECONDS
from tfdist.launch.jobs.settings import GRACE_SECONDS, Settings
from tfdist.launch.terminal.live_view import VIEWS
from tfdist.strategies.runtime.lost_timeout import DEFAULT_SECONDS

RESTARTED = ("worker", "ps", "evaluator")
"""Jobs whose tasks are restarted alone: workers under parameter_server and hogwild, ps under hogwild."""

flags.DEFINE_enum("view", "auto", VIEWS, "On a terminal: a live view of the tasks, or lines only. Without a terminal: lines.")
flags.DEFINE_string("tensorboard", None, "Folder that TensorBoard shows while the job runs; its address is printed.")
flags.DEFINE_string("state_file", None, "File for the states of job and tasks as JSON, written again whenever one changes.")
flags.DEFINE_integer(
    "max_restarts",
    0,
    "Start all tasks again after a task has failed, up to this many times. The training continues from its last backup.",
    lower_bound=0,
)
flags.DEFINE_string(
    "backup_dir",
    None,
    "Folder of the backup from which the training continues when it is started again. Default: none; with --max_restarts the "
    "folder of the job or of its logs.",
)
flags.DEFINE_string("backup_freq", None, "How often the backup is written: epoch, or a number of batches. Default: epoch.")
flags.DEFINE_list(
    "task_restarts",
    [],
    "Restarts of each evaluator, of each worker under parameter_server and hogwild, and of each ps under hogwild: 5, or "
    "worker=5,evaluator=0. Default: "
    f"{MAX_RESTARTS}. Each waits twice as long as the one before: 1, 2, 4 s, up to 60 s.",
)
flags.DEFINE_float(
    "restart_window",
    WINDOW_SECONDS,
    "A task that has run for this many seconds has all its --task_restarts again, a job that has trained for as many all its "
    "--max_restarts.",
    lower_bound=1.0,
)
flags.DEFINE_float(
    "stall_timeout",
    None,
    "Seconds without output of any training task after which the job has failed. The logs then hold the Python stacks.",
    lower_bound=1.0,
)
flags.DEFINE_float(
    "step_timeout",
    None,
    "Seconds without a step of a running fit after which the job has failed. The logs then hold the Python stacks.",
    lower_bound=1.0,
)
flags.DEFINE_float(
    "lost_timeout",
    DEFAULT_SECONDS,
    "Seconds without an answer after which a task counts as gone for good: a ps, the chief, all workers, or a task of "
    "multi_worker_mirrored. The job then fails, and names it.",
    lower_bound=1.0,
    upper_bound=1e5,
)
flags.DEFINE_float(
    "grace_period", GRACE_SECONDS, "Seconds that the program has after SIGTERM or Ctrl-C, to save and end.", lower_bound=0.0
)
flags.DEFINE_multi_string(
    "fail_at",
    [],
    "Kill or stop tasks on purpose, to try what the job does then: worker:1,step=30,how=kill, how=term or how=stop:20; after=9 "
    "in place of step counts seconds; random,every=15,of=worker,seed=1. Can be given several times.",
)


def settings(values: flags.FlagValues, tasks: Iterable[str]) -> Settings:
    """Returns the settings that the flags give.

    Raises:
        UsageError: for restarts that are not numbers of jobs, and faults that cannot be.
    """
    names = list(tasks)
    return Settings(
        values.log_dir,
        values.summary,
        values.start_timeout,
        values.max_restarts,
        values.stall_timeout,
        step_timeout=values.step_timeout,
        task_restarts=_task_restarts(values.task_restarts),
        restart_window=values.restart_window,
        grace_period=min(values.grace_period, LONGEST_TIMEOUT),
        view=values.view,
        tensorboard=values.tensorboard,
        backup_dir=values.backup_dir,
        backup_freq=values.backup_freq,
        fault_injector=FaultInjector([fault(text, names) for text in values.fail_at]) if values.fail_at else None,
    )


def _task_restarts(words: list[Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    for word in words:
        job, equals, number = word.partition("=") if "=" in word else ("", "", word)
        if not (number.isascii() and number.isdecimal()):
            raise UsageError(f"--task_restarts {word}: expected a number, or worker=5,evaluator=0")
        if equals and job not in RESTARTED:
            raise UsageError(
                f"--task_restarts {word}: tasks that are restarted alone are {', '.join(RESTARTED)}{nearest(job, RESTARTED)}"
            )
        found.update({job: int(number)} if equals else dict.fromkeys(RESTARTED, int(number)))
    return found
