"""Batch scripts of PBS, LSF and Grid Engine: how many processes `mpirun` starts in the job.

These schedulers run the script once, on the first node, and launchers in it start the processes; they describe the cluster. The
directives count where `mpirun` asks the scheduler. Sources of the rules: OpenPBS 23 pbs_resources(7), Torque 6 `qsub`, LSF 10
`bsub`, Grid Engine 8 `qsub`.
"""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from tfdist.cluster import Cluster, Task
from tfdist.dialects.dialect import Dialect, TextReader
from tfdist.dialects.parsing.command_line import MPI_PROGRAMS
from tfdist.dialects.parsing.document import Document
from tfdist.dialects.parsing.shell import commands
from tfdist.dialects.parsing.values import Values
from tfdist.dialects.slurm.script import refers
from tfdist.dialects.slurm.submit import COMMAND
from tfdist.dialects.slurm.submit import DIRECTIVE as SBATCH
from tfdist.errors import ClusterError, Source, UnstatedError

NAME = "batch"

_DIRECTIVE = re.compile(r"^#(PBS|BSUB|\$)[ \t]+(-.*)$", re.MULTILINE)
_SET_BY = {"PBS": "PBS_NP", "BSUB": "LSB_DJOB_NUMPROC", "$": "NSLOTS"}
"""The variable with the number of processes that each scheduler sets."""


def looks_like(content: "str | Mapping[Any, Any]") -> bool:
    """Returns whether this is a batch script of these schedulers: directives are before the first command."""
    if not isinstance(content, str) or not content.lstrip().startswith("#") or SBATCH.search(content):
        return False
    command = COMMAND.search(content)
    return _DIRECTIVE.search(content, 0, command.start() if command else len(content)) is not None


def parse(document: Document) -> Cluster:
    """Returns a worker for each process that `mpirun` starts without a number of its own.

    Raises:
        ClusterError: for a bad number. UnstatedError: without `mpirun`, and without a number.
    """
    source = Source(NAME, document.name)
    try:
        words = {os.path.basename(word) for command in commands(document.text, source) for word in command.words}
    except ClusterError:
        words = set()  # Its own message is that of the launcher.
    count = _processes(document.text, source)
    if words.isdisjoint(MPI_PROGRAMS):
        fault = source.error(
            "the scheduler runs this script once, on the first node, and no launcher that tfdist reads starts a number of "
            "processes in it; give their command, `mpirun -np 8 python train.py`"
        )
        raise UnstatedError(*fault.args)
    if count is None:
        fault = source.error("the script does not say how many processes mpirun starts; write mpirun -np 8")
        raise UnstatedError(*fault.args)
    return Cluster(tuple(Task("worker", rank) for rank in range(count)), source=source)


def set_in_script(text: str) -> dict[str, str]:
    """Returns the variable with the number of processes that the scheduler sets; none if its options are bad."""
    try:
        found = _counts(text, Source(NAME, ""))
    except ClusterError:
        return {}
    return {_SET_BY[scheduler]: str(count) for scheduler, count in found.items()}


def _processes(text: str, source: Source) -> int | None:
    """Returns the number of processes that the directives ask for; None if they do not say it, or differ."""
    counts = set(_counts(text, source).values())
    return counts.pop() if len(counts) == 1 else None


def _counts(text: str, source: Source) -> dict[str, int]:
    """Returns the number of processes by scheduler, for those whose directives say it."""
    found: dict[str, int] = {}
    for match in _DIRECTIVE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        try:
            words = shlex.split(match[2], comments=True)
        except ValueError as error:
            raise source.error(f"this line cannot be split into words: {str(error).lower()}", line=line) from None
        count = {"PBS": _of_pbs, "BSUB": _of_lsf, "$": _of_grid_engine}[match[1]](words, source)
        if count is not None:
            found[match[1]] = count
    return found


def _of_pbs(words: Sequence[str], source: Source) -> int | None:
    """Returns the lines of the file of nodes: `select=2:ncpus=8:mpiprocs=4` makes 8, `nodes=2:ppn=4` too."""
    count = None
    for before, word in zip(("", *words), words, strict=False):
        asked = word if before == "-l" else word[2:] if word.startswith("-l") else ""
        for part in asked.split(","):
            name, _, value = part.partition("=")
            if name in ("select", "nodes"):
                chunks = [chunk.split(":") for chunk in value.split("+")]
                count = sum(_of_chunk(chunk, name, source) for chunk in chunks)
    return count


def _of_chunk(chunk: Sequence[str], option: str, source: Source) -> int:
    """Returns the processes of `2:ncpus=8:mpiprocs=4`, `node1:ppn=4` and the like."""
    name = {"select": "mpiprocs", "nodes": "ppn"}[option]
    each = next((value for part in chunk for key, _, value in [part.partition("=")] if key == name), "1")
    numbers = {option: chunk[0] if chunk[0][:1] in "0123456789$" else "1", name: each}
    values = Values(source, numbers, "-l ")
    return values.number(option, least=1) * values.number(name)


def _of_lsf(words: Sequence[str], source: Source) -> int | None:
    """Returns the slots of `-n 8`; None for `-n 4,8`, of which LSF chooses one."""
    for before, word in zip(("", *words), words, strict=False):
        given = word if before == "-n" else word[2:] if re.match("-n[0-9]", word) else ""
        least, _, most = given.partition(",")
        if given and (not most or most == least):
            return Values(source, {"n": least}, "-").number("n", least=1)
    return None


def _of_grid_engine(words: Sequence[str], source: Source) -> int | None:
    """Returns the slots of `-pe mpi 8`; None for `-pe mpi 4-8`, of which Grid Engine chooses one."""
    place = list(words).index("-pe") + 2 if "-pe" in words else len(words)
    given = words[place] if place < len(words) else "-"
    return None if "-" in given or "," in given else Values(source, {"pe": given}, "-").number("pe", least=1)


DIALECT = Dialect(
    name=NAME,
    title="PBS, LSF and Grid Engine",
    example="a batch script of PBS, LSF or Grid Engine (#PBS -l select=2:mpiprocs=4 ... mpirun python train.py)",
    text=TextReader(parse, looks_like=looks_like, is_script=True, refers=refers, variables=set_in_script),
)
