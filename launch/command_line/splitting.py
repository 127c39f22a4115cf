"""Splits the command line of the launcher: its flags come first, then the program and the program's arguments."""

import itertools
import re
from collections.abc import Sequence

from absl import flags

from tfdist.dialects.cloudml.tiers import tier_name
from tfdist.launch.errors import UsageError
from tfdist.launch.jobs.job import Program

EXAMPLE = "tfdist.examples.digits"
"""The program that runs when the command line names none."""

HELP = {"--help", "-h", "--helpfull", "--helpshort"}


def split(argv: list[str], flag_values: flags.FlagValues) -> tuple[list[str], list[str]]:
    """Returns the words of the launcher and those of the program.

    The program begins at `--`, after `-m MODULE`, or at the first word that is neither a flag nor the value of one. The flags
    of the launcher may be written with dashes: `--worker-count=2` becomes `--worker_count=2`. Their values stay as they are.
    `-v` is `--verbose`.
    """
    words = _words_of_launcher(argv, flag_values)
    return understood(words), argv[len(words) :]


def program(words: list[str], module: str | None) -> Program:
    """Returns the program that `words`, the second result of `split`, name; the bundled example where they name none.

    `-- train.py --epochs=5` names one as `train.py -- --epochs=5` does; `-- --epochs=5` are arguments of the bundled example.

    Args:
        words: the program, unless `module` is one, and its arguments.
        module: the value of `-m`, or None.

    Raises:
        UsageError: for `-`, the program on standard input.
    """
    if module is not None:
        return Program(module=module, args=_without_separator(words))
    words = _without_separator(words)
    if words[:1] == ["-"]:
        raise UsageError("-: every task runs the program, and only one could read it from standard input; write it to a file")
    if not words or words[0].startswith("-"):
        return Program(module=EXAMPLE, args=words)
    return Program(script=words[0], args=_without_separator(words[1:]))


def misplaced(program: Program) -> str:
    """Returns a hint, the end of a sentence, where flags of the launcher stand in the program's part; else an empty text."""
    script = program.script or ""
    if tier_name(script):
        return f"; did you mean --tier {script}?"
    for word in program.args:
        if word.startswith("-") and word.lstrip("-").partition("=")[0].replace("-", "_") in _DESCRIBE:
            return f"; {word} follows the program and belongs to it, flags of this command go before it"
    return ""


def after_program(words: list[str], flag_values: flags.FlagValues) -> str | None:
    """Returns the first argument of the program that has the name of a flag of tfdist; None if there is none.

    After `--` a user knows whose they are.
    """
    for word in words:
        if word == "--":
            return None
        name = word.partition("=")[0].replace("-", "_").lstrip("_")
        if word.startswith("-") and (flag_values.find_module_defining_flag(name) or "").startswith("tfdist."):
            return word
    return None


_HOSTS = "name the hosts in --cluster 'horovodrun -np 8 -H a:4,b:4' with --backend ssh"
_ADDRESSES = "the launcher finds the addresses itself; leave it out"
_FOREIGN = {
    "nproc_per_node": "use -n 4, or --workers=4",
    "nproc_per_machine": "use -n 4, or --workers=4",
    "num_processes": "use -n 4, or --workers=4",
    "num_proc": "use -n 4, or --workers=4",
    "np": "use -n 4, or --workers=4",
    "nnodes": _HOSTS,
    "num_machines": _HOSTS,
    "hosts": _HOSTS,
    "H": _HOSTS,
    "node_rank": "the launcher starts the tasks of all hosts itself; " + _HOSTS,
    "machine_rank": "the launcher starts the tasks of all hosts itself; " + _HOSTS,
    "master_addr": _ADDRESSES,
    "master_port": _ADDRESSES,
    "rdzv_backend": _ADDRESSES,
    "rdzv_endpoint": _ADDRESSES,
    "rdzv_id": _ADDRESSES,
    "tee": "every task has a log file and is shown; --log_dir names the folder",
    "redirects": "every task has a log file and is shown; --log_dir names the folder",
    "no_python": "give a Python script, or -m MODULE",
    "run_path": "give the script itself",
}
"""Flags of torchrun, horovodrun and Accelerate: what to do instead."""


_ABSEIL = ("flagfile", "undefok")
"""Flags with a value that absl reads before all others."""

_DESCRIBE = ("tier", "cluster", "n", "workers", *(name for name, hint in _FOREIGN.items() if hint.startswith("use -n")))
"""Flags without which no cluster is described."""


def understood(words: list[tuple[str, bool]]) -> list[str]:
    """Returns the words of the launcher with what users of torchrun type as flags of the launcher.

    A word that is given with True is the value of the flag before it.

    `--nproc_per_node=4` (`--nproc-per-node 4`, `-np 4`, `--num_processes 4`) becomes `--workers=4`; `--nnodes=1`,
    `--num_machines=1` and `--standalone`, which are what this launcher does anyway, are dropped. `-n4` is `-n 4`.

    Raises:
        UsageError: for a flag of another launcher that means nothing here, and for a second --cluster; the message says what to
            do instead.
    """
    result: list[str] = []
    names = [word.partition("=")[0] for word, is_value in words if not is_value]
    if names.count("--cluster") + names.count("-cluster") > 1:
        raise UsageError("--cluster is given twice; give one description (a host file of SINGA goes with --hostfile)")
    rest = iter(words)
    for word, is_value in rest:
        name, equals, value = word.partition("=")
        name = name.lstrip("-") if word.startswith("-") and not is_value else ""
        if name == "standalone":
            continue
        if not equals and re.fullmatch(r"-n[0-9]+", word):
            result.append(f"--workers={word[2:]}")
            continue
        if name in _FOREIGN:
            value = value if equals else next(rest, ("", True))[0]
            if _FOREIGN[name].startswith("use -n") and value.isascii() and value.isdecimal():
                result.append(f"--workers={value}")
            elif name not in ("nnodes", "num_machines") or value not in ("1", "1:1"):
                raise UsageError(f"{word} is a flag of another launcher: {_FOREIGN[name]}")
            continue
        result.append(word)
    return result


def with_underscores(words: Sequence[str], flag_values: flags.FlagValues) -> list[str]:
    """Returns words, of flags and a program, with underscores in the names of the flags. Values stay as they are."""
    result: list[str] = []
    is_value = False
    for word in words:
        result.append(word if is_value else _spelled(word, flag_values))
        is_value = not is_value and _takes_next(word, flag_values)
    return result


def _words_of_launcher(argv: list[str], flag_values: flags.FlagValues) -> list[tuple[str, bool]]:
    """Returns the words before the program, flags with underscores, and whether each is the value of the flag before it."""
    words = [(argv[0], True)]
    is_value = False
    for word, following in itertools.pairwise([*argv[1:], ""]):
        if not is_value and (word in ("--", "-") or not word.startswith("-")):
            return words
        if not is_value and word == "-v" and not re.fullmatch(r"-?[0-9]+", following):
            word = "--verbose"  # With a number it is a flag of absl.
        words.append((word if is_value else _spelled(word, flag_values), is_value))
        if (words[-2][0] in ("-m", "--m") and is_value) or word.startswith(("-m=", "--m=")):
            return words
        is_value = not is_value and _takes_next(word, flag_values)
    return words


def _takes_next(word: str, flag_values: flags.FlagValues) -> bool:
    """Returns whether the word after this one, which is no value, is its value."""
    name = word.lstrip("-").replace("-", "_") if word.startswith("-") else ""
    return name in (*_FOREIGN, *_ABSEIL) or (name in flag_values and not flag_values[name].boolean)


def _spelled(word: str, flag_values: flags.FlagValues) -> str:
    """Returns a flag as absl spells it: `--worker_count` for `--worker-count`, `--nodefaults` for `--no-defaults`."""
    if not word.startswith("--"):
        return word
    name, equals, value = word[2:].partition("=")
    name = name.replace("-", "_")
    negated = name.removeprefix("no_")
    if negated != name and name not in flag_values and negated in flag_values and flag_values[negated].boolean:
        name = f"no{negated}"
    return f"--{name}{equals}{value}"


def _without_separator(arguments: list[str]) -> list[str]:
    return arguments[1:] if arguments[:1] == ["--"] else arguments
