"""Trains a Keras program on the cluster that a description means, as processes on this machine.

    python -m tfdist.launch --tier STANDARD_1                       the bundled example: handwritten digits
    python -m tfdist.launch --cluster job.conf train.py -- --epochs=5
    python -m tfdist.launch --tier STANDARD_1 -m package.module -- --epochs=5
    python -m tfdist.launch --cluster config.yaml --dry_run         what would be started, and why

Every task runs the same program, which calls `tfdist.strategy()`. What comes after the program (or after `--`) is its own.

Exit codes: 0 the program finished; 2 a bad description, flag or program, nothing was started; 130 Ctrl-C, 143 SIGTERM; else the
exit code of the task that failed first, 128 + N where signal N killed it.
"""

import importlib.util
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from absl import flags
from absl import logging as _absl_logging  # noqa: F401  defines --log_dir

from tfdist import strategies
from tfdist.choice import Choice, choose, prepared
from tfdist.cluster import Cluster, Task
from tfdist.create_strategy import tf_config_json
from tfdist.dialects.cloudml.tiers import tier_name
from tfdist.errors import ClusterError, nearest
from tfdist.flags import cluster_from_flags, define_flags, describes, with_flags
from tfdist.launch.backends.local.ports import is_local
from tfdist.rank_info import RankInfo
from tfdist.strategies.evaluator.folder import VARIABLE, EvaluationFolder

EXAMPLE = "tfdist.examples.digits"

FLAGS = flags.FLAGS
define_flags()
flags.adopt_module_key_flags(sys.modules["tfdist.flags"])
flags.DEFINE_string("m", None, "Python module to run on every task, instead of a script.")
flags.DEFINE_bool("dry_run", False, "Print tasks, addresses, each task's TF_CONFIG, the strategy and why; start nothing.")
flags.DEFINE_string("summary", None, "File for a summary of the job as JSON.")
flags.declare_key_flag("log_dir")  # absl's own: here the folder for the output of every task, a new one below ./tfdist_logs
flags.DEFINE_bool("local", False, "Run every task on this machine, whatever hosts the description names.")
flags.DEFINE_bool("verbose", False, "Show everything that TensorFlow prints.")
flags.register_validator("start_timeout", lambda seconds: seconds > 0, "it counts seconds and is above 0")


def main() -> NoReturn:
    """Runs the command and exits the process with its code."""
    try:
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # Tasks print what they like.
        program = _parse(sys.argv)
        code = _run(program)
        sys.stdout.flush()
        sys.exit(code)
    except (ClusterError, flags.Error, UsageError) as error:
        print(f"tfdist: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # `--dry_run | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


class UsageError(Exception):
    """A command line that cannot be run."""


def _parse(argv: list[str]) -> dict[str, Any]:
    """Parses our own flags and returns the program to run, as backends/local/run_program.py takes it."""
    ours = _underscored(argv)
    if {"--help", "-h", "--helpfull", "--helpshort"} & set(ours[: len(ours) - len(_program_part(ours))]):
        print(__doc__ + "\nFlags:\n" + FLAGS.module_help("tfdist.launch.cli"))
        sys.exit(0)
    theirs = _program_part(ours)
    try:
        FLAGS(ours[: len(ours) - len(theirs)])
    except ValueError as error:  # absl's own answer to `--nodry_run=3`
        raise UsageError(str(error)) from error
    try:
        os.getcwd()
    except OSError as error:
        raise UsageError(f"the current folder is gone: {error}") from error
    if FLAGS.m is not None:
        return {"module": FLAGS.m, "args": _without_separator(theirs)}
    if not theirs or theirs[0] == "--":
        return {"module": EXAMPLE, "args": theirs[1:]}
    return {"script": theirs[0], "args": _without_separator(theirs[1:])}


def _without_separator(arguments: list[str]) -> list[str]:
    return arguments[1:] if arguments[:1] == ["--"] else arguments


def _program_part(argv: list[str]) -> list[str]:
    """The end of the command line that is not ours: from `--`, behind `-m MODULE`, or from the first word that is no flag."""
    before = ""
    for position, argument in enumerate(argv[1:], start=1):
        if before in ("-m", "--m"):
            return argv[position + 1 :]
        takes_value = before in FLAGS and not FLAGS[before].boolean
        if argument == "--" or not (argument.startswith("-") or takes_value):
            return argv[position:]
        if argument.startswith(("-m=", "--m=")):
            return argv[position + 1 :]
        before = "" if takes_value else argument if argument in ("-m", "--m") else argument.lstrip("-").replace("-", "_")
    return []


def _underscored(argv: list[str]) -> list[str]:
    """The command line with our flags as absl wants them: `--worker-count=2` is `--worker_count=2`."""
    theirs = _program_part(argv)
    ours = [argument.partition("=") for argument in argv[: len(argv) - len(theirs)]]
    return [
        (name.replace("-", "_").replace("__", "--", 1) if name.startswith("--") else name) + equals + value
        for name, equals, value in ours
    ] + theirs


def _run(program: dict[str, Any]) -> int:
    cluster = _described(program)
    choice = choose(cluster)
    if FLAGS.local:
        cluster = _on_this_machine(cluster)
    cluster = prepared(cluster)
    reason = strategies.refusal(cluster, choice)
    if FLAGS.dry_run:
        _explain(cluster.addressed(), choice, reason)
        return 0
    if reason:
        raise cluster.source.error(f"{reason} (--dry_run shows the translation)")
    _check_program(program)
    _check_hosts(cluster)
    _check_summary()
    return _launch(cluster, choice, program)


def _described(program: dict[str, Any]) -> Cluster:
    cluster = cluster_from_flags(FLAGS)
    if cluster is None:
        raise UsageError(
            f"no cluster is described: give --tier NAME or --cluster FILE{_misplaced(program)} (--help tells more)"
        )
    if isinstance(cluster, RankInfo):
        if describes(FLAGS) and not FLAGS.local and cluster.local_size != cluster.size:
            raise UsageError(
                f"{cluster.source.name}: this says that there are {cluster.size} ranks, but not on which hosts; run all of "
                "them here with --local, or start the program itself on every host"
            )
        cluster = with_flags(cluster.outline(), FLAGS)
    if cluster.task is not None and not describes(FLAGS):
        name = cluster.source.name
        raise UsageError(
            f"{name} says that this process is {cluster.task[0]}:{cluster.task[1]} of a cluster that somebody else starts; "
            f"run the program itself (python train.py), or unset {name} and give --tier or --cluster"
        )
    return cluster


def _misplaced(program: dict[str, Any]) -> str:
    """What the user may have meant by a command line whose program part looks like our flags."""
    words = [program.get("script", ""), *program["args"]]
    if tier_name(words[0]):
        return f"; did you mean --tier {words[0]}?"
    flag = next(
        (word for word in words[1:] if word.lstrip("-").partition("=")[0].replace("-", "_") in ("tier", "cluster")), None
    )
    return f"; {flag} stands behind the program and is the program's, flags of this command go before it" if flag else ""


def _on_this_machine(cluster: Cluster) -> Cluster:
    import dataclasses

    tasks = tuple(dataclasses.replace(task, host=None, port=None) for task in cluster.tasks)
    return dataclasses.replace(cluster, tasks=tasks)


def _check_hosts(cluster: Cluster) -> None:
    for task in cluster.tasks:
        if not is_local(task.host):
            raise cluster.source.error(
                f"{task.name} is on {task.host}, and this command starts tasks on this machine only; start the program there "
                "with its TF_CONFIG (--dry_run prints it), or run all of them here with --local"
            )


def _check_program(program: dict[str, Any]) -> None:
    if "script" in program:
        script = program["script"]
        if not os.path.isfile(script):
            folder = os.path.dirname(script) or "."
            others = os.listdir(folder) if os.path.isdir(folder) else []
            raise UsageError(f"{script}: there is no such program{nearest(os.path.basename(script), others)}")
        return
    module = program["module"]
    # Only the first part of the name: looking for the rest would run the package's own code here, in the launcher.
    top = module.partition(".")[0]
    sys.path.insert(0, os.getcwd())
    try:
        found = importlib.util.find_spec(top)
    except ValueError:  # `-m __main__`
        found = None
    finally:
        sys.path.pop(0)
    if found is None:
        raise UsageError(f"-m {module}: there is no module {top} in {os.getcwd()} or among the installed packages")
    if module == EXAMPLE and importlib.util.find_spec("sklearn") is None:
        raise UsageError("the bundled example needs scikit-learn for its images: pip install 'tfdist[examples]'")


def _check_summary() -> None:
    """A summary that cannot be written is an error before hours of training, not after."""
    if FLAGS.summary is None:
        return
    folder = os.path.dirname(FLAGS.summary) or "."
    if os.path.isdir(FLAGS.summary) or not os.access(FLAGS.summary if os.path.exists(FLAGS.summary) else folder, os.W_OK):
        raise UsageError(f"--summary {FLAGS.summary}: this is no file that can be written; name one in a folder that exists")


def _explain(cluster: Cluster, choice: Choice, reason: str | None) -> None:
    """Prints what would be started. Open ports are those that are tried first."""
    print(f"topology  {cluster.describe()}   ({cluster.source.dialect}: {cluster.source.name})")
    print(f"strategy  {choice.strategy}")
    print(f"rule      {choice.rule}")
    if len(cluster.worker_groups) > 1 or len(cluster.server_groups) > 1:
        print(f"groups    {len(cluster.worker_groups)} of workers, {len(cluster.server_groups)} of servers")
    if cluster.sync_period != 1:
        print(f"period    {cluster.sync_period} updates between exchanges")
    if options := cluster.synchronization.non_default():
        print(f"exchange  {', '.join(f'{name} {value}' for name, value in options.items())}")
    for warning in cluster.synchronization.warnings(len(cluster.worker_groups)):
        print(f"warning   {warning}")
    if reason:
        print(f"note      cannot be started: {reason}")
    width = max(len(task.name) for task in cluster.tasks)
    for task in cluster.tasks:
        print(f"\n{task.name:<{width}}  {task.address}{_hardware(task)}")
        print(f"  TF_CONFIG={shlex.quote(tf_config_json(cluster, task))}")


def _hardware(task: Task) -> str:
    parts = [f"{task.slots} slots" if task.slots > 1 else "", f"{task.gpus} GPU" if task.gpus else "", task.machine_type or ""]
    told = ", ".join(part for part in parts if part)
    return f"  ({told})" if told else ""


def _launch(cluster: Cluster, choice: Choice, program: dict[str, Any]) -> int:
    from tfdist.launch import summary as summaries
    from tfdist.launch.backends.local.ports import HeldPorts
    from tfdist.launch.backends.local.processes import LocalTasks
    from tfdist.launch.output import Terminal
    from tfdist.launch.supervisor import Supervisor, new_log_dir

    if note := strategies.tpu_note(cluster):
        print(f"tfdist: {note}", file=sys.stderr)
    ports = HeldPorts()
    cluster = ports.hold(cluster, {task.name for task in cluster.training_tasks})
    try:
        log_dir = new_log_dir(FLAGS.log_dir or None)
    except OSError as error:
        raise UsageError(f"--log_dir: {error}") from error
    if cluster.job("evaluator"):
        _name_evaluation_folder(cluster, log_dir)
    terminal = Terminal([task.name for task in cluster.tasks], verbose=FLAGS.verbose)
    terminal.say(f"{cluster.describe()} on this machine; {choice.strategy}: {choice.rule}")
    terminal.say(f"logs in {log_dir}")
    with open(log_dir / "fork_server.log", "wb") as log:
        tasks = LocalTasks(log, FLAGS.verbose)
    supervisor = Supervisor(
        cluster, choice, program, tasks=tasks, log_dir=log_dir, terminal=terminal, start_timeout=FLAGS.start_timeout
    )
    outcome = supervisor.run()
    ports.close()
    summary = summaries.make(cluster, choice, outcome, log_dir)
    if FLAGS.summary is not None:
        try:
            summaries.write(summary, FLAGS.summary)
        except OSError as error:
            terminal.say(f"--summary: {error}")
    if outcome.failure is None:
        _say_all(terminal.say, summaries.lines(summary))
        return 0
    terminal.say(outcome.failure.reason)
    if outcome.failure.task is not None:
        name = outcome.failure.task
        path = next(log_dir / task.log_name for task in cluster.tasks if task.name == name)
        if last := supervisor.last_lines(name):
            _say_all(terminal.say, [f"the last lines of {path}:", *("  " + line for line in last)])
    return outcome.failure.exit_code


def _name_evaluation_folder(cluster: Cluster, log_dir: Path) -> None:
    """Tells every task where chief and evaluator meet, and clears away what the chief of an earlier job has said there."""
    job_dir = cluster.job_dir if cluster.job_dir and "://" not in cluster.job_dir else None
    folder = EvaluationFolder(os.environ.get(VARIABLE) or job_dir or log_dir)
    os.environ[VARIABLE] = str(folder.base)
    try:
        folder.forget_training()
    except OSError as error:
        raise UsageError(f"{folder.base}, where chief and evaluator are to meet: {error}") from error


def _say_all(say: Callable[[str], None], lines: list[str]) -> None:
    for line in lines:
        say(line)
