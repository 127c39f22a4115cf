"""The options of a command line. Nothing is ever executed."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence

from tfdist.cluster import Cluster
from tfdist.dialects.parsing.document import MAX_TASKS, close, shown
from tfdist.dialects.parsing.values import FALSE, Values
from tfdist.errors import ClusterError, Source, nearest
from tfdist.rank_info import UnplacedError

_ONLY_VARIABLE = re.compile(
    r"\$(?:\w+|[@*]|\{(?!\w+:?-(?!-)[^} ]+\.py\})[^}]*\})"
    r"|(?:\$\((?!which |command -v )|`(?!which ))(?!.*[)`]/[^)`]*\Z).*",
    re.ASCII | re.DOTALL,
)


_STARTERS = frozenset(
    {"torchrun", "horovodrun", "torch.distributed.run", "torch.distributed.launch", "paddle.distributed.launch", "fleetrun"}
    | {"accelerate-launch", "accelerate.commands.launch", "deepspeed"}
)
"""Launchers that start processes on each task of another one."""

HYDRAS = ("mpiexec.hydra", "mpirun.mpich", "mpiexec.mpich", "mpirun_rsh")
"""Names of MPICH's launcher, and MVAPICH's, which goes round the hosts, too."""
MPI_PROGRAMS = ("mpirun", "mpiexec", "orterun", "prterun", "mpirun.openmpi", "mpiexec.openmpi", *HYDRAS)
"""Names of the launchers of MPI; those with a dot are of distributions that have several."""


def names(text: str) -> frozenset[str]:
    """Returns the words of a text as a set of names."""
    return frozenset(text.split())


PREFIXES = names(
    "time exec nohup env sudo nice ionice numactl taskset stdbuf timeout setsid unbuffer catchsegv eval script uv poetry "
    "pipenv pdm hatch rye pixi conda mamba micromamba singularity apptainer docker nvidia-docker podman shifter enroot nsys "
    "nvprof ncu dlprof bash sh zsh srun"
)
"""Programs that start the program behind them."""

PREPARES = names(
    "mkdir rm cp mv ln ls cat echo printf hostname date sleep touch chmod tar rsync sbcast nvidia-smi env printenv"
)
"""Programs that do not train: a script may start them on any number of tasks."""


def options(
    words: list[str],
    source: Source,
    valued: frozenset[str],
    switches: frozenset[str] = frozenset(),
    *,
    letters: Mapping[str, str] | None = None,
    is_program: bool = False,
    abbreviates: bool = False,
) -> Values:
    """Returns the options of a command line by name, with `_` for `-`. The last of several equal options counts.

    Args:
        words: the command line without its program.
        source: for messages.
        valued: names of options that take a value, `--name value` or `--name=value`.
        switches: names of options that take no value, or one after `=`.
        letters: letter -> name of an option, for `-m`.
        is_program: whether the command line is that of a training program, which mixes these options with its own. Default:
            that of a launcher, in which the first word that is no option is the user's program and the rest its arguments.
        abbreviates: whether the program takes any unique beginning of a name, as argparse does by default.

    Raises:
        ClusterError: for an option without its value, for an abbreviation of several options, and for an unknown option (in a
            program: one that resembles a known one that is not given; and `--switch False`).
    """
    values: dict[str, str] = {}
    similar: dict[str, str] = {}  # Of a program: a known option -> how one that resembles it is written.
    rest = iter(words)
    bare = ""  # The switch before the word.
    for word in rest:
        if not is_program:
            check_variable(word, source)
        switch, bare = bare, ""
        if not word.startswith("-") or word in ("-", "--"):
            if not is_program:
                check_single([word, *rest], source)
                break
            _check_behind_switch(switch, word, source)
            continue
        name, equals, value = _split(word, letters or {})
        if abbreviates and word.startswith("--"):
            name = full_name(name, valued | switches, source)
        if name in valued:
            values[name] = value if equals else next(rest, "")
            if not equals and not values[name]:
                raise source.error("this option has no value", field=f"--{name}")
        elif name in switches:
            values[name] = value if equals else "true"
            bare = "" if equals else name
        elif name.removeprefix("no") in switches and not equals:
            values[name.removeprefix("no")] = "false"  # gflags
        elif not is_program:
            raise source.error(
                f"there is no such option{nearest(name, sorted(valued | switches))}", field=shown(word, 40)[1:-1]
            )
        elif meant := close(name, valued | switches, 0.85):
            similar.setdefault(meant, word)
    for meant, word in similar.items():
        if meant not in values:  # A program that is given both has one of its own.
            raise source.error(
                f"there is no such option; did you mean {meant}? If it is one of the program itself, leave it out: it says "
                "nothing about the cluster",
                field=shown(word, 40)[1:-1],
            )
    return Values(source, values, "--")


def _check_behind_switch(switch: str, word: str, source: Source) -> None:
    if switch and word.lower() in FALSE:
        raise source.error(f"absl reads it as true, whatever word is behind it; write --{switch}={word}", field=f"--{switch}")


def _split(word: str, letters: Mapping[str, str]) -> tuple[str, str, str]:
    """Returns the name of an option, `=` if its value is in the same word, and that value: of `--name=value`, `-r3` or `-r`."""
    name, equals, value = word.partition("=")
    if word[1:2] in letters and not equals and len(word) > 2:
        name, equals, value = word[:2], "=", word[2:]
    return _name(name, letters), equals, value


def check_single(program: Sequence[str], source: Source) -> None:
    """Raises ClusterError if the program of a launcher is another launcher, which each task would start."""
    for before, word, after in zip(("", *program), program, (*program[1:], ""), strict=False):
        if word.endswith(".py"):
            return
        name = os.path.basename(word)
        is_value = before.startswith("-") and before not in ("-m", "-i", "-E")  # `python -m`, `env -i`, `sudo -E`
        if not is_value and (name in _STARTERS or (name, after) == ("accelerate", "launch")):
            raise source.error(
                f"this launcher starts {word} on every task, and each of these starts processes; give the command of one "
                "launcher"
            )


def is_variable(word: str) -> bool:
    """Returns whether a word is nothing but a shell variable.

    `$DIR/train.py`, `$(pwd)/train.py` and `${1:-train.py}` are programs.
    """
    return _ONLY_VARIABLE.fullmatch(word) is not None


def check_variable(word: str, source: Source, line: int | None = None) -> None:
    """Raises ClusterError for a shell variable in the place of an option or of the program: it may hold further options."""
    if is_variable(word):
        raise source.error(
            f"{shown(word, 40)} is a shell variable among the options, and only literals that are set once are expanded; "
            "write its value",
            line=line,
        )


def _name(word: str, letters: Mapping[str, str]) -> str:
    if word[1:2] != "-" and word[1:] in letters:
        return letters[word[1:]]
    return word.lstrip("-").replace("-", "_")


def full_name(written: str, known: frozenset[str], source: Source) -> str:
    """Returns the option that a name means: itself, or the only one that begins with it.

    torchrun 2 has two spellings of most options, so its argparse refuses `--nproc`. That of torchrun 1 takes it.
    """
    meant = sorted(name for name in known if written and name.startswith(written))
    if written in known or not meant:
        return written
    if len(meant) > 1:
        raise source.error(f"this may be {' or '.join(meant[:4])}; write the whole name", field=f"--{written}")
    return meant[0]


def nodes(values: Values, default: str) -> int:
    """Returns the value of `--nnodes`, `N` or `N:N`. Raises ClusterError for a range, with which the number may change."""
    text = values.text("nnodes", default)
    parts = [Values(values.source, {"nnodes": part}, values.prefix) for part in text.split(":", 1)]
    bounds = [part.number("nnodes", least=1) for part in parts]
    if bounds[0] != bounds[-1]:
        raise values.error(
            "nnodes",
            f"{shown(text)} lets the number of nodes change, and multi_worker_mirrored keeps its tasks; start the program with "
            "this command and call tfdist.strategy() without a description, or give one number",
        )
    return bounds[0]


def check_count(values: Values, name: str, count: int) -> None:
    """Raises ClusterError if an option asks for more processes than tfdist supports."""
    if count > MAX_TASKS:
        raise values.error(name, f"that makes {count} processes, and tfdist supports {MAX_TASKS}")


def check_places(values: Values, names: Iterable[str], outline: Cluster) -> None:
    """Raises UnplacedError if one of some options, which say where processes are and meet, is left to the shell."""
    for name in names:
        try:
            values.text(name)
        except ClusterError as fault:
            raise UnplacedError(fault, outline) from None
