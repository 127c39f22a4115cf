"""The processes that the launcher of an MPIJob or a Volcano Job starts, by the command of its pod."""

import os
from collections.abc import Collection, Iterator, Sequence

from tfdist.dialects.horovod.command import PROGRAMS, stated_processes
from tfdist.dialects.kubernetes.pods import container
from tfdist.dialects.parsing.command_line import PREFIXES
from tfdist.dialects.parsing.node import Node
from tfdist.dialects.parsing.shell import SHELL_OPTION, commands
from tfdist.errors import ClusterError, Source


def check_processes(launcher: Node, counts: Collection[int], nodes: int, pods: str) -> None:
    """Raises ClusterError if the commands of a launcher start other numbers of processes than those that train.

    Args:
        launcher: the group of pods that it is.
        counts: the numbers that it may start.
        nodes: the pods that train.
        pods: what there is, for the message: "the pods have 8 slots".
    """
    pod = container(launcher.get("template"), None)
    parts = [pod.child(name).value for name in ("command", "args")] if pod else []
    words = [str(word) for part in parts if isinstance(part, list) for word in part]
    stated = [stated_processes(command, launcher.source, nodes) for command in _launches(words, launcher.source)]
    if None not in stated and stated and set(counts).isdisjoint(stated):
        raise launcher.error(f"its command starts {stated[-1]} processes, and {pods}; let them agree")


def _launches(words: Sequence[str], source: Source) -> Iterator[list[str]]:
    """Yields the commands of mpirun and horovodrun."""
    place = next((place for place, word in enumerate(words) if SHELL_OPTION.fullmatch(word)), None)
    try:
        lines = [words] if place is None else [each.words for each in commands("".join(words[place + 1 : place + 2]), source)]
    except ClusterError:
        return
    for line in filter(None, lines):
        position = next((place for place, word in enumerate(line) if os.path.basename(word) in PROGRAMS), None)
        if position is not None and (position == 0 or os.path.basename(line[0]) in PREFIXES):
            yield [os.path.basename(line[position]), *line[position + 1 :]]
