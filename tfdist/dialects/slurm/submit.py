"""`sbatch` command lines: the batch script that they submit, with the options of the command line in it."""

import re
import shlex
from collections.abc import Sequence

from tfdist.dialects.parsing.command_line import check_variable
from tfdist.dialects.parsing.document import Document, check_text, read_text
from tfdist.dialects.slurm.options import options
from tfdist.errors import Source

NAME = "sbatch"

DIRECTIVE = re.compile(r"^#SBATCH[ \t]+(.*)$", re.MULTILINE)
COMMAND = re.compile(r"^[ \t]*[^#\s]", re.MULTILINE)
"""The beginning of a command. Slurm ignores directives after the first one."""


def submitted(words: Sequence[str], source: Source) -> Document | None:
    """Returns the batch script that a command submits; None if it is no `sbatch`.

    Options of the command win over those in the script, as sbatch(1) says. The script is the file of the command, or what
    `--wrap` holds.

    Raises:
        ClusterError: if there is no script, or it cannot be read.
    """
    if words[0] != NAME:
        return None
    given, end = options(words[1:], is_batch=True)
    added = " ".join(f"--{name}={shlex.quote(value)}" for name, value in given.items() if value and name != "wrap")
    rest = words[1 + end :]
    if "wrap" in given:
        return Document(source.name, _with_options(f"#!/bin/sh\n{given['wrap']}\n", added))
    if not rest:
        raise source.error("sbatch reads the batch script from its standard input here; save it as a file, and give the file")
    check_variable(rest[0], source)
    script = Source(source.dialect, rest[0])
    text = check_text(read_text(rest[0], script), script)
    return Document(rest[0], _with_options(text, added))


def _with_options(text: str, added: str) -> str:
    """Returns a script with options behind its own ones. Lines keep their numbers if an empty one follows there."""
    if not added:
        return text
    first = COMMAND.search(text)
    own = list(DIRECTIVE.finditer(text, 0, first.start() if first else len(text)))
    end = own[-1].end() if own else len(text.partition("\n")[0])
    rest = text[end:].removeprefix("\n") if text[end:].startswith("\n\n") else text[end:]
    return f"{text[:end]}\n#SBATCH {added}{rest}"
