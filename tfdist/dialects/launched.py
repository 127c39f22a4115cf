"""Reads the commands of a script or command line, and decides which of several describes the cluster."""

import dataclasses
import os
import re

from tfdist.cluster import Cluster, Task
from tfdist.dialects.commands import Launch
from tfdist.dialects.detection import Launched
from tfdist.dialects.dialect import Described
from tfdist.dialects.parsing.command_line import MPI_PROGRAMS
from tfdist.dialects.parsing.machine_gpus import NODES, ON_NODE
from tfdist.dialects.parsing.values import Values
from tfdist.dialects.registry import command_readers, environment_readers
from tfdist.errors import ClusterError, Source, UnstatedError
from tfdist.rank_info import RankInfo, UnplacedError

_PYTHON = re.compile(r"python[0-9.]*", re.ASCII)
ASK_SCHEDULERS = frozenset(MPI_PROGRAMS)
"""Launchers that ask the scheduler in whose job they run for its nodes."""


def read_launches(launched: Launched, tasks: int | None = None, has_steps: bool = False) -> Described:
    """Returns what the commands of a script describe.

    In the script of a job of a scheduler, `tasks` are those of the job: `srun` starts a command without options of its own on
    them, and `mpirun` as many processes; if the script `has_steps` of `srun`, `mpirun` without a number may only prepare.

    Raises:
        ClusterError: if the commands describe different clusters, or the only one cannot be read.
        UnplacedError: if they describe one cluster, and leave its addresses to the shell or the launcher.
    """
    described: list[Described] = []
    faults: list[ClusterError] = []
    unstated: list[ClusterError] = []
    unplaced: list[UnplacedError] = []
    asked = set[int]()  # Processes that `mpirun` without a number starts.
    launched = dataclasses.replace(
        launched, launches=[each for each in launched.launches if not _prepares(each)] or launched.launches
    )
    for launch in launched.launches:
        try:
            described.append(_read(launch, launched, tasks or 1))
        except UnstatedError as error:
            unstated.append(error)  # It counts only if nothing else describes a cluster: `srun hostname`.
            may_train = len(launched.launches) == 1 or _starts_python(launch)
            if tasks is not None and not has_steps and may_train and launch.words[0] in ASK_SCHEDULERS:
                if error.per_node and NODES not in launch.variables:
                    faults.append(ClusterError(*error.args))
                asked.add(error.per_node * int(launch.variables.get(NODES, "0")) or tasks)
        except UnplacedError as error:
            if launched.has_lines and all(task.port for task in error.outline.tasks):
                described.append(error.outline)  # A script that starts every task says all but which of them this is.
            else:
                unplaced.append(error)
        except ClusterError as error:
            faults.append(_with_line(error, launch, launched))
    if unplaced and not described and not faults and all(other.outline == unplaced[0].outline for other in unplaced):
        raise unplaced[0]
    faults += [ClusterError(*error.args) for error in unplaced]
    if not described and not faults and asked and asked != {tasks}:
        workers = tuple(Task("worker", rank) for rank in range(max(asked)))
        described.append(Cluster(workers, source=Source(launched.launches[0].dialect, launched.source.name)))
    if not described:
        raise (*faults, *unstated)[0]
    if not faults and all(other == described[0] for other in described) and asked <= {_size(described[0])}:
        return _without_task(described)
    lines = list(dict.fromkeys(launch.line for launch in launched.launches))
    where = f"lines {', '.join(map(str, lines[:5]))}" if len(lines) > 1 else f"line {lines[0]}"
    which = "start different nodes of one job" if _is_one_job(described) and not faults else "describe different clusters"
    if faults:
        which = f"start several jobs, and one of them cannot be read ({str(faults[0]).partition(': ')[2][:150]})"
    raise launched.source.error(f"the commands in {where} {which}; give only one of them")


def _with_line(error: ClusterError, launch: Launch, launched: Launched) -> ClusterError:
    """Returns the error with the line of the script; as it is, if it names the script itself and not a file that this names."""
    is_of_file = launched.has_lines and not str(error).startswith(launched.source.name)
    return launched.source.error(str(error), line=launch.line) if is_of_file else error


def _read(launch: Launch, launched: Launched, tasks: int) -> Described:
    name = f"{launched.source.name}:{launch.line}" if launched.has_lines else launched.source.name
    source = Source(launch.dialect, name)
    if not launch.words:
        return _from_variables(launch, source)
    described = _parse(launch, source)
    if launch.outer is not None:
        alone = launch.outer.words[1:2] == (launch.words[0],)
        try:
            outer = None if alone else _parse(launch.outer, source)
        except UnstatedError:
            outer = None
        starts = max(len(outer.tasks) if isinstance(outer, Cluster) else 1, tasks)
        if starts > 1 and isinstance(described, Cluster) and all(task.host is None for task in described.tasks):
            raise source.error(
                f"srun starts {launch.words[0]} on each of {starts} tasks, and its own options describe one machine; state the "
                "number of nodes there, or give the command of one launcher"
            )
    return described


def _parse(launch: Launch, source: Source) -> Described:
    reader = command_readers()[launch.dialect]
    if reader.reads_variables:
        environ = {name: value for name, value in os.environ.items() if name != ON_NODE} | dict(launch.variables)
        if "CUDA_VISIBLE_DEVICES" in launch.variables:
            environ.setdefault(ON_NODE, "")
        elif ON_NODE in launch.variables:
            environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(int(launch.variables[ON_NODE]))))
        return reader.parse(list(launch.words), source, environ)
    return reader.parse(list(launch.words), source)


def _from_variables(launch: Launch, source: Source) -> Described:
    reader = environment_readers()[launch.dialect]
    variable = reader.recognizes(launch.variables) or ""
    values = Values(source, launch.variables, "")
    values.check_expanded(variable, launch.variables.get(variable, ""))
    try:
        return reader.parse(launch.variables)
    except ClusterError as error:
        raise source.error(str(error)) from None


def _without_task(described: list[Described]) -> Described:
    """Returns the first of equal descriptions; without a task if each is that of another task."""
    first = described[0]
    if isinstance(first, Cluster) and len({entry.task for entry in described if isinstance(entry, Cluster)}) > 1:
        return dataclasses.replace(first, task=None)
    return first


def _prepares(launch: Launch) -> bool:
    return bool(launch.words) and command_readers()[launch.dialect].prepares(launch.words)


def _starts_python(launch: Launch) -> bool:
    return any(_PYTHON.fullmatch(os.path.basename(word)) is not None or word.endswith(".py") for word in launch.words)


def _size(described: Described) -> int:
    return described.size if isinstance(described, RankInfo) else len(described.tasks)


def _is_one_job(described: list[Described]) -> bool:
    ranks = [entry for entry in described if isinstance(entry, RankInfo)]
    return len(ranks) == len(described) and len({(entry.size, entry.store) for entry in ranks}) == 1
