"""The launchers of MPI that only some machines have: IBM's `jsrun`, Cray's `aprun` and TACC's `ibrun`.

They start processes on the nodes of the job that they run in, so hosts stay open. Sources of the rules: the user guides of
Summit (jsrun) and Blue Waters, aprun(1) of Cray's ALPS, and `ibrun --help`.
"""

from collections.abc import Sequence

from tfdist.cluster import Cluster, Task
from tfdist.dialects.parsing.command_line import check_count, check_single, check_variable, names
from tfdist.dialects.parsing.document import MAX_GPUS_PER_TASK, shown
from tfdist.dialects.parsing.values import Values
from tfdist.errors import ClusterError, Source, UnstatedError, nearest

_JSRUN = dict(
    pair.split("=")
    for pair in names(
        "n=nrs p=np a=tasks_per_rs c=cpu_per_rs g=gpu_per_rs m=memory_per_rs r=rs_per_host K=rs_per_socket b=bind "
        "l=latency_priority d=launch_distribution E=env h=chdir e=stdio_mode o=stdio_stdout k=stdio_stderr t=stdio_input "
        "X=exit_on_error M=smpiargs U=use_resources S=save_resources J=use_reservation f=appfile"
    )
)
"""Letters of jsrun's options, and their names. All of them take a value."""

_VALUED = {
    "jsrun": frozenset({*_JSRUN, *_JSRUN.values()}),
    "aprun": names("a cc cp d D e F j L m n N p r R S sl sn t"),
    "ibrun": names("n np o"),
}
_SWITCHES = {"jsrun": names("i immediate"), "aprun": names("b B C q ss T"), "ibrun": names("")}
PROGRAMS = tuple(_VALUED)


def parse_command(words: Sequence[str], source: Source) -> Cluster:
    """Returns a worker for each process. Raises ClusterError for bad options, and without a number of processes."""
    found, end = options(words, source)
    program = words[end:]
    check_single(program, source)
    if ":" in program:
        raise source.error("the command line starts several programs (`:`); tfdist runs one program on every task")
    values = Values(source, found, "-" if words[0] != "jsrun" else "--")
    count, gpus = {"jsrun": _of_jsrun, "aprun": _of_aprun, "ibrun": _of_ibrun}[words[0]](values)
    check_count(values, "nrs" if words[0] == "jsrun" else "n", count)
    return Cluster(tuple(Task("worker", rank, slots=max(1, gpus), gpus=gpus) for rank in range(count)), source=source)


def options(words: Sequence[str], source: Source) -> tuple[dict[str, str], int]:
    """Returns the launcher's options by name, and the position of the program."""
    launcher, found, position = words[0], dict[str, str](), 1
    valued, switches = _VALUED[launcher], _SWITCHES[launcher]
    while position < len(words) and words[position].startswith("-"):
        word = words[position]
        check_variable(word, source)
        position += 1
        name, equals, value = word.lstrip("-").partition("=")
        if name not in valued | switches and not word.startswith("--"):
            name, equals, value = name[:1], "=", word[2:].removeprefix("=")  # -n6
        if name not in valued | switches:
            raise source.error(f"there is no such option{nearest(name, sorted(valued))}", field=shown(word, 40)[1:-1])
        if name in valued and not equals:
            value = words[position] if position < len(words) else ""
            position += 1
        found[_JSRUN.get(name, name) if launcher == "jsrun" else name] = value
    return found, position


def _of_jsrun(values: Values) -> tuple[int, int]:
    """Returns the tasks, and the GPUs of each: those of a resource set, divided among its tasks."""
    if values.text("appfile"):
        raise values.error("appfile", "the programs are in a file; give the command line of the one that trains")
    if not values.text("nrs") and not values.text("np"):
        raise _unstated(values, "nrs", "jsrun takes all nodes of its job without a number; write -n 8")
    sets, each = values.number("nrs", 0), values.number("tasks_per_rs", 1, least=1)
    count = values.number("np", 0) or sets * each
    if values.text("np") and sets and count % sets == 0:
        each = count // sets
    if values.text("gpu_per_rs") == "ALL_GPUS":
        return count, 0  # Only the machine knows how many that are.
    gpus = values.number("gpu_per_rs", 0, most=MAX_GPUS_PER_TASK)
    return count, gpus // each if gpus % each == 0 else 0


def _of_aprun(values: Values) -> tuple[int, int]:
    if "B" in values.texts:
        raise _unstated(values, "B", "the number of processes is that of the job; write -n 8")
    return values.number("n", 1, least=1), 0


def _of_ibrun(values: Values) -> tuple[int, int]:
    name = "np" if values.text("np") else "n"
    if not values.text(name):
        raise _unstated(values, "n", "the number of processes is that of the job; write -n 8, or give the batch script")
    return values.number(name, least=1), 0


def _unstated(values: Values, name: str, message: str) -> ClusterError:
    return UnstatedError(*values.error(name, message).args)
