"""Reads batch scripts and `srun` command lines.

A worker is a task that Slurm starts: as the options of the script ask, or those of the one `srun` that starts the program. A
TFDIST_CLUSTER in the script describes the cluster instead (`TextReader.refers`), and so does another launcher in it
(`TextReader.is_script`).
"""

import itertools
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfdist.cluster import Cluster, Task
from tfdist.dialects.parsing.command_line import MPI_PROGRAMS, PREFIXES, PREPARES, check_single, names
from tfdist.dialects.parsing.document import Document
from tfdist.dialects.parsing.shell import ShellCommand, commands
from tfdist.dialects.parsing.values import Values
from tfdist.dialects.slurm import submit
from tfdist.dialects.slurm.options import (
    OF_TASKS,
    Tasks,
    check_one_component,
    check_stated,
    check_variables,
    options,
    tasks,
    variables,
)
from tfdist.errors import ClusterError, Source, UnstatedError

NAME = "slurm"

_HEREDOC = re.compile(r"(?<!<)<<-?[ \t]*[\"']?(\w+)", re.ASCII)
_MAX_HEREDOCS = 20
_VARIABLE = "TFDIST_CLUSTER"
_PYTHON = re.compile(r"python[0-9.]*", re.ASCII)
_TEXT_OPTIONS = names("-c -V --version")
_PLACES = names("nodelist relative")
"""Options that start a step on some of the nodes of the job."""
_OWN_CPUS = ("$SLURM_CPUS_PER_TASK", "${SLURM_CPUS_PER_TASK}")
_STARTERS = frozenset({"srun", "horovodrun", "torchrun", "accelerate", "deepspeed", "ibrun", *MPI_PROGRAMS})


@dataclass(frozen=True)
class _Step:
    """An `srun` of a script: its line, its tasks, and whether other steps may run beside it."""

    line: int
    tasks: Tasks
    is_beside: bool


def looks_like(content: "str | Mapping[Any, Any]") -> bool:
    """Returns whether this is a batch script, or what is left of one without its first line."""
    return isinstance(content, str) and content.lstrip().startswith("#") and submit.DIRECTIVE.search(content) is not None


def refers(text: str) -> str | None:
    """Returns the TFDIST_CLUSTER that a script sets, or None."""
    if _VARIABLE not in text:
        return None
    try:
        found = [value for each in commands(text, Source(NAME, "")) if (value := each.variables.get(_VARIABLE, "").strip())]
    except ClusterError:
        return None
    return found[0] if found else None


def parse_command(words: list[str], source: Source) -> Cluster:
    """Reads `srun -n 4 python train.py`. Raises ClusterError for bad options, without a number of tasks, and for `sbatch`."""
    if words[0] == submit.NAME:
        raise source.error("sbatch submits a batch script, and other commands describe a cluster, too; give that script")
    given, end = options(words[1:])
    check_single(words[1 + end :], source)
    check_one_component(words, given, source)
    check_variables(words[1:], source)
    values = Values(source, given, "--")
    check_stated(values)
    return _cluster(tasks(values), source)


def parse(document: Document) -> Cluster:
    """Reads a batch script: a worker for each task.

    Raises:
        ClusterError: for bad options, for heterogeneous jobs, and for a program that is started once and not on every task.
    """
    source = Source(NAME, document.name)
    if not document.text.startswith("#!"):
        raise source.error("the first line of a batch script is missing; sbatch asks for one such as #!/bin/bash", line=1)
    _check_outer(document.text, source)
    wanted = _wanted(document.text, source)
    asked = tasks(Values(source, wanted, "--"))
    steps = _steps(document.text, wanted, source)
    _check_whole(steps, asked, source)
    if not steps and asked.count > 1:
        _check_started(document.text, asked.count, source)
    return _cluster(steps[0].tasks if steps else asked, source)


def _check_whole(steps: Sequence[_Step], asked: Tasks, source: Source) -> None:
    """Raises UnstatedError if the steps that may train differ, or start one after another what trains together."""
    if len({step.tasks for step in steps}) > 1:
        lines = ", ".join(str(step.line) for step in steps[:5])
        fault = source.error(f"srun starts programs on different numbers of tasks in lines {lines}; keep the one that trains")
        raise UnstatedError(*fault.args, tasks=asked.count)
    part = next((step for step in steps if step.is_beside and step.tasks.count < asked.count), None)
    if part is not None:
        fault = source.error(
            f"the script asks for {asked.count} tasks, and this starts {part.tasks.count} of them, on nodes that it names or "
            f"in the background, where others may run beside them; keep one srun that starts all, --ntasks={asked.count}",
            line=part.line,
        )
        raise UnstatedError(*fault.args, tasks=asked.count)


def _cluster(asked: Tasks, source: Source) -> Cluster:
    workers = (Task("worker", index, slots=asked.slots, gpus=asked.gpus) for index in range(asked.count))
    return Cluster(tuple(workers), source=source)


def set_by_sbatch(text: str) -> dict[str, str]:
    """Returns the variables that sbatch sets in a script, as far as they follow from its options; none if these are bad."""
    source = Source(NAME, "")
    try:
        return variables(_wanted(text, source), source)
    except ClusterError:
        return {}


def _wanted(text: str, source: Source) -> dict[str, str]:
    """Returns the options of a batch script by their full names. Slurm ignores options after the first command."""
    wanted: dict[str, str] = {}
    command = submit.COMMAND.search(text)
    for match in submit.DIRECTIVE.finditer(text, 0, command.start() if command else len(text)):
        line = text.count("\n", 0, match.start()) + 1
        try:
            words = shlex.split(match[1], comments=True)
        except ValueError as error:
            raise source.error(f"this line cannot be split into words: {str(error).lower()}", line=line) from None
        if words[:1] in (["hetjob"], ["packjob"]):  # The latter is its name before Slurm 20.02.
            raise source.error("heterogeneous jobs are not read; ask for one component", line=line)
        while words:
            found, end = options(words, is_batch=True)
            wanted |= found
            words = words[max(1, end) :]
    return wanted


def _check_outer(text: str, source: Source) -> None:
    """Raises ClusterError for a script that submits another one, in a here-document, and has no options before it."""
    own = submit.DIRECTIVE.search(text)
    begun = list(_HEREDOC.finditer(text, 0, own.start() if own else 0))[-_MAX_HEREDOCS:]
    for match in begun:
        end = re.compile(rf"^[ \t]*{match[1]}[ \t]*$", re.MULTILINE).search(text, match.end())
        if own is not None and end is not None and end.start() > own.start():
            raise source.error(
                "the batch script is in the here-document that begins here; save that as a file of its own, and give the file",
                line=text.count("\n", 0, match.start()) + 1,
            )


def _steps(text: str, wanted: Mapping[str, str], source: Source) -> list[_Step]:
    """Returns each `srun` that may train.

    They start a Python program; else, where no other launcher does, any program but those that only prepare or show something.
    """
    found = list(_commands(text, source, variables(wanted, source)))
    steps = [(command, position) for command in found if (position := _srun(command.words)) is not None]
    python = [step for step in steps if _starts_python(*step)]
    if not python and len(steps) > 1:
        others = any(_STARTERS - {"srun"} & set(map(os.path.basename, command.words)) for command in found)
        steps = [] if others else [step for step in steps if not _prepares(*step)]
    return [_step(*step, wanted, source) for step in python or steps]


def _srun(words: Sequence[str]) -> int | None:
    """Returns the position of `srun` in a command that starts it, also behind `timeout 3600` or `env A=1`."""
    position = next((place for place, word in enumerate(words) if os.path.basename(word) == "srun"), None)
    return position if position == 0 or os.path.basename(words[0]) in PREFIXES else None


def _starts_python(command: ShellCommand, position: int) -> bool:
    program = _program(command, position)
    return any(_PYTHON.fullmatch(word) or word.endswith(".py") for word in program) and not _runs_text(program)


def _prepares(command: ShellCommand, position: int) -> bool:
    program = _program(command, position)
    return not PREPARES.isdisjoint(program[:1]) or _runs_text(program)


def _runs_text(program: Sequence[str]) -> bool:
    """Returns whether a program is Python with a text, `python -c "import torch"`, which prepares or shows something."""
    place = next((place for place, word in enumerate(program) if _PYTHON.fullmatch(word)), len(program))
    flags: Iterator[str] = itertools.takewhile(lambda word: word.startswith("-"), program[place + 1 :])
    return not _TEXT_OPTIONS.isdisjoint(flags)


def _program(command: ShellCommand, position: int) -> list[str]:
    """Returns the base names of the words of the program that the `srun` at `position` starts."""
    _, end = options(command.words[position + 1 :])
    return [os.path.basename(word) for word in command.words[position + 1 + end :]]


def _step(command: ShellCommand, position: int, wanted: Mapping[str, str], source: Source) -> _Step:
    """Returns the step of an `srun`: its tasks are those for which its own options ask, else those of the script."""
    line, words = command.line, command.words[position + 1 :]
    given, _ = options(words)
    check_one_component(command.words, given, source, line)
    check_variables(words, source, line)
    own = {name: value for name, value in given.items() if name in OF_TASKS or "gpu" in name or name == "gres"}
    merged = dict(wanted) | own
    if "ntasks" not in own and (inherited := variables(wanted, source).get("SLURM_NTASKS")) is not None:
        merged["ntasks"] = inherited  # It wins over the other options of srun, as `-n` does.
    _check_counted(given, merged, wanted, source, line)
    try:
        return _Step(line, tasks(Values(source, merged, "--")), command.is_background or not _PLACES.isdisjoint(given))
    except ClusterError as error:
        raise source.error(str(error).partition(": ")[2], line=line) from None


def _check_counted(
    given: Mapping[str, str], merged: Mapping[str, str], wanted: Mapping[str, str], source: Source, line: int
) -> None:
    """Raises UnstatedError for an `srun -c 4` of as many tasks as the processors of the nodes suffice for (srun(1))."""
    cpus = given.get("cpus-per-task")
    if cpus is None or not merged.keys().isdisjoint(("ntasks", "ntasks-per-node")):
        return
    if cpus in (wanted.get("cpus-per-task"), *_OWN_CPUS) and "cpus-per-task" in wanted and "exclusive" not in wanted:
        return  # The job has these processors for one task on each node.
    fault = source.error(
        "with --cpus-per-task, and without a number of tasks, srun starts as many as fit on the nodes; add --ntasks",
        line=line,
    )
    raise UnstatedError(*fault.args, tasks=tasks(Values(source, wanted, "--")).count)


def _check_started(text: str, count: int, source: Source) -> None:
    """Raises ClusterError if the script starts Python itself: this runs once, on the first node, whatever it asks for."""
    direct = None
    for command in _commands(text, source, {}):
        words = command.words
        if any(os.path.basename(word) in _STARTERS or word.startswith("$") for word in words):
            return
        is_python = _PYTHON.fullmatch(os.path.basename(words[0])) is not None
        if direct is None and is_python and any(word.endswith(".py") for word in words):
            direct = command.line
    if direct is not None:
        raise source.error(
            f"this starts one process, and the script asks for {count} tasks; write srun in front of it, or ask for one task",
            line=direct,
        )


def _commands(text: str, source: Source, known: Mapping[str, str]) -> Iterator[ShellCommand]:
    try:
        yield from (command for command in commands(text, source, known, os.environ) if command.words)
    except ClusterError:
        return  # A quotation that does not end; its own message would hide that of the options.
