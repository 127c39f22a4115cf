"""Finds the launcher in a command line or a shell script.

A launcher stands at the beginning of a command, or behind words that only change how it runs (`PREFIXES`: `time`, `env A=1`,
`uv run`, `srun`). Scripts have other commands, which are skipped. A command line of the user's own program counts if its
options describe a cluster (`CommandReader.options`), and assignments count if a launcher would set them
(`TF_CONFIG='{...}'`).
"""

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from tfdist.dialects.environment import CLUSTER_VARIABLE
from tfdist.dialects.parsing.command_line import PREFIXES
from tfdist.dialects.parsing.document import check_text, is_json
from tfdist.dialects.parsing.machine_gpus import NODES, ON_NODE
from tfdist.dialects.parsing.shell import SHELL_OPTION, ShellCommand, commands, has_variable
from tfdist.dialects.parsing.variables import ASSIGNMENT
from tfdist.dialects.registry import command_readers, environment_readers, programs
from tfdist.dialects.slurm.options import options as slurm_options
from tfdist.errors import Source

MAX_WORDS = 10_000
"""Words of a command line that are read: the launcher's options, not a shell's list of ten thousand files."""

MAX_LAUNCHERS = 100
"""Launchers of a script that are read and compared."""

_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*", re.ASCII)
_PYTHON_VALUED = frozenset({"-W", "-X", "-Q", "--check-hash-based-pycs"})
"""Options of Python whose value is a word of its own, `python -W ignore -m torch.distributed.run`."""
_SETTERS = frozenset({"env", "sudo"})
_SETTERS_VALUED = frozenset({"-u", "--unset", "--user", "-g", "--group", "-C", "-D", "--chdir"})
"""Programs that take variables for the program behind them, and their options whose value is a word of its own."""
_CONTAINERS = frozenset({"docker", "nvidia-docker", "podman", "singularity", "apptainer"})
"""Programs that take such variables as values of `-e` and `--env`, and folders as values of other options."""
_SHOWS = frozenset({"echo", "printf"})
_SHELLS = frozenset({"bash", "sh", "zsh", "dash", "ksh", "script"})
_WHICH = re.compile(r"(?:\$\(|`)(?:which|command -v) ([\w./-]+)[)`]", re.ASCII)
_SHEBANG = re.compile(r"#!.*\b(?:ba|z|da|k)?sh\b")
_YAML_KEY = re.compile(r"^[ \t]*(?:-[ \t]+)?[\"']?[A-Za-z_][\w./-]*[\"']?[ \t]*:(?:[ \t]|$)", re.MULTILINE | re.ASCII)
_QUOTED = re.compile(r"(?<![^\s=])[A-Za-z_]\w*=(?:'[^']*'|\"(?:[^\"\\]|\\.)*\")", re.ASCII | re.DOTALL)
"""An assignment, whose value may have lines such as `"cluster": {`."""
_HEREDOC = re.compile(r"<<-?[ \t]*([\"']?)(\w+)\1[ \t]*\n.*?^[ \t]*\2[ \t]*$", re.MULTILINE | re.ASCII | re.DOTALL)
_MAX_HEREDOCS = 20
"""Beginnings of here-documents whose ends are looked for: a hostile text has thousands without one."""

_VARIABLES = re.compile(r"\b[A-Z][A-Z_]+=")
_NAMED = re.compile(r"\$\{?(\w+)", re.ASCII)
_ONLY_ASKS = frozenset({"--help", "-h", "--version", "-V", "--check-build"})


@dataclass(frozen=True)
class Launch:
    """A command that describes a cluster.

    Attributes:
        dialect: name of the dialect that reads it.
        words: the command, from the name of the launcher on; empty if `variables` alone describe the cluster.
        line: the number of its line.
        variables: variables that are set for it.
        outer: the `srun ...` that starts it, or None.
    """

    dialect: str
    words: tuple[str, ...]
    line: int
    variables: Mapping[str, str] = field(default_factory=dict)
    outer: "Launch | None" = None


def may_launch(text: str) -> bool:
    """Returns whether a text mentions a launcher, an option that describes a cluster, or a variable. It is quick."""
    options = [name for reader in command_readers().values() for name in reader.options]
    marks = {*programs(), *options, *(name.replace("_", "-") for name in options)}
    return any(mark in text for mark in marks) or _VARIABLES.search(text) is not None


def is_script(text: str) -> bool:
    """Returns whether a text can be a shell script or a command line: it is neither JSON nor YAML."""
    if names_shell(text):
        return True
    rest = _HEREDOC.sub("", text) if 0 < text.count("<<") <= _MAX_HEREDOCS else text
    return not (is_json(text) or _YAML_KEY.search(_QUOTED.sub("", rest)))


def names_shell(text: str) -> bool:
    """Returns whether a text is a shell script by its first line, `#!/bin/bash`."""
    return _SHEBANG.match(text) is not None


def launches(
    text: str,
    source: Source,
    has_lines: bool = True,
    known: Mapping[str, str] = MappingProxyType({}),
    environ: Mapping[str, str] | None = None,
) -> list[Launch]:
    """Returns the commands of a script that describe a cluster, in order; at most `MAX_LAUNCHERS`.

    `known` and `environ` are those of `commands`. With `has_lines` messages name the line.

    Raises:
        ClusterError: for a quotation that does not end, and for a launcher that is only the value of a variable.
    """
    started: list[Launch] = []
    script = _Assignments()
    for command in commands(check_text(text, source), source, known, environ):
        launch = _launch(command, {**script.variables, **command.variables}, source, known) if command.words else None
        if launch is None or launch.words[:1] == ("srun",):
            script.note_use(command.words)
        if not command.words:
            script.add(command)
        elif launch is not None:
            started.append(launch)
            if len(started) == MAX_LAUNCHERS:
                break
    others = [launch for launch in started if launch.words[:1] != ("srun",)]
    if (hidden := script.used or (script.unused if not others else None)) is not None:
        raise source.error(
            f"{hidden.launcher} is put into a variable, and this one is not expanded; give the command itself",
            line=hidden.line if has_lines else None,
        )
    return started or script.launches()


class _Assignments:
    """The assignments of a script that stand alone, `export A=1`.

    Attributes:
        variables: all variables so far.
        used: a launcher in a variable that a command uses and that is not expanded there; None if there is none.
        unused: one that has options, so that a command seems to use it; None if there is none.
    """

    def __init__(self) -> None:
        self.variables: dict[str, str] = {}
        self.used: _Hidden | None = None
        self.unused: _Hidden | None = None
        self._hidden: dict[str, _Hidden] = {}
        self._launches: list[Launch] = []
        self._group: dict[str, str] = {}  # Those of one task: all until a variable gets another value.
        self._is_task = False  # Whether the last of the launches is of this group.

    def note_use(self, words: Sequence[str]) -> None:
        """Notes whether a command uses a launcher in a variable."""
        names = (name for word in words for name in _NAMED.findall(word) if words[0] not in _SHOWS)
        self.used = self.used or next((self._hidden[name] for name in names if name in self._hidden), None)

    def add(self, command: ShellCommand) -> None:
        """Adds the assignments of a command without a program."""
        self.variables |= command.variables
        if self._group.keys() & command.variables.keys():
            self._group, self._is_task = {}, False
        self._group |= command.variables
        if (name := _environment(self._group)) is not None:
            self._launches[len(self._launches) - self._is_task :] = [Launch(name, (), command.line, dict(self.variables))]
            self._is_task = True
        self._hidden |= _hidden(command)
        self.unused = self.unused or next((entry for entry in self._hidden.values() if entry.has_options), None)

    def launches(self) -> list[Launch]:
        """Returns what the assignments describe: several tasks, each for the commands behind it, or one."""
        if len(self._launches) > 1:
            return self._launches[:MAX_LAUNCHERS]
        name = _environment(self.variables)
        return [] if name is None else [Launch(name, (), 1, self.variables)]


def _launch(command: ShellCommand, variables: Mapping[str, str], source: Source, known: Mapping[str, str]) -> Launch | None:
    words = command.words[:MAX_WORDS]
    own = {**command.variables, **_of_env(words)}
    variables = {**variables, **own}
    variables = {name: known[name] for name in (ON_NODE, NODES) if name in known} | variables
    launcher = _find_launcher(words, source, (known, command.exported, own))
    program = words if launcher is None else _behind_srun(words, launcher)
    if (dialect := _by_options(program)) is not None:
        return Launch(dialect, program, command.line, variables)
    if launcher is None:
        dialect = _environment(own)
        return Launch(dialect, (), command.line, variables) if dialect else None
    if program and (dialect := stated_jobs(variables)) is not None:
        return Launch(dialect, (), command.line, variables)  # It counts more than the step in which the program runs.
    if isinstance(launcher, Launch):
        return replace(launcher, line=command.line, variables={**variables, **launcher.variables})
    dialect, rest = programs()[launcher.name], (launcher.name, *words[launcher.end :])
    if len(rest) > 1 and rest[1] in _ONLY_ASKS:
        return None
    outer = None
    if launcher.name != "srun" and "srun" in (before := words[: launcher.end - 1]):
        outer = Launch(programs()["srun"], before[before.index("srun") :], command.line)
    return Launch(dialect, rest, command.line, variables, outer)


def _behind_srun(words: Sequence[str], launcher: "_Launcher | Launch") -> tuple[str, ...]:
    """Returns the program that a command of `srun` starts on its tasks; empty for other launchers."""
    if not isinstance(launcher, _Launcher) or launcher.name != "srun":
        return ()
    return tuple(words[launcher.end + slurm_options(words[launcher.end :])[1] :])


def _of_env(words: Sequence[str]) -> dict[str, str]:
    """Returns the variables that `env A=1 torchrun`, `sudo A=1 torchrun` or `docker run -e A=1 ...` gives the program, also
    behind `time` and such."""
    variables: dict[str, str] = {}
    if not words or os.path.basename(words[0]) not in PREFIXES:
        return variables
    rest = itertools.dropwhile(lambda word: os.path.basename(word) not in _SETTERS, words)
    for word in rest:
        if (match := ASSIGNMENT.fullmatch(word)) is not None:
            variables[match[1]] = match[2]
        elif word in _SETTERS_VALUED:
            next(rest, None)
        elif not word.startswith("-") and os.path.basename(word) not in _SETTERS:
            break
    if not _CONTAINERS.isdisjoint(map(os.path.basename, words)):
        given = [word for before, word in itertools.pairwise(words) if before in ("-e", "--env")]
        given += [word.removeprefix("--env=") for word in words if word.startswith("--env=")]
        variables |= {match[1]: match[2] for word in given if (match := ASSIGNMENT.fullmatch(word))}
    return variables


@dataclass(frozen=True)
class _Launcher:
    """A launcher among the words of a command: its name, and the position behind it."""

    name: str
    end: int


def _find_launcher(
    words: Sequence[str], source: Source, variables: Sequence[Mapping[str, str]] = ()
) -> _Launcher | Launch | None:
    """Returns the launcher in a command, or the command of a launcher in the script of `bash -c`; None if there is none.

    `srun` itself counts last: what it starts may be another launcher. `variables` are those that are set where the words run;
    the last of several mappings wins.
    """
    known = programs()
    step: _Launcher | None = None
    # Folders among the options of srun and of containers may have the name of a launcher.
    begin, is_contained = 0, False
    for position, word in enumerate(words):
        if position < begin or (is_contained and words[position - 1].startswith("-") and words[position - 1] != "-m"):
            continue
        name = os.path.basename(match[1] if (match := _WHICH.fullmatch(word)) else word)
        if name == "srun":
            step = step or _Launcher(name, position + 1)
            begin = position + 1 + slurm_options(words[position + 1 :])[1]
        elif name in known and not word.startswith("-"):
            return _Launcher(name, position + 1)
        elif position and words[position - 1] == "-m" and word in known:
            return _Launcher(word, position + 1)
        elif _PYTHON.fullmatch(name):
            return _launcher_of_python(words, position) or step
        elif inner := _of_shell(words, position, source, variables):
            return inner[0]
        is_contained = is_contained or name in _CONTAINERS
        if position == 0 and name not in PREFIXES and not (word.startswith("$") and "-m" in words[1:4]):
            break
    return step


def _launcher_of_python(words: Sequence[str], position: int) -> _Launcher | None:
    """Returns the launcher that `python` at `position` runs; None if it runs something else."""
    module = _module(words, position)
    name = None if module is None else os.path.basename(words[module])
    return None if module is None or name not in programs() else _Launcher(name, module + 1)


def _of_shell(words: Sequence[str], position: int, source: Source, variables: Sequence[Mapping[str, str]]) -> Sequence[Launch]:
    """Returns the commands of launchers in the script behind `eval` at `position`, or behind `bash -c` whose `-c` is there."""
    if position == 0:
        return launches(" ".join(words[1:]), source) if os.path.basename(words[0]) == "eval" else ()
    if not SHELL_OPTION.fullmatch(words[position]) or os.path.basename(words[position - 1]) not in _SHELLS:
        return ()
    # Double quotes keep what the outer shell shall not expand: `bash -c "... \\$SLURM_PROCID"`.
    script = "".join(words[position + 1 : position + 2]).replace("\\$", "$")
    return launches(script, source, known=_used(script, variables)) if script.strip() else ()


def _used(script: str, mappings: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Returns the variables that a script names, of those that it gets; the last of several wins."""
    names = set(_NAMED.findall(script))
    return {name: variables[name] for variables in mappings for name in names if name in variables}


def _module(words: Sequence[str], position: int) -> int | None:
    """Returns the position of the module or file that `python` at `position` runs."""
    is_value = False
    for index in range(position + 1, len(words)):
        if not is_value and (not words[index].startswith("-") or words[index - 1] == "-m"):
            return index
        is_value = not is_value and words[index] in _PYTHON_VALUED
    return None


def _by_options(words: Sequence[str]) -> str | None:
    """Returns the dialect whose options a program has, which no other program has."""
    options = {word.lstrip("-").partition("=")[0].replace("-", "_") for word in words[1:] if word.startswith("-")}
    return next((name for name, reader in command_readers().items() if options & reader.options), None)


def stated_jobs(variables: Mapping[str, str]) -> str | None:
    """Returns the dialect of a variable that names jobs and tasks, TF_CONFIG, if it is among these and all of it is known."""
    for name, reader in environment_readers().items():
        if reader.names_jobs and (variable := reader.recognizes(variables)) and not has_variable(variables[variable]):
            return name
    return None


def _environment(variables: Mapping[str, str]) -> str | None:
    """Returns the dialect of a launcher, else of a system that allocates machines, that would set these variables."""
    readers = sorted(environment_readers().items(), key=lambda named: named[1].allocates)
    return next((name for name, reader in readers if reader.recognizes(variables)), None)


@dataclass(frozen=True)
class _Hidden:
    """A launcher in the value of a variable, `LAUNCHER="torchrun ..."`."""

    launcher: str
    line: int
    has_options: bool


def _hidden(command: ShellCommand) -> dict[str, _Hidden]:
    """Returns the launchers in the values of variables, by the names of the variables."""
    hidden: dict[str, _Hidden] = {}
    for name, value in command.variables.items():
        words = value.split()[:MAX_WORDS] if name != CLUSTER_VARIABLE else []
        while words and ASSIGNMENT.fullmatch(words[0]):  # run="NCCL_DEBUG=INFO deepspeed ..."
            words = words[1:]
        words = words if words[:1] != ["-m"] else ["python", *words]  # DISTRIBUTED="-m torch.distributed.run ..."
        launcher = _find_launcher(words, Source("command", ""))
        if isinstance(launcher, _Launcher) and launcher.name != "srun":
            hidden[name] = _Hidden(launcher.name, command.line, len(words) > launcher.end)
    return hidden


def check_prefix(text: str, source: Source) -> None:
    """Raises ClusterError for a launcher behind words that are not known, such as `ssh host torchrun ...`."""
    known = programs()
    for command in commands(text, source):
        words = command.words[:MAX_WORDS]
        if not words or _PYTHON.fullmatch(os.path.basename(words[0])):
            continue
        for position, word in enumerate(words[1:-1], start=1):
            follows = words[position + 1].startswith("-") and words[position + 1] not in _ONLY_ASKS
            if follows and os.path.basename(word) in known and (word not in ("paddle", "srun")):
                raise source.error(
                    f"{words[0][:40]!r} starts {word} elsewhere, or does not start it; give the command from {word} on",
                    line=command.line if "\n" in text.strip() else None,
                )
