"""The command line of `tfdist plan`."""

import dataclasses
from dataclasses import dataclass

from absl import flags

from tfdist.choice import STRATEGIES
from tfdist.cluster import Cluster
from tfdist.dialects.parsing.document import MAX_TASKS
from tfdist.dialects.registry import override_flags
from tfdist.errors import Source
from tfdist.flags import HOGWILD_FLAGS, PARTITION_FLAGS, cluster_from_flags, define_flags, describes, hogwild_flags, option_of
from tfdist.launch.command_line import checks, splitting
from tfdist.launch.errors import UsageError
from tfdist.launch.jobs.job import Program
from tfdist.launch.supervision import scaling
from tfdist.planner.prices import DEFAULT_MACHINE
from tfdist.synchronization import DEFAULT_SYNC_PERIOD, Synchronization
from tfdist.translate import outputs

USAGE = """usage: tfdist plan [FLAGS] [PROGRAM] [FLAGS] [-- ARGUMENTS OF THE PROGRAM]

Measures a program on this machine for at most a minute, and predicts how many examples per second it would train on a cluster,
for each strategy, number of ps and sync period, and which resource binds. It recommends one of them.

  tfdist plan train.py --tier CUSTOM --worker_count 8       how many ps for 8 workers?
  tfdist plan train.py --machines 12 --link 10gbit          the best use of up to 12 machines
  tfdist plan --from m.json --cluster job.conf --link 1gbit without measuring again
  tfdist plan train.py --machines 12 --to tfjob             writes the recommended cluster

The cluster: the flags of tfdist run that describe one (-n, --cluster, --tier, --worker_count, ...; tfdist run --help), else

  --machines N        up to N machines, with any number of workers and ps
  --strategy NAME     compare only this strategy
  --sync_period N     compare only this sync period of hogwild; its other options (--delay, --compression, ...) are kept

The machines:

  --link RATE         rate of the link of each machine, in each direction: 1gbit, 100mbit. Default: that of the measurement,
                      else 1gbit, an assumption. "measured": one TCP connection between the hosts of the description, over ssh
  --ssh_config FILE   configuration of ssh for that. Default: yours
  --cores N           cores of each machine, also a part of one (0.5). Default: by the machine type of the description, else
                      those of this machine, or its quota of processor time
  --prices FILE       price per hour by machine type, as JSON or YAML: adds the cost, and recommends the cheapest of equals

The measurement:

  --from FILE         takes an earlier measurement instead of a program
  --save FILE         writes the measurement to a file
  --seconds N         how long to measure at most. Default: 60
  --env NAME=VALUE    a variable for the program. Can be given several times
  -m MODULE           a module instead of a program

The output:

  --json              all choices as JSON
  --svg FILE          a drawing of the table
  --to LANGUAGE       prints the recommended cluster in a language of tfdist translate, and the table on standard error
  --rows N            rows of the table. Default: 12

Exit codes: 0; 2 a bad command line, description or program, and nothing was measured; 130 Ctrl-C.
"""

NEEDS_MACHINE = {
    "master_machine_type": None,
    "worker_machine_type": "worker_count",
    "parameter_server_machine_type": "parameter_server_count",
}
"""Machine types that scale tier CUSTOM asks for, and the number of machines with which it asks; the planner has a default."""


NO_PARTITION = "tfdist plan predicts only models that each worker holds as a whole; leave the partition out"
"""The end of a sentence that refuses variables sharded over devices."""


@dataclass(frozen=True)
class Arguments:
    """The command line.

    Attributes:
        values: the flags.
        program: the program; None with `--from`.
        cluster: the described cluster; None with `--machines` alone.
        strategy: the strategy of the flags, or None.
        sync_period: the sync period of the flags, or None.
        synchronization: the options of hogwild.
        notes: what was assumed.
    """

    values: flags.FlagValues
    program: Program | None
    cluster: Cluster | None
    strategy: str | None
    sync_period: int | None
    synchronization: Synchronization
    notes: tuple[str, ...]


def define() -> flags.FlagValues:
    """Returns the flags of the command, without values."""
    values = flags.FlagValues()
    define_flags(values)
    flags.DEFINE_boolean("help", False, "", short_name="h", flag_values=values)
    flags.DEFINE_integer("machines", None, "", lower_bound=1, upper_bound=1000, flag_values=values)
    flags.DEFINE_integer("workers", None, "", short_name="n", lower_bound=1, upper_bound=MAX_TASKS, flag_values=values)
    flags.DEFINE_integer("max_workers", None, "", lower_bound=1, upper_bound=MAX_TASKS, flag_values=values)
    flags.DEFINE_string("link", None, "", flag_values=values)
    flags.DEFINE_float("cores", None, "", lower_bound=0.01, upper_bound=4096.0, flag_values=values)
    for name in ("prices", "from", "save", "svg", "to", "m", "ssh_config"):
        flags.DEFINE_string(name, None, "", flag_values=values)
    flags.DEFINE_float("seconds", 60.0, "", lower_bound=10.0, flag_values=values)
    flags.DEFINE_integer("rows", 12, "", lower_bound=1, flag_values=values)
    flags.DEFINE_boolean("json", False, "", flag_values=values)
    flags.DEFINE_multi_string("env", [], "", flag_values=values)
    return values


def parsed(argv: list[str]) -> Arguments | None:
    """Returns the command line; None if it asks for help.

    Raises:
        UsageError, ClusterError, flags.Error: if it cannot be used.
    """
    values = define()
    end = argv.index("--") if "--" in argv else len(argv)
    ours, own = splitting.with_underscores(argv[:end], values), argv[end + 1 :]
    values.set_gnu_getopt(True)
    words = values(["tfdist plan", *ours])[1:]
    if values["help"].value:
        return None
    checks.check_numbers(values)
    if values["json"].value and values["to"].value is not None:
        raise UsageError("--json and --to both print to standard output; give one of them")
    if (to := values["to"].value) is not None and to not in outputs():
        raise UsageError(f"--to {to}: it is not one of {', '.join(outputs())}")
    program = _program(values, words, own)
    # They choose among the options. The cluster of the description need not have the tasks for them.
    strategy = values["strategy"].value
    if strategy is not None and strategy not in STRATEGIES:
        raise UsageError(f"--strategy {strategy}: it is not a strategy; choose one of {', '.join(STRATEGIES)}")
    period = values["sync_period"].value
    if period is not None and period < 1:
        raise UsageError(f"--sync_period {period}: expected a whole number from 1")
    options = hogwild_flags(values)
    for name in ("strategy", *HOGWILD_FLAGS):
        values[name].value = None
    cluster, notes = _cluster(values)
    base = Synchronization() if cluster is None else cluster.synchronization
    options.pop("sync_period", None)
    changes = {option_of(flag): value for flag, value in options.items()}
    if base.topology != "global" or changes.get("topology", "global") != "global":
        notes = (*notes, "rings and pairs of groups are not predicted: the table is about global parameters")
        changes["topology"] = "global"
    synchronization = dataclasses.replace(base, **changes)
    synchronization.check(period or DEFAULT_SYNC_PERIOD, 1, Source("flags", "tfdist plan"))
    return Arguments(values, program, cluster, strategy, period, synchronization, notes)


def _program(values: flags.FlagValues, words: list[str], own: list[str]) -> Program | None:
    has_program = bool(words) or values["m"].value is not None
    if values["from"].value is not None:
        if has_program or own:
            raise UsageError("--from takes an earlier measurement; leave the program out, or leave --from out to measure it")
        return None
    if len(words) > 1 or (words and values["m"].value is not None):
        raise UsageError(f"{words[-1]}: expected one program; its own arguments come after --")
    if not has_program:
        raise UsageError("expected a program to measure (tfdist plan train.py --machines 8), or --from FILE")
    return splitting.program([*words, *own], values["m"].value)


def _cluster(values: flags.FlagValues) -> tuple[Cluster | None, tuple[str, ...]]:
    notes = _with_machine_types(values)
    if partition := next((name for name in PARTITION_FLAGS if values[name].value is not None), None):
        raise Source("flags", f"--{partition}").error(NO_PARTITION)
    if (workers := values["workers"].value) is not None:
        if describes(values):
            raise UsageError("-n counts the workers of a cluster without another description; leave it or the description out")
        values["cluster"].value = f'{{"worker": {workers}}}'
    if values["machines"].value is not None and not describes(values):
        if values["max_workers"].value is not None:
            raise UsageError("--max_workers is about the workers of a description; describe a cluster, or leave it out")
        return None, ()  # Also where a launcher of this process describes a cluster.
    cluster = cluster_from_flags(values)
    if cluster is None:
        raise UsageError("no cluster is described: give --machines N, -n N, --tier NAME or --cluster FILE, or read --help")
    if not isinstance(cluster, Cluster):
        cluster = cluster.outline()
    if cluster.partial:
        raise Source("flags", "tfdist plan").error("this describes a part of a cluster; describe all of it")
    if cluster.partition:
        raise cluster.source.error(NO_PARTITION, field="partition")
    if (most := values["max_workers"].value) is not None:
        cluster = scaling.with_room(cluster, most)
    if cluster.min_workers is not None:
        begin, room = cluster.min_workers, len(cluster.job("worker"))
        notes = (*notes, f"{begin} workers begin, and there is room for {room}: the table is about all {room}")
    return cluster, notes


def _with_machine_types(values: flags.FlagValues) -> tuple[str, ...]:
    """Sets the machine types that scale tier CUSTOM needs and that are not given."""
    known = override_flags()
    if (values["tier"].value or "").upper() != "CUSTOM":
        return ()
    missing = []
    for name, count in NEEDS_MACHINE.items():
        if name in known and values[name].value is None and (count is None or values[count].value is not None):
            values[name].value = DEFAULT_MACHINE
            missing.append(f"--{name}")
    return (f"{', '.join(missing)}: {DEFAULT_MACHINE}, because none is given",) if missing else ()
