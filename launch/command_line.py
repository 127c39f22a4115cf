"""Splits the command line of the launcher: its flags come first, then the program and the program's arguments."""

from absl import flags

from tfdist.dialects.cloudml import tier_name
from tfdist.launch.job import Program

EXAMPLE = "tfdist.examples.digits"
"""The program that runs when the command line names none."""

HELP = {"--help", "-h", "--helpfull", "--helpshort"}


def split(argv: list[str], flag_values: flags.FlagValues) -> tuple[list[str], list[str]]:
    """Returns the words of the launcher and those of the program.

    The program begins at `--`, after `-m MODULE`, or at the first word that is neither a flag nor the value of one. The flags
    of the launcher may be written with dashes: `--worker-count=2` becomes `--worker_count=2`.

    Args:
        argv: the command line, with the name of the command.
        flag_values: the flags of the launcher.
    """
    position = _start_of_program(argv, flag_values)
    return [_with_underscores(word) for word in argv[:position]], argv[position:]


def program(words: list[str], module: str | None) -> Program:
    """Returns the program that `words`, the second result of `split`, name; the bundled example where they name none.

    Args:
        words: the program, unless `module` is one, and its arguments.
        module: the value of `-m`, or None.
    """
    if module is not None:
        return Program(module=module, args=_without_separator(words))
    if not words or words[0] == "--":
        return Program(module=EXAMPLE, args=words[1:])
    return Program(script=words[0], args=_without_separator(words[1:]))


def misplaced(program: Program) -> str:
    """Returns a hint, the end of a sentence, where flags of the launcher stand in the program's part; else an empty text."""
    script = program.script or ""
    if tier_name(script):
        return f"; did you mean --tier {script}?"
    for word in program.args:
        if word.lstrip("-").partition("=")[0].replace("-", "_") in ("tier", "cluster"):
            return f"; {word} follows the program and belongs to it, flags of this command go before it"
    return ""


def _start_of_program(argv: list[str], flag_values: flags.FlagValues) -> int:
    flag = ""  # The flag whose value the next word may be.
    for position, word in enumerate(argv[1:], start=1):
        if flag in ("-m", "--m"):
            return position + 1
        is_value = flag in flag_values and not flag_values[flag].boolean
        if word == "--" or not (word.startswith("-") or is_value):
            return position
        if word.startswith(("-m=", "--m=")):
            return position + 1
        flag = "" if is_value else word if word in ("-m", "--m") else word.lstrip("-").replace("-", "_")
    return len(argv)


def _with_underscores(word: str) -> str:
    name, equals, value = word.partition("=")
    return (name.replace("-", "_").replace("__", "--", 1) if name.startswith("--") else name) + equals + value


def _without_separator(arguments: list[str]) -> list[str]:
    return arguments[1:] if arguments[:1] == ["--"] else arguments
