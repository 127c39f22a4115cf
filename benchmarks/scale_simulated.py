"""Simulates how fast up to 1,000 workers train, in one process, event by event.

    python benchmarks/scale_simulated.py --measured m.json --workers 8,64,1000 --link 10gbit
    python benchmarks/scale_simulated.py --measured m.json --measure trial --markdown benchmarks/scale_simulated.md

The simulator is that of the planner (tfdist/planner/simulated.py). What a step and an exchange cost comes from a measurement of
`tfdist plan --save m.json`. Here the time of a step is random, from a gamma distribution, and every worker is simulated.

Accuracy is not simulated here: benchmarks/quality_simulated.py does that, for up to about 16 groups.

--measure MODEL measures a program of planner_program.py on this machine, also with 2, 4 and 8 workers.
"""

import os
import time
from dataclasses import replace
from pathlib import Path

import figures
import scale_measured
from absl import app, flags

from tfdist.launch.plan import configurations
from tfdist.launch.plan.configurations import ALL
from tfdist.planner import link, measurement
from tfdist.planner.costs import Costs
from tfdist.planner.option import Hardware, Option
from tfdist.planner.predict import predict, simulate
from tfdist.planner.simulated import Network
from tfdist.planner.ways import way_of

FLAGS = flags.FLAGS


def real(measured: measurement.Measurement) -> str:
    """Returns the table of real runs on one machine, of those that the costs do not come from."""
    costs, cores = Costs(replace(measured, runs=measured.runs[: len(ALL)])), os.cpu_count() or 1

    def simulated(run: measurement.Run, slower: float) -> float:
        option = Option(run.strategy, run.workers, run.ps, period=run.period, delay=configurations.DELAY if run.ps else None)
        way = way_of(costs, option, is_one_machine=True)
        times = {name: getattr(way, name) * slower for name in ("compute", "worker", "server", "chief")}
        return simulate(replace(way, **times), Network(1e12, 0.0, cores)).speed

    return scale_measured.table(measured.runs[len(ALL) :], simulated, cores)


def scaled(measured: measurement.Measurement) -> str:
    """Returns the table of simulated clusters."""
    costs, rate = Costs(measured), link.bytes_per_second(FLAGS.link) * link.GOODPUT
    network = Network(rate, FLAGS.delay_ms / 1000, FLAGS.cores)
    lines = [
        "| strategy | workers | ps | simulated, examples/s | by the planner's formula | busiest | busy |",
        "|---" * 7 + "|",
    ]
    for workers in map(int, FLAGS.workers):
        ps = max(1, workers // 4)
        base = {"workers": workers, "ps": ps, "chief_apart": True}
        options = [Option("multi_worker_mirrored", workers), Option("parameter_server", **base)]
        options += [Option("hogwild", **base, period=64), Option("hogwild", **base, period=64, delay=1)]
        for option in options:
            # Workers read their own data: a chief could not send that of so many.
            compute = costs.wall(costs.compute, FLAGS.cores)
            way = way_of(costs, option, spread=FLAGS.spread, batches=0.0, compute=compute)
            if option.strategy == "multi_worker_mirrored":
                way = replace(way, compute=costs.wall(costs.all_reduce(workers)[0], FLAGS.cores))
            formula = predict(Costs(replace(measured, batch_bytes=0)), Hardware(rate, FLAGS.cores), option).examples_per_second
            ways = {option.strategy: way}
            if option.strategy == "parameter_server":
                ways["parameter_server, synchronous"] = replace(way, is_synchronous=True)
            if option.strategy == "hogwild":
                title = f"hogwild {option.period}, delay {option.delay or 'measured'}, {option.compression or 'float32'}"
                ways = {f"{title}, nesterov": way, f"{title}, average": replace(way, rounds=False)}
            for name, each in ways.items():
                found = simulate(each, network, most=workers)
                planned = f"{formula:.0f}" if each is way else "-"
                cells = [name, workers, option.ps or "", f"{found.speed:.0f}", planned, found.busiest, f"{found.busy:.0%}"]
                lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def define_flags() -> None:
    """Defines the flags of the command. Tests import this file beside other commands, whose flags have the same names."""
    flags.DEFINE_string("measured", None, "Measurement of tfdist plan --save, or that --measure writes.", required=True)
    flags.DEFINE_string("measure", None, "Model of planner_program.py to measure first.")
    flags.DEFINE_list("workers", ["8", "64", "256", "1000"], "Numbers of workers.")
    flags.DEFINE_string("link", "10gbit", "Rate of the link of each machine.")
    flags.DEFINE_float("delay_ms", 0.05, "Delay of a message on the way, milliseconds.")
    flags.DEFINE_integer("cores", 4, "Cores of each machine.")
    flags.DEFINE_float("spread", 0.1, "Standard deviation of the time of a step, in units of its mean.")
    flags.DEFINE_string("markdown", None, "File whose part after `## Figures` is replaced by the tables.")


def main(_: list[str]) -> None:
    figures.check(FLAGS.markdown)
    if FLAGS.measure:
        measurement.save(scale_measured.measure(FLAGS.measure), FLAGS.measured)
    measured = measurement.read(FLAGS.measured)
    begin = time.monotonic()
    size = f"{measured.model_bytes / 1e6:.1f} MB of parameters, {measured.batch} examples per step"
    text = [f"`{Path(measured.program).name}`: {size}; load {os.getloadavg()[0]:.1f}.", real(measured)]
    text.append(f"Links of {FLAGS.link}, {FLAGS.delay_ms} ms, {FLAGS.cores} cores per machine, spread of steps {FLAGS.spread}:")
    text.append(scaled(measured))
    text.append(f"Simulated in {time.monotonic() - begin:.0f} s.")
    figures.put(FLAGS.markdown, "\n\n".join(part for part in text if part) + "\n")


if __name__ == "__main__":
    define_flags()
    app.run(main)
