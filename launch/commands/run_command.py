"""Trains a Keras program on the described cluster: `tfdist run`, or `python -m tfdist.launch`.

    tfdist run --tier STANDARD_1                       the bundled example: handwritten digits
    tfdist run -n 4 train.py                           4 workers on this machine
    tfdist run --cluster job.conf train.py -- --epochs=5
    tfdist run --tier STANDARD_1 -m package.module -- --epochs=5
    tfdist run --cluster config.yaml --dry_run         what would be started, and why

Every task runs the same program, which calls `tfdist.strategy()`. Words after the program are its arguments; a first `--` among
them is dropped. Arguments of the bundled example come after `--`.

Exit codes: 0 the program finished; 2 a bad description, flag or program, nothing was started; 130 Ctrl-C; 143 SIGTERM; else the
exit code of the task that failed first, or 128 + N where signal N killed it.
"""

import dataclasses
import os
import signal
import sys
from typing import Any

from absl import flags
from absl import logging as _absl_logging  # noqa: F401  defines --log_dir

from tfdist import strategies
from tfdist.choice import Choice, choose, prepared
from tfdist.cluster import Cluster
from tfdist.create_strategy import START_VARIABLE
from tfdist.devices import with_gpus_per_task
from tfdist.dialects.environment import CLUSTER_VARIABLE
from tfdist.dialects.parsing.document import MAX_GPUS_PER_TASK, MAX_TASKS
from tfdist.dialects.registry import override_flags
from tfdist.flags import DEFAULT_START_TIMEOUT, cluster_from_flags, define_flags, describes, with_flags
from tfdist.launch.backends.interface import Attached, Backend, Plan
from tfdist.launch.backends.registry import backends, find
from tfdist.launch.background.detach import run_in_background
from tfdist.launch.background.submitted import run_submitted
from tfdist.launch.command_line import checks, defaults, splitting
from tfdist.launch.commands import dry_run, run_flags
from tfdist.launch.commands.help_topics import help_text
from tfdist.launch.errors import UsageError
from tfdist.launch.jobs.fault_injection import COUNT_STEPS
from tfdist.launch.jobs.job import Job, Program
from tfdist.launch.jobs.settings import Settings
from tfdist.launch.supervision import backups, scaling
from tfdist.launch.supervision.attached import run_attached
from tfdist.launch.supervision.state_file import StateFile
from tfdist.messages import print_error, printable
from tfdist.rank_info import RankInfo
from tfdist.strategies.runtime import lost_timeout

FLAGS = flags.FLAGS
define_flags()
flags.adopt_module_key_flags(sys.modules["tfdist.flags"])
flags.adopt_module_key_flags(run_flags)
flags.DEFINE_string("m", None, "Python module to run on every task, instead of a script.")
flags.DEFINE_integer(
    "workers",
    None,
    "Number of workers on this machine, which train together: the shortest description of a cluster.",
    short_name="n",
    lower_bound=1,
    upper_bound=MAX_TASKS,
)
flags.DEFINE_integer(
    "max_workers",
    None,
    "Room for this many workers under parameter_server and hogwild. The training begins with those of the description; tfdist "
    "scale adds and removes some while it goes on.",
    lower_bound=1,
    upper_bound=MAX_TASKS,
)
flags.DEFINE_bool("dry_run", False, "Print the tasks, their addresses and TF_CONFIG, the strategy and its rule; start nothing.")
flags.DEFINE_string("summary", None, "File for a summary of the job as JSON.")
flags.declare_key_flag("log_dir")  # Defined by absl. Here: the folder for the output of the tasks.
flags.DEFINE_string("backend", "local", f"Where the tasks run: {', '.join(backends())}.")
flags.DEFINE_bool("detach", False, "Run the job in the background and print its handle, for tfdist status, logs and cancel.")
flags.DEFINE_multi_string(
    "env", [], "NAME=VALUE, or NAME for its value here: a variable for every task. Can be given several times."
)
flags.DEFINE_bool("local", False, "Run every task on this machine, whatever hosts the description names.")
flags.DEFINE_integer(
    "gpus_per_task",
    None,
    "GPUs of this machine for each task that computes, 0 for none. Default: as the description says, else equal numbers.",
    lower_bound=0,
    upper_bound=MAX_GPUS_PER_TASK,
)
flags.DEFINE_bool("defaults", True, "Take flags that are not given from tfdist.toml, or [tool.tfdist] of pyproject.toml, here.")
flags.DEFINE_bool("verbose", False, "Show all output of TensorFlow.")
for _backend in backends().values():
    for _name, _help in _backend.options.items():
        flags.DEFINE_string(_name, None, f"{_backend.name}: {_help}")
flags.register_validator("start_timeout", lambda seconds: seconds > 0, "it counts seconds and is above 0")


def main(argv: list[str]) -> int:
    """Runs the command; returns its exit code. `argv` begins with its name."""
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # As some parents leave it: nobody would hear how a child has ended.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # Tasks print arbitrary characters.
    return _run(*_parse(argv))


def _parse(argv: list[str]) -> tuple[Program, str | None]:
    """Parses the flags of the launcher; returns the program, and its first argument that has the name of one, or None."""
    launcher_words, program_words = splitting.split(argv, FLAGS)
    if splitting.HELP & set(launcher_words):
        print(__doc__ + "\n" + help_text(FLAGS))
        sys.exit(0)
    try:
        FLAGS(launcher_words)
    except flags.CantOpenFlagFileError as error:
        raise UsageError(f"--flagfile: {str(error).partition(': ')[2]}") from error
    except flags.UnrecognizedFlagError as error:
        found = str(error) if "?" in str(error) else f"{error}."
        raise UsageError(f"{found} An argument of your program goes after it: train.py --{error.flagname}") from error
    except UnicodeDecodeError as error:
        raise UsageError("--flagfile: this file is not text in UTF-8") from error
    except ValueError as error:  # absl raises it for `--nodry_run=3`.
        raise UsageError(str(error)) from error
    try:
        os.getcwd()
    except OSError as error:
        raise UsageError(f"the current folder does not exist any more: {error}") from error
    return splitting.program(program_words, FLAGS.m), splitting.after_program(program_words, FLAGS)


def _defaults() -> list[tuple[str, str]]:
    """Sets the flags that a file of defaults gives; returns what was set, and where from."""
    if not FLAGS.defaults:
        return []
    known = {flag.name for flag in FLAGS.get_key_flags_for_module(__name__)}

    def of_other_backends() -> set[str]:
        return {name for backend in backends().values() if backend.name != FLAGS.backend for name in backend.options}

    applied = defaults.apply(FLAGS, known, of_other_backends)
    if applied and not FLAGS.dry_run:
        words = " ".join(word for word, _ in applied)
        print(f"tfdist: {printable(words)}   (from {applied[0][1]})", file=sys.stderr)
    return applied


def _run(program: Program, like_a_flag: str | None) -> int:
    """Runs the command; returns its exit code. `like_a_flag` is an argument of the program."""
    from_file = _defaults()
    checks.check_numbers(FLAGS)
    described = _described_cluster(program)
    if like_a_flag:
        print_error(f"{like_a_flag} follows the program, so the program gets it; flags of tfdist go before the program")
    cluster, choice = _chosen(described)
    backend = find(FLAGS.backend)
    job = Job(
        cluster,
        choice,
        program,
        gpus_per_task=FLAGS.gpus_per_task,
        environment=_environment(),
        verbose=FLAGS.verbose,
        options=_options(),
        flags=_given_flags(),
    )
    plan = backend.plan(job)
    if refusal := strategies.refusal(cluster, choice):
        error = cluster.source.error(f"{refusal} (--dry_run shows the translation)")
        plan = dataclasses.replace(plan, refusal=error)
    if backend.name == "local" and (
        reason := strategies.keras_backend.refusal(choice.strategy, job.environment.get("KERAS_BACKEND"))
    ):
        raise UsageError(reason)
    settings = run_flags.settings(FLAGS, (task.name for task in cluster.tasks))
    backups.check(settings, frozenset(job.environment))
    if FLAGS.dry_run:
        dry_run.explain(plan, from_file)
        return 0
    if plan.refusal is not None and refusal:
        raise plan.refusal
    checks.check_program(program)
    if plan.refusal is not None:
        raise plan.refusal
    checks.check_summary(FLAGS.summary)
    checks.check_folders(FLAGS)
    return _start(backend, plan, settings)


def _chosen(cluster: Cluster) -> tuple[Cluster, Choice]:
    """Returns the cluster that the flags make of the described one, and its strategy."""
    if FLAGS.max_workers is not None:
        cluster = scaling.with_room(cluster, FLAGS.max_workers)
    choice = choose(cluster)
    if FLAGS.local:
        tasks = tuple(dataclasses.replace(task, host=None, port=None) for task in cluster.tasks)
        cluster = dataclasses.replace(cluster, tasks=tasks)
    cluster = prepared(cluster)
    if FLAGS.gpus_per_task is not None:
        cluster = with_gpus_per_task(cluster, choice.strategy, FLAGS.gpus_per_task)
        choice = choose(cluster)  # One task with several devices has another strategy.
    return cluster, choice


def _start(backend: Backend, plan: Plan, settings: Settings) -> int:
    """Runs the plan here, in the background, or as a job that the back end runs; returns the exit code of the command."""
    if not isinstance(backend.runs, Attached):
        if FLAGS.max_workers is not None:
            raise UsageError(
                f"--max_workers: --backend {backend.name} starts all tasks itself; describe as many as should train"
            )
        if FLAGS.state_file:
            raise UsageError(f"--state_file: --backend {backend.name} keeps the states itself; ask tfdist status --json HANDLE")
        return run_submitted(backend.name, backend.runs, plan, follow=not FLAGS.detach)
    if FLAGS.detach:
        if FLAGS.state_file:
            raise UsageError("--state_file goes without --detach, which keeps the states itself (tfdist status --json)")
        return run_in_background(backend.name, backend.runs, plan, settings)
    watcher = StateFile(FLAGS.state_file, settings.grace_period) if FLAGS.state_file else None
    return run_attached(backend.runs, plan, settings, watcher)


def _environment() -> dict[str, str]:
    """Returns the variables for every task that the flags give."""
    environment = checks.environment(FLAGS.env)
    if FLAGS.fail_at:
        environment[COUNT_STEPS] = "1"
    if FLAGS.start_timeout > DEFAULT_START_TIMEOUT:
        environment[START_VARIABLE] = str(FLAGS.start_timeout)
    if FLAGS["lost_timeout"].present:
        environment[lost_timeout.VARIABLE] = str(FLAGS.lost_timeout)
    return environment


def _options() -> dict[str, str]:
    """Returns the flags of the chosen back end that are given. Raises UsageError if a flag of another back end is given."""
    found = {}
    for backend in backends().values():
        for name in backend.options:
            value = FLAGS[name].value
            if value is not None and backend.name != FLAGS.backend:
                raise UsageError(f"--{name} goes with --backend {backend.name}, and this is --backend {FLAGS.backend}")
            if value is not None:
                found[name] = value
    return found


def _given_flags() -> tuple[str, ...]:
    """Returns the given flags that describe the job, wherever it runs."""
    known = [flag.name for flag in FLAGS.get_key_flags_for_module(__name__)]
    of_backends = {name for backend in backends().values() for name in backend.options}
    left_out = {"backend", "defaults", "detach", "dry_run", "env", "m", "state_file"} | of_backends
    given = [word for name in known if FLAGS[name].present and name not in left_out for word in _words_of(FLAGS[name])]
    return (*given, *(f"--env={word.partition('=')[0]}" for word in FLAGS.env))


def _words_of(flag: "flags.Flag[Any]") -> list[str]:
    """Returns a flag as on a command line: one word, or one for each of its values if it can be given several times."""
    if isinstance(flag, flags.MultiFlag):  # absl joins these words by line ends; a value of another flag may hold line ends.
        return [f"--{flag.name}={value}" for value in flag.value or ()]
    return [flag.serialize()]


def _described_cluster(program: Program) -> Cluster:
    """Returns the cluster of the flags, else that of the environment."""
    if FLAGS.workers is not None:
        if describes(FLAGS):
            other = next(name for name in ("tier", "cluster", *override_flags()) if FLAGS[name].value is not None)
            raise UsageError(
                f"-n counts the workers of a cluster without another description, and --{other} describes one; give one of them"
            )
        FLAGS["cluster"].value = f'{{"worker": {FLAGS.workers}}}'
    cluster = cluster_from_flags(FLAGS)
    if cluster is None:
        raise UsageError(
            "no cluster is described: give -n WORKERS, --tier NAME or --cluster FILE, or read --help"
            + splitting.misplaced(program)
        )
    name = cluster.source.name
    if name == "<text>":
        name = "--cluster" if FLAGS.workers is None else f"-n {FLAGS.workers}"
        cluster = dataclasses.replace(cluster, source=dataclasses.replace(cluster.source, name=name))
    if isinstance(cluster, RankInfo):
        if describes(FLAGS) and not FLAGS.local and cluster.local_size != cluster.size:
            raise UsageError(
                f"{name}: this describes {cluster.size} ranks, but not their hosts; run all of them here with --local, or "
                "start the program itself on every host"
            )
        cluster = with_flags(cluster.outline(), FLAGS)
    # A TFDIST_CLUSTER is a description like that of --cluster, whatever task it names.
    if cluster.task is not None and not describes(FLAGS) and not os.environ.get(CLUSTER_VARIABLE):
        raise UsageError(
            f"{name} says that this process is {cluster.task[0]}:{cluster.task[1]} of a cluster that another launcher started; "
            f"run the program itself (python train.py), or unset {name} and give --tier or --cluster"
        )
    return cluster
