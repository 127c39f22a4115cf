"""Trains a Keras program on the described cluster, as processes on this machine.

    python -m tfdist.launch --tier STANDARD_1                       the bundled example: handwritten digits
    python -m tfdist.launch --cluster job.conf train.py -- --epochs=5
    python -m tfdist.launch --tier STANDARD_1 -m package.module -- --epochs=5
    python -m tfdist.launch --cluster config.yaml --dry_run         what would be started, and why

Every task runs the same program, which calls `tfdist.strategy()`. Words after the program (or after `--`) are its arguments.

Exit codes: 0 the program finished; 2 a bad description, flag or program, nothing was started; 130 Ctrl-C; 143 SIGTERM; else the
exit code of the task that failed first, or 128 + N where signal N killed it.
"""

import dataclasses
import importlib.util
import os
import sys
from typing import NoReturn

from absl import flags
from absl import logging as _absl_logging  # noqa: F401  defines --log_dir

from tfdist import strategies
from tfdist.choice import Choice, choose, prepared
from tfdist.cluster import Cluster
from tfdist.devices import with_gpus_per_task
from tfdist.errors import ClusterError, nearest
from tfdist.flags import cluster_from_flags, define_flags, describes, with_flags
from tfdist.launch import command_line, dry_run, summary
from tfdist.launch.backends.local.ports import HeldPorts, is_local, names_this_machine
from tfdist.launch.backends.local.processes import LocalProcesses
from tfdist.launch.backends.local.resources import Resources
from tfdist.launch.job import Job, Program
from tfdist.launch.log_folder import LogFolder, LogFolderError
from tfdist.launch.output import Terminal, last_lines
from tfdist.launch.supervisor import Outcome, Supervisor
from tfdist.messages import printable, without_secrets
from tfdist.rank_info import RankInfo
from tfdist.strategies.evaluator.folder import VARIABLE, EvaluationFolder

FLAGS = flags.FLAGS
define_flags()
flags.adopt_module_key_flags(sys.modules["tfdist.flags"])
flags.DEFINE_string("m", None, "Python module to run on every task, instead of a script.")
flags.DEFINE_bool("dry_run", False, "Print the tasks, their addresses and TF_CONFIG, the strategy and its rule; start nothing.")
flags.DEFINE_string("summary", None, "File for a summary of the job as JSON.")
flags.declare_key_flag("log_dir")  # Defined by absl. Here: the folder for the output of the tasks.
flags.DEFINE_bool("local", False, "Run every task on this machine, whatever hosts the description names.")
flags.DEFINE_integer(
    "gpus_per_task",
    None,
    "GPUs of this machine for each task that computes, 0 for none. Default: as the description says, else equal numbers.",
    lower_bound=0,
)
flags.DEFINE_bool("verbose", False, "Show all output of TensorFlow.")
flags.register_validator("start_timeout", lambda seconds: seconds > 0, "it counts seconds and is above 0")


class UsageError(Exception):
    """A command line that cannot be run."""


def main() -> NoReturn:
    """Runs the command and exits with its code."""
    try:
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # Tasks print arbitrary characters.
        code = _run(_parse(sys.argv))
        sys.stdout.flush()
        sys.exit(code)
    except (ClusterError, flags.Error, UsageError) as error:
        print(f"tfdist: {printable(without_secrets(' '.join(str(error).split())))}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # `--dry_run | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def _parse(argv: list[str]) -> Program:
    """Parses the flags of the launcher, and returns the program to run."""
    launcher_words, program_words = command_line.split(argv, FLAGS)
    if command_line.HELP & set(launcher_words):
        print(__doc__ + "\nFlags:\n" + FLAGS.module_help("tfdist.launch.cli"))
        sys.exit(0)
    try:
        FLAGS(launcher_words)
    except ValueError as error:  # absl raises it for `--nodry_run=3`.
        raise UsageError(str(error)) from error
    try:
        os.getcwd()
    except OSError as error:
        raise UsageError(f"the current folder does not exist any more: {error}") from error
    return command_line.program(program_words, FLAGS.m)


def _run(program: Program) -> int:
    """Runs the command; returns its exit code."""
    cluster = _described_cluster(program)
    choice = choose(cluster)
    if FLAGS.local:
        tasks = tuple(dataclasses.replace(task, host=None, port=None) for task in cluster.tasks)
        cluster = dataclasses.replace(cluster, tasks=tasks)
    cluster = prepared(cluster)
    if FLAGS.gpus_per_task is not None:
        cluster = with_gpus_per_task(cluster, choice.strategy, FLAGS.gpus_per_task)
        choice = choose(cluster)  # One task with several devices has another strategy.
    refusal = strategies.refusal(cluster, choice)
    here = (task for task in cluster.tasks if names_this_machine(task.host))
    resources = Resources(here, choice.strategy, FLAGS.gpus_per_task)
    if FLAGS.dry_run:
        dry_run.explain(cluster.addressed(), choice, refusal, resources)
        return 0
    if refusal:
        raise cluster.source.error(f"{refusal} (--dry_run shows the translation)")
    _check_program(program)
    _check_hosts(cluster)
    if (FLAGS.gpus_per_task or 0) > len(resources.plan.visible):
        raise UsageError(
            f"--gpus_per_task {FLAGS.gpus_per_task}: this process sees {len(resources.plan.visible)} GPUs on this machine"
        )
    _check_summary()
    return _run_job(cluster, choice, program, resources.plan.warnings())


def _described_cluster(program: Program) -> Cluster:
    """Returns the cluster of the flags, else that of the environment."""
    cluster = cluster_from_flags(FLAGS)
    if cluster is None:
        raise UsageError(
            "no cluster is described: give --tier NAME or --cluster FILE, or read --help" + command_line.misplaced(program)
        )
    name = cluster.source.name
    if isinstance(cluster, RankInfo):
        if describes(FLAGS) and not FLAGS.local and cluster.local_size != cluster.size:
            raise UsageError(
                f"{name}: this describes {cluster.size} ranks, but not their hosts; run all of them here with --local, or "
                "start the program itself on every host"
            )
        cluster = with_flags(cluster.outline(), FLAGS)
    if cluster.task is not None and not describes(FLAGS):
        raise UsageError(
            f"{name} says that this process is {cluster.task[0]}:{cluster.task[1]} of a cluster that another launcher started; "
            f"run the program itself (python train.py), or unset {name} and give --tier or --cluster"
        )
    return cluster


def _check_hosts(cluster: Cluster) -> None:
    for task in cluster.tasks:
        if not is_local(task.host):
            raise cluster.source.error(
                f"{task.name} is on {task.host}, and this command starts tasks on this machine only; start the program there "
                "with its TF_CONFIG (--dry_run prints it), or run all tasks here with --local"
            )


def _check_program(program: Program) -> None:
    if program.script is not None:
        if not os.path.isfile(program.script):
            folder, name = os.path.split(program.script)
            others = os.listdir(folder or ".") if os.path.isdir(folder or ".") else []
            raise UsageError(f"{program.script}: there is no such program{nearest(name, others)}")
        return
    assert program.module is not None
    # Only the first part of the name: the search for the rest would run the package's code in the launcher.
    package = program.module.partition(".")[0]
    sys.path.insert(0, os.getcwd())
    try:
        found = importlib.util.find_spec(package)
    except ValueError:  # `-m __main__`
        found = None
    finally:
        sys.path.pop(0)
    if found is None:
        raise UsageError(f"-m {program.module}: there is no module {package} in {os.getcwd()} or among the installed packages")
    if program.module == command_line.EXAMPLE and importlib.util.find_spec("sklearn") is None:
        raise UsageError("the bundled example needs scikit-learn for its images: pip install 'tfdist[examples]'")


def _check_summary() -> None:
    """Raises UsageError for a file that cannot be written, before hours of training instead of after them.

    Removes an earlier summary, which must not be taken for that of this job.
    """
    if FLAGS.summary is None:
        return
    folder = os.path.dirname(FLAGS.summary) or "."
    if os.path.isdir(FLAGS.summary) or not os.access(FLAGS.summary if os.path.exists(FLAGS.summary) else folder, os.W_OK):
        raise UsageError(f"--summary {FLAGS.summary}: this file cannot be written; name a file in an existing folder")
    if os.path.isfile(FLAGS.summary):
        os.remove(FLAGS.summary)


def _run_job(cluster: Cluster, choice: Choice, program: Program, warnings: list[str]) -> int:
    """Runs the job on this machine, after `warnings`; returns the exit code."""
    if note := strategies.tpu_note(cluster):
        print(f"tfdist: {note}", file=sys.stderr)
    ports = HeldPorts()
    cluster = ports.hold(cluster, {task.name for task in cluster.training_tasks})
    terminal = Terminal([task.name for task in cluster.tasks], verbose=FLAGS.verbose)
    try:
        folder = LogFolder(FLAGS.log_dir, terminal.say)
    except LogFolderError as error:
        raise UsageError(f"--log_dir: {error}") from error
    job = Job(cluster, choice, program, folder.path, folder.report_dir, FLAGS.gpus_per_task)
    try:
        if cluster.job("evaluator"):
            _prepare_evaluation_folder(job)
        terminal.say(f"{cluster.describe()} on this machine; {choice.strategy}: {choice.rule}")
        terminal.say(f"logs in {job.log_dir}")
        for warning in warnings:
            terminal.say(warning)
        removed = [folder.report_dir] if folder.report_dir != folder.path else []
        processes = LocalProcesses(job, verbose=FLAGS.verbose, removed=removed, adopt=True)
        outcome = Supervisor(job, processes, terminal, FLAGS.start_timeout).run()
        ports.close()
        return _report(job, outcome, terminal)
    finally:
        folder.close()
        terminal.close()


def _prepare_evaluation_folder(job: Job) -> None:
    """Names the folder of chief and evaluators to every task, and removes what an earlier chief wrote about its training."""
    job_dir = job.cluster.job_dir if job.cluster.job_dir and "://" not in job.cluster.job_dir else None
    folder = EvaluationFolder(os.environ.get(VARIABLE) or job_dir or job.log_dir)
    os.environ[VARIABLE] = str(folder.base)
    try:
        folder.forget_training()
    except OSError as error:
        raise UsageError(f"{folder.base}: the chief and the evaluators cannot use this folder: {error}") from error


def _report(job: Job, outcome: Outcome, terminal: Terminal) -> int:
    """Writes and shows the summary, or the failure; returns the exit code."""
    values = summary.make(job, outcome)
    if FLAGS.summary is not None:
        try:
            summary.write(values, FLAGS.summary)
        except OSError as error:
            terminal.say(f"--summary: {error}")
    lines = summary.lines(values)
    if outcome.failure is not None:
        lines = [outcome.failure.reason]
        named = [job.log(task) for task in job.cluster.tasks if task.name == outcome.failure.task]
        path = next(iter(named), outcome.failure.log)
        if path is not None and (last := last_lines(path)):
            lines += [f"the last lines of {path}:", *(f"  {line}" for line in last)]
    for line in lines:
        terminal.say(line)
    return outcome.failure.exit_code if outcome.failure else 0
