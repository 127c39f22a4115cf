"""The processes that a pod starts, by its command: the launcher of an MPIJob or a Volcano Job, or torchrun in each pod."""

import os
from collections.abc import Collection, Iterator, Sequence

from tfdist.dialects import pytorch
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
    words = _words(container(launcher.get("template"), None))
    stated = [stated_processes(command, launcher.source, nodes) for command in _launches(words, launcher.source, PROGRAMS)]
    if None not in stated and stated and set(counts).isdisjoint(stated):
        raise launcher.error(f"its command starts {stated[-1]} processes, and {pods}; let them agree")


def processes_of_torchrun(pod: Node | None, given: int | None) -> int | None:
    """Returns how many processes torchrun starts in a pod: `given` if the command of the container has no number.

    Raises:
        ClusterError: if both are numbers, and differ.
    """
    if pod is None:
        return given
    for command in _launches(_words(pod), pod.source, _TORCHRUN):
        stated = pytorch.stated_processes(command, pod.source)
        if stated is not None and given not in (None, stated):
            raise pod.error(f"its command starts {stated} processes, and nprocPerNode is {given}; let them agree")
        return given if stated is None else stated
    return given


_TORCHRUN = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
"""The program, and modules for `python -m`."""


def _words(pod: Node | None) -> list[str]:
    parts = [pod.child(name).value for name in ("command", "args")] if pod else []
    return [str(word) for part in parts if isinstance(part, list) for word in part]


def _launches(words: Sequence[str], source: Source, programs: Collection[str]) -> Iterator[list[str]]:
    """Yields the commands of these programs."""
    place = next((place for place, word in enumerate(words) if SHELL_OPTION.fullmatch(word)), None)
    try:
        lines = [words] if place is None else [each.words for each in commands("".join(words[place + 1 : place + 2]), source)]
    except ClusterError:
        return
    for line in filter(None, lines):
        position = next((place for place, word in enumerate(line) if os.path.basename(word) in programs), None)
        if position is not None and (position == 0 or os.path.basename(line[0]) in PREFIXES or line[position - 1] == "-m"):
            yield [os.path.basename(line[position]), *line[position + 1 :]]
