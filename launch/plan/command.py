"""`tfdist plan`: measures, predicts, and shows."""

import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from absl import flags

from tfdist import machine
from tfdist.choice import STRATEGIES
from tfdist.errors import ClusterError
from tfdist.launch.command_line import checks
from tfdist.launch.errors import UsageError
from tfdist.launch.jobs.progress import size
from tfdist.launch.plan import arguments, configurations, host_link
from tfdist.launch.plan.arguments import Arguments
from tfdist.messages import printable
from tfdist.planner import chart, described, link, measurement, prices, recommend, table
from tfdist.planner.candidates import PERIODS, Request, candidates
from tfdist.planner.costs import Costs
from tfdist.planner.measurement import Measurement
from tfdist.planner.option import Hardware, Option
from tfdist.planner.predict import Prediction
from tfdist.planner.predictions import MANY, predictions
from tfdist.planner.prices import Machines
from tfdist.translate import notes, outputs, show

DEFAULT_LINK = "1gbit"
MEASURED = "measured"
"""Value of `--link`: between the hosts of the description."""

APART = ("cloudml", "vertex")
"""Languages in which every task has a machine of its own, and every cluster a chief."""

NEEDS = {
    "mirrored": "one task with several slots: it trains on the devices of one machine",
    "multi_worker_mirrored": "two workers or more",
    "parameter_server": "a worker and a ps",
    "hogwild": "two workers or more, and a sync period that --fragments divides",
}
"""What a strategy needs of the clusters that are compared."""

BUSY = 0.2
"""A measurement is called that of a busy machine if its threads waited for cores for this part of the time."""


@dataclass(frozen=True)
class View:
    """What the command shows.

    Attributes:
        measured: the measurement.
        ranked: all predictions, the recommended one first.
        shown: those of the table.
        cost: what an option costs for an hour; None without prices.
        described: the option of the description; None if it is not predicted.
    """

    measured: Measurement
    ranked: list[Prediction]
    shown: list[Prediction]
    cost: table.Cost | None
    described: Option | None


def main(argv: list[str]) -> int:
    """Runs the command; returns its exit code."""
    given = arguments.parsed(argv)
    if given is None:
        print(arguments.USAGE, end="")
        return 0
    values = given.values
    machines = Machines.of(given.cluster)
    request = _request(given)
    if given.strategy is not None and all(each.strategy != given.strategy for each in candidates(request)):
        raise UsageError(
            f"--strategy {given.strategy}: it needs {NEEDS[given.strategy]}, and no cluster that you ask for has that; "
            "describe another one, or leave --strategy out"
        )
    hosts = _hosts(given) if values["link"].value == MEASURED else []
    rate = 0.0 if hosts else link.bytes_per_second(values["link"].value or DEFAULT_LINK)
    price = prices.read(values["prices"].value) if values["prices"].value is not None else None
    cost = None if price is None else lambda option: price.per_hour(option, machines)
    if cost is not None:
        if machines.assumed:
            who = " and ".join(machines.assumed)
            _say(f"prices: {who} count as {prices.DEFAULT_MACHINE}, because no machine type is given for them")
        for option in candidates(request):
            cost(option)  # Before the measurement: a price may be missing.
    if values["to"].value is not None:
        _written(candidates(request), given, machines)  # Also before it: the language may have no words for any of them.
    _check_writable(values)
    typed = given.cluster is not None and any(task.machine_type for task in given.cluster.tasks)
    cores = values["cores"].value or (prices.cores(machines.worker) if typed else None)
    server_cores = None if values["cores"].value or not typed else prices.cores(machines.ps)
    measured = _measurement(given, request, cores, hosts)
    rate = measured.link or rate if values["link"].value in (None, MEASURED) else rate
    hardware = Hardware(rate * link.GOODPUT, cores or machine.capacity(), server_cores)
    costs, request = Costs(measured), request.over(hardware.link)
    rows, price_of = int(values["rows"].value or 1), _of_predictions(cost)
    ranked = predictions(costs, hardware, candidates(request), rows, price_of, request.described)
    shown = recommend.shown(ranked, rows, price_of, request.described)
    for line in [*given.notes, *_notes(given, measured, hardware, ranked, shown)]:
        _say(line)
    view = View(measured, ranked, shown, cost, request.described)
    _show(given, view, machines)
    return 0


def _of_predictions(cost: table.Cost | None) -> recommend.Cost | None:
    return None if cost is None else lambda each: cost(each.option)


def _request(given: Arguments) -> Request:
    """Returns what the description and the flags leave open."""
    values, cluster = given.values, given.cluster
    strategies = frozenset([given.strategy] if given.strategy else STRATEGIES)
    periods: tuple[int, ...] = PERIODS if given.sync_period is None else (given.sync_period,)
    most = values["machines"].value
    to = values["to"].value
    if cluster is None:
        needs_chief = to in APART
        return Request(
            None, most, strategies, periods, given.synchronization, adds_chief=needs_chief, may_colocate=not needs_chief
        )
    option = described.option_with(cluster, given.strategy, given.sync_period, given.synchronization)
    if option is not None and option.strategy == "hogwild" and given.sync_period is None:
        periods = tuple(dict.fromkeys((option.period, *PERIODS)))
    apart = cluster.source.dialect in APART or to in APART
    workers = None if most else len(cluster.job("worker")) or 1
    has_chief = bool(cluster.job("chief")) and bool(cluster.job("worker"))
    # A chief alone, as in scale tier BASIC, is the one process; beside ps it only coordinates, on its own machine.
    adds_chief = apart and not has_chief
    return Request(workers, most, strategies, periods, given.synchronization, has_chief, adds_chief, not apart, option)


def _hosts(given: Arguments) -> list[str]:
    """Returns the hosts of the description, for `--link measured`. Raises UsageError if there are not several."""
    hosts = list(dict.fromkeys(task.host for task in given.cluster.training_tasks if task.host)) if given.cluster else []
    if len(hosts) < 2:
        raise UsageError("--link measured: it needs a description that names several hosts; give the rate, for example 1gbit")
    if shutil.which("ssh") is None:
        raise UsageError("--link measured: it needs the command ssh; give the rate, for example 1gbit")
    return hosts


def _measurement(given: Arguments, request: Request, cores: float | None, hosts: Sequence[str]) -> Measurement:
    values = given.values
    if values["from"].value is not None:
        measured = measurement.read(values["from"].value)
    else:
        assert given.program is not None
        checks.check_program(given.program)
        from tfdist.launch.plan.probe import Probe

        here = machine.cores()
        limit = max(1, int(min(cores or here, here)))
        wanted = configurations.for_strategies(set(request.strategies))
        seconds = float(values["seconds"].value or 0)
        environment = checks.environment(list(values["env"].value or []))
        probe = Probe(given.program, wanted, limit, request.synchronization, seconds, _say, environment)
        _say(f"measures {' '.join(given.program.command('')[1:])} on this machine for up to {seconds:.0f} s")
        measured = probe.run()
    if hosts:
        measured = dataclasses.replace(measured, link=host_link.measured(hosts, values["ssh_config"].value))
    if values["save"].value is not None:
        measurement.save(measured, values["save"].value)
    return measured


def _check_writable(values: flags.FlagValues) -> None:
    """Raises UsageError for files that cannot be written, before the measurement instead of after it."""
    for name in ("save", "svg"):
        path = values[name].value
        if path is None:
            continue
        folder = os.path.dirname(path) or "."
        if os.path.isdir(path) or not os.access(path if os.path.exists(path) else folder, os.W_OK):
            raise UsageError(f"--{name} {path}: this file cannot be written; name a file in an existing folder")


def _notes(
    given: Arguments, measured: Measurement, hardware: Hardware, ranked: list[Prediction], shown: list[Prediction]
) -> list[str]:
    """Returns what the user should know about the table."""
    return [*_notes_on_measurement(given, measured, hardware), *_notes_on_choices(given, measured, ranked, shown)]


def _notes_on_measurement(given: Arguments, measured: Measurement, hardware: Hardware) -> list[str]:
    single = measured.single
    notes = [
        f"{measured.program}: {measured.batch} examples per step, {size(measured.model_bytes)} of parameters in "
        f"{len(measured.variables)} variables, {size(measured.batch_bytes)} of data per step from the chief"
    ]
    assumed = "" if given.values["link"].value else " (assumed; --link gives another)"
    if measured.link and given.values["link"].value in (None, MEASURED):
        assumed = " (measured between hosts)"
    server = f", {hardware.server_cores} for a ps" if hardware.server_cores not in (None, hardware.cores) else ""
    rate = link.shown(hardware.link / link.GOODPUT)
    notes.append(f"links of {rate}{assumed}, {_cores(hardware.cores)} per machine{server}")
    waits = single.waited / (single.waited + single.worker * single.steps)
    if waits > BUSY:
        notes.append(
            f"other programs kept this machine busy while it was measured: its threads waited {waits:.0%} of their time"
        )
    if hardware.cores > measured.cores:
        notes.append(f"measured with {_cores(measured.cores)}: how much faster {hardware.cores:.3g} are is an extrapolation")
    return notes


def _notes_on_choices(given: Arguments, measured: Measurement, ranked: list[Prediction], shown: list[Prediction]) -> list[str]:
    notes = []
    if given.cluster is not None and described.option_of(given.cluster) is None:
        notes.append(
            "groups of several workers, several server groups, and hogwild without ps are not predicted: the table has none"
        )
    training = [] if given.cluster is None else given.cluster.training_tasks
    if len(training) > 1 and any(task.slots > 1 for task in training):
        notes.append("workers with several slots are predicted as if each trained on one: they may be faster than that")
    if measured.table_bytes:
        notes.append(_tables(measured))
    missing = sorted({text for each in ranked for text in each.assumed})
    if missing and all(run.strategy == "default" for run in measured.runs) and missing != ["mirrored was not measured"]:
        notes.append(
            "no cluster was measured, only one process: the other speeds are guesses from typical costs; measure on a quiet "
            "machine, or for longer (--seconds 180)"
        )
    elif missing:
        notes.append(f"{', '.join(missing)}: typical costs are assumed")
    if any(each.is_simulated and each.option.workers > MANY for each in shown):
        notes.append(f"choices with more than {MANY} workers are simulated: nobody has compared so many with real runs")
    if "chief" in ranked[0].binding and measured.batch_bytes:
        notes.append("the chief reads and sends all batches; distribute_datasets_from_function lets the workers read theirs")
    if ranked[0].option.strategy == "hogwild":
        if given.synchronization.compression != ranked[0].option.compression:
            notes.append(f"over such links hogwild sends parameters as {ranked[0].option.compression} (--compression)")
        notes.append("hogwild trains local replicas, which can cost accuracy: see docs/hogwild.md before you choose it")
    return notes


def _cores(count: float) -> str:
    return f"{count:.3g} core{'s' * (count != 1)}"


def _tables(measured: Measurement) -> str:
    """Returns a sentence about the tables of Embedding layers."""
    run = measured.run("parameter_server", 1)
    if run is None or not run.moved:
        return "tables of Embedding layers count as a whole: parameter_server is faster than predicted if steps read few rows"
    costs, reduces = Costs(measured), measured.run("multi_worker_mirrored")
    rows = ", and of multi_worker_mirrored the rows of a batch" if reduces is not None and reduces.moved else ""
    part = f"{costs.table_part:.0%} of the tables of Embedding layers"
    return f"a step of parameter_server moves {part}{rows}; others count with all"


def _show(given: Arguments, view: View, machines: Machines) -> None:
    values, ranked, rows = given.values, view.ranked, view.shown
    if values["svg"].value is not None:
        try:
            with open(values["svg"].value, "w", encoding="utf-8") as file:
                file.write(chart.write(rows, f"Predicted for {view.measured.program}", view.described))
        except OSError as error:
            raise UsageError(f"--svg {values['svg'].value}: {error.strerror}") from error
    if values["json"].value:
        print(json.dumps(table.as_json(view.measured, ranked, view.cost, view.described), indent=2))
        return
    to_standard_error = values["to"].value is not None
    print(table.text(rows, view.cost, view.described), end="", file=sys.stderr if to_standard_error else sys.stdout)
    guess = f" (a guess: {', '.join(ranked[0].assumed)})" if ranked[0].assumed else ""
    _say(f"recommended{guess}: {table.name_of(ranked[0].option)}; {ranked[0].sentence}")
    if to_standard_error:
        option, lost, text = _written([each.option for each in ranked], given, machines)
        to = values["to"].value
        if option is not ranked[0].option:
            _say(f"{to} cannot express the recommended one; this is the best that it can: {table.name_of(option)}")
        for line in lost:
            _say(line)
        show(text)


def _written(options: Sequence[Option], given: Arguments, machines: Machines) -> tuple[Option, list[str], str]:
    """Returns the first option that a language can express, sentences about what it leaves out, and the text.

    Raises:
        ClusterError: if it can express none; says why not the first.
    """
    first = None
    for option in options:
        cluster = described.cluster_of(
            option, given.cluster, machines, given.synchronization, given.values["to"].value in APART
        )
        plain, words = described.without_strategy(cluster)
        to = str(given.values["to"].value)
        lost = [f"{to} has no words for the strategy: give the program {words}"] if words else []
        if cluster.min_workers is not None:
            lost.append(f"{to} has no words for workers that join later: all {option.workers} begin")
        # It holds addresses only, and refuses nothing.
        for each, sentences in ((cluster, []), (plain, lost)) if to != "cluster_spec" else ((plain, lost),):
            try:
                return option, [*sentences, *notes(each, to)], outputs()[to](each)
            except ClusterError as error:
                first = first or error
    assert first is not None
    raise first


def _say(line: str) -> None:
    print(f"tfdist: {printable(line)}", file=sys.stderr, flush=True)
