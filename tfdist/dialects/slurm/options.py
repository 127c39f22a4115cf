"""The options of sbatch and srun: how many tasks they ask for, and how many GPUs each task has.

Names and meanings are those of sbatch(1) and srun(1) of Slurm 22.05 and later. Both programs take any unique beginning of a
name (getopt_long). The options of plug-ins are not known here and are passed over.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tfdist.dialects.parsing.command_line import check_variable, is_variable, names
from tfdist.dialects.parsing.document import MAX_GPUS_PER_TASK, MAX_TASKS, shown
from tfdist.dialects.parsing.shell import has_variable
from tfdist.dialects.parsing.values import Values
from tfdist.errors import Source, UnstatedError

_VALUED = names(
    "accel-bind account acctg-freq array batch bb bbf bcast-exclude begin chdir cluster cluster-constraint clusters comment "
    "constraint container context cpu_bind ignore-signals mem-update ntasks-per-tres resources segment treewidth "
    "container-id container-env container-image container-mounts container-name container-save container-workdir core-spec "
    "cores-per-socket cpu-bind cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency distribution "
    "epilog error exclude export export-file extra extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket "
    "gpus-per-task gres gres-flags het-group hint input job-name jobid kill-on-invalid-dep licenses mail-type "
    "mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus mpi msg-timeout network nodefile nodelist nodes "
    "ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket open-mode output pack-group partition power "
    "prefer priority profile prolog qos relative reservation signal slurmd-debug sockets-per-node switches task-epilog "
    "task-prolog tasks-per-node thread-spec threads threads-per-core time time-min tmp tres-bind tres-per-task uid "
    "wait-all-nodes wckey wrap"
)
_SWITCHES = names(
    "async bcast consolidate-segments debugger-test external oom-kill-step send-libs spread-segments stepmgr "
    "wait-for-children x11 contiguous container-mount-home container-remap-root container-writable compress disable-status "
    "exact exclusive get-user-env help hold ignore-pbs immediate interactive join kill-on-bad-exit label multi-prog nice "
    "no-allocate no-container-mount-home no-kill no-requeue overcommit overlap oversubscribe parsable preserve-env propagate "
    "pty quiet quit-on-interrupt reboot requeue resv-ports spread-job test-only unbuffered usage use-min-nodes verbose "
    "version wait whole"
)
_OF_STEPS = names("wait")
"""Options that take a value after `srun` only."""

_LETTERS = dict(
    pair.split("=")
    for pair in names(
        "A=account a=array b=begin B=extra-node-info C=constraint c=cpus-per-task D=chdir d=dependency e=error F=nodefile "
        "G=gpus g=gid i=input J=job-name L=licenses M=clusters m=distribution N=nodes n=ntasks o=output P=dependency "
        "p=partition q=qos r=relative S=core-spec T=threads t=time w=nodelist x=exclude W=wait"
    )
)
_SWITCH_LETTERS = "EHhklOQsuVvXZ"
"""Those that take no value, so that another one may follow in the same word."""
_ALIASES = {"tasks-per-node": "ntasks-per-node", "pack-group": "het-group"}

OF_TASKS = ("ntasks", "nodes", "ntasks-per-node", "ntasks-per-gpu")
"""Options that say how many tasks there are."""

_OF_GPUS = ("gpus", "gpus-per-node", "gpus-per-task", "gres", "tres-per-task")
"""Options that say how many GPUs there are."""

_COUNT = re.compile(r"(?:.*[:=])?([0-9]{1,9})(?:\([^)]*\))?", re.ASCII)
_LISTED = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
"""An entry of a list of nodes, `n[1-2,5]`."""
_PIECES = re.compile(r"([^\[\]]+)|\[([^\[\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", re.ASCII)
_GRES = re.compile(r"(?:gres[/:])?gpu(?:[:=/](.*))?", re.ASCII)


@dataclass(frozen=True)
class Tasks:
    """The tasks of a job or step, and the slots and GPUs of each."""

    count: int
    slots: int
    gpus: int


def options(words: Sequence[str], *, is_batch: bool = False) -> tuple[dict[str, str], int]:
    """Returns the options of srun (with `is_batch`, of sbatch) at the beginning of a command line, behind the program, by their
    full names, and the position of the first other word."""
    valued = _VALUED if is_batch else _VALUED | _OF_STEPS
    found: dict[str, str] = {}
    position = 0
    while position < len(words) and words[position].startswith("-") and words[position] not in ("-", "--"):
        word = words[position]
        position += 1
        if word.startswith("--"):
            written, equals, value = word[2:].partition("=")
            name = _full(written)
        else:
            letters = word[1:].lstrip(_SWITCH_LETTERS) or word[1]  # -ln4 is -l -n4
            name, equals, value = _LETTERS.get(letters[0], ""), letters[1:], letters[1:].removeprefix("=")
        if name in valued and not equals and position < len(words):
            value = words[position]
            position += 1
        if name:
            found[_ALIASES.get(name, name)] = value
    return found, position


def _full(written: str) -> str:
    """Returns the option that a name means: itself, or the only one that begins with it."""
    if written in _VALUED | _SWITCHES:
        return written
    meant = {_ALIASES.get(name, name) for name in _VALUED | _SWITCHES if name.startswith(written)}
    return meant.pop() if len(meant) == 1 else ""


def tasks(values: Values) -> Tasks:
    """Returns the tasks that options ask for: by number, by node or by GPU; else one for each node.

    Raises:
        ClusterError: for bad numbers, and for a number of nodes that Slurm chooses.
    """
    nodes = _nodes(values) or (0 if values.text("ntasks") else _listed_nodes(values))
    per_node, total = _per_node(values), number_of_gpus(values, "gpus")
    per_task = number_of_gpus(values, "gpus-per-task") or listed_gpus(values, "tres-per-task")
    by_gpu = values.number("ntasks-per-gpu", 0)
    if values.text("ntasks"):
        count = values.number("ntasks", least=1)
    elif values.text("ntasks-per-node"):
        count = (nodes or 1) * values.number("ntasks-per-node", least=1)
    elif by_gpu and (total or per_node):
        count = by_gpu * (total or per_node * (nodes or 1))
    elif by_gpu:
        raise values.error("ntasks-per-gpu", "the number of GPUs is missing, which Slurm chooses then; write --gpus=4 too")
    elif total and per_task:
        count = max(1, total // per_task)
    else:
        count = nodes or 1
    if count > MAX_TASKS:
        raise values.error("ntasks-per-node", f"there would be {count} tasks, more than {MAX_TASKS}")
    if by_gpu:
        gpus = 1
    elif per_task:
        gpus = per_task
    elif total:
        gpus = share(total, count)
    else:
        gpus = share(per_node, _on_node(values, count, nodes))
    if count * max(1, gpus) > MAX_TASKS:
        raise values.error("gpus-per-task", f"there would be {count * gpus} GPUs, more than {MAX_TASKS}")
    return Tasks(count, max(1, gpus), gpus)


def check_stated(values: Values) -> None:
    """Raises ClusterError if the options leave the number of tasks to the job in which they are given."""
    names_nodes = values.texts.get("nodelist", "") and not has_variable(values.texts["nodelist"])
    if not names_nodes and not any(map(values.text, ("ntasks", "nodes", "ntasks-per-node", "ntasks-per-gpu", "gpus"))):
        fault = values.error("ntasks", "the number of tasks is missing; write srun --ntasks=4, or give the batch script")
        raise UnstatedError(*fault.args)


def check_one_component(words: Sequence[str], given: Mapping[str, str], source: Source, line: int | None = None) -> None:
    """Raises ClusterError if a command line of srun starts a step on several components of a heterogeneous job. srun takes a
    `:` among the arguments of a program, too, as the beginning of a component."""
    group = given.get("het-group", "0")
    if ":" in words or not group.isdecimal():
        found = "`:`" if ":" in words else f"--het-group={shown(group)[1:-1]}"
        raise source.error(
            f"{found} starts a step on several components of a heterogeneous job, which tfdist does not read; start it in one "
            "component, srun --het-group=0",
            line=line,
        )


def check_variables(words: Sequence[str], source: Source, line: int | None = None) -> None:
    """Raises ClusterError for options of srun behind a shell variable that say how many tasks or GPUs there are.

    The variable may be the program, and they its arguments; or it may hold options, which are then those of srun.
    """
    _, end = options(words)
    after = end
    while after < len(words) and is_variable(words[after]):
        after += 1
    behind, _ = options(words[after:])
    if after > end and not behind.keys().isdisjoint((*OF_TASKS, *_OF_GPUS)):
        check_variable(words[end], source, line)


def share(gpus: int, tasks: int) -> int:
    """Returns the GPUs of one of several tasks; 0, which says nothing, where tasks share GPUs or some have more than others."""
    return gpus // tasks if tasks and gpus % tasks == 0 else 0


def _on_node(values: Values, count: int, nodes: int) -> int:
    if values.text("ntasks-per-node") and not (nodes and values.text("ntasks")):
        return min(count, values.number("ntasks-per-node", least=1))
    return count // nodes if nodes and count % nodes == 0 else (0 if nodes else count)


def _nodes(values: Values) -> int:
    """Returns the value of `--nodes`, `2` or `2-2`; 0 if it is not given."""
    text = values.text("nodes")
    least, dash, most = text.partition("-")
    if dash and least != most:
        raise values.error("nodes", f"{shown(text)} lets Slurm choose the number of nodes; give one number")
    return Values(values.source, {"nodes": least}, values.prefix).number("nodes", 0)


def _listed_nodes(values: Values) -> int:
    """Returns the number of nodes in `--nodelist`, which Slurm takes without `--nodes`; 0 if it is not given."""
    text = values.text("nodelist")
    if "/" in text or values.text("nodefile"):
        raise values.error("nodelist" if text else "nodefile", "this file has the nodes; give their number, --nodes=4, too")
    if text.count("[") != text.count("]"):
        raise values.error("nodelist", f"{shown(text)} is not a list of nodes; expected n[01-04,07],login")
    found: set[str] = set()
    for entry in _LISTED.findall(text):
        names = [""]
        for literal, ranges in _PIECES.findall(entry):
            choices = [literal] if literal else list(_numbers(values, ranges))
            if len(names) * len(choices) > MAX_TASKS:
                raise values.error("nodelist", f"{shown(text)} names more than {MAX_TASKS} nodes")
            names = [name + choice for name in names for choice in choices]
        found.update(names)
    return len(found)


def _numbers(values: Values, ranges: str) -> Iterator[str]:
    """Yields the numbers of `01-04,07` as they are written in names."""
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise values.error("nodelist", f"{shown(part)} is not a range of nodes; expected n[01-04,07]")
        first, last = int(match[1]), int(match[2] or match[1])
        if last - first > MAX_TASKS:
            raise values.error("nodelist", f"{shown(part)} are more than {MAX_TASKS} nodes")
        yield from (str(number).zfill(len(match[1])) for number in range(first, last + 1))


def _per_node(values: Values) -> int:
    return number_of_gpus(values, "gpus-per-node") or listed_gpus(values, "gres")


def number_of_gpus(values: Values, name: str) -> int:
    """Returns the number of GPUs in the option or variable `name`, `2`, `a100:2` or `a100:2,v100:1`; 0 if it is not given."""
    total = 0
    for part in values.text(name).split(","):
        number = part.strip().rpartition(":")[2]
        most = MAX_TASKS if name == "gpus" else MAX_GPUS_PER_TASK
        total += Values(values.source, {name: number}, values.prefix).number(name, 0, most=most)
    return total


def listed_gpus(values: Values, name: str) -> int:
    """Returns the GPUs in a list of resources, `gpu:a100:2,craynetwork:1`."""
    total = 0
    for part in values.text(name).split(","):
        match = _GRES.fullmatch(part.strip())
        if match is None:
            continue
        count = _COUNT.fullmatch(match[1]) if match[1] else None
        number = count[1] if count else "1"  # `gpu` and `gpu:a100` ask for one.
        total += Values(values.source, {name: number}, values.prefix).number(name, most=MAX_GPUS_PER_TASK)
    return total


def variables(wanted: Mapping[str, str], source: Source) -> dict[str, str]:
    """Returns the variables of numbers that sbatch sets in a script by its options, those which follow from the options alone.

    Raises ClusterError for a bad number.
    """
    values = Values(source, wanted, "--")
    # Of a number of tasks or GPUs it follows only with their nodes, which Slurm chooses.
    nodes = _nodes(values) or (0 if wanted.keys() & {"ntasks", "gpus"} else _listed_nodes(values) or 1)
    on_each = values.number("ntasks-per-node", 0)
    count = values.number("ntasks", 0) or nodes * on_each
    numbers = {
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), nodes),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), count),
        "SLURM_NTASKS_PER_NODE": on_each,
        "SLURM_GPUS_ON_NODE": _per_node(values),
        # With a type, `a100:4`, the variable is no number.
        "SLURM_GPUS_PER_NODE": values.number("gpus-per-node", 0) if wanted.get("gpus-per-node", "").isdecimal() else 0,
    }
    return {name: str(number) for name, number in numbers.items() if number}
