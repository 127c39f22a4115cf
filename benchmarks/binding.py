"""What `tfdist status` says that binds a job, on shaped links, and what its proposal really gives.

    sudo python benchmarks/binding.py --markdown benchmarks/binding.md
    sudo python benchmarks/binding.py --cases ps

Each job trains on nodes with one core and a link each (networks.py). On every node the probe of the launcher looks at its tasks
as the agent of a host does. Then the job runs again with what the sentence proposes, and both speeds are compared. "Slowed"
workers get a part of a core, so that more of them fit on the cores of this machine.
"""

import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import figures
import networks
import planner
from absl import app, flags

from tfdist.launch.plan import window
from tfdist.planner.binding import explain
from tfdist.planner.option import Option
from tfdist.planner.running import Binding, Running
from tfdist.planner.use import Use

FLAGS = flags.FLAGS
flags.DEFINE_list("cases", [], "Only the cases whose name contains one of these.")

REPORTER = """
import dataclasses, json, os, pathlib, sys, time
from tfdist import quota
from tfdist.launch.backends.local import use_probe

use_probe._machine = lambda: (0.0, 0.0)  # Nodes share the cores of this machine, whose use says nothing about a node.
# On a node /sys is another one, without control groups (man ip-netns).
use_probe.quota_of = lambda pid: quota.quota_of(pid, pathlib.Path(f"/proc/{os.getppid()}/root"))
probe, pids = use_probe.UseProbe(), json.loads(sys.argv[1])
while True:
    for event in probe.events(pids):
        print(json.dumps([event.task, dataclasses.asdict(event.use)]), flush=True)
    time.sleep(0.02)
"""
WATCHED_SECONDS = 14.0


@dataclass(frozen=True)
class Case:
    """A job.

    Attributes:
        name: its name in the table.
        model: of planner_program.py.
        option: how it trains.
        rate: of the links; None for no limit.
        slowed: part of a core of each worker, the first ones; others have a whole one.
    """

    name: str
    model: str
    option: Option
    rate: str | None
    slowed: tuple[float, ...] = ()


CASES = [
    Case("ps link", "trial", Option("parameter_server", 2, 1), "60mbit"),
    Case("worker link", "trial", Option("parameter_server", 1, 2), "60mbit"),
    Case("worker processor", "convolutions", Option("parameter_server", 2, 1), None, (0.15,) * 8),
    Case("hogwild worker processor", "convolutions", Option("hogwild", 2, 1, period=16), None, (0.15,) * 8),
    Case("hogwild slow link", "trial", Option("hogwild", 2, 1, period=4), "60mbit"),
    Case("all-reduce link", "trial", Option("multi_worker_mirrored", 2), "60mbit"),
    Case("all-reduce slow worker", "convolutions", Option("multi_worker_mirrored", 2), None, (1.0, 0.3)),
]


def ran(case: Case, port: int) -> tuple[float, Binding]:
    """Returns examples per second of a job, and what binds it."""
    with networks.Network(case.option.machines) as network, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        processes = planner.started(network, case.option, case.model, folder, port)
        cluster, nodes = planner.cluster_of(case.option, network, port)
        tasks = dict(zip((task.name for task in cluster.tasks), processes, strict=True))
        try:
            planner.wait_for(folder, processes, 0.0, planner.SETTLE_SECONDS)
            for index, share in enumerate(case.slowed[: case.option.workers]):
                network.slow(tasks[f"worker:{index}"], share)
            network.shape(case.rate)
            reporters = []
            for node in sorted(set(nodes.values())):
                pids = json.dumps({each: tasks[each].pid for each in tasks if nodes[each] == node})
                reporters.append(network.start(node, [sys.executable, "-c", REPORTER, pids], folder / f"uses{node}"))
            time.sleep(2 * planner.SETTLE_SECONDS)
            speed = planner.wait_for(folder, processes, time.monotonic(), WATCHED_SECONDS)
            uses = {}
            for node in sorted(set(nodes.values())):
                uses |= dict(json.loads(line) for line in (folder / f"uses{node}").read_text().splitlines() if line[0] == "[")
            fit = window.read(folder / "report.json")
            known = {each: Use.from_json(use) for each, use in uses.items()}
            hosts = {each: f"node {node}" for each, node in nodes.items()}
            job = Running(case.option.strategy, known, list(nodes), hosts, fit.variables if fit else ())
            return speed, explain(job)
        finally:
            network.end(list(network._processes))


def proposed(case: Case, found: Binding) -> Case | None:
    """Returns the job with what the sentence proposes; None if it proposes nothing."""
    words = (found.better or "").split()
    if not words:
        return None
    if words[-1] == "ps":
        return replace(case, option=replace(case.option, ps=int(words[0])))
    if "workers" in words:
        return replace(case, option=replace(case.option, workers=int(words[0])))
    if words[-1] == "quota":
        return replace(case, slowed=tuple(min(1.0, int(words[0]) * share) for share in case.slowed))
    if words[0] == "links":
        return replace(case, rate=f"{2 * int(str(case.rate).removesuffix('mbit'))}mbit")
    return replace(case, slowed=())


def main(_: list[str]) -> None:
    figures.check(FLAGS.markdown)
    if sentence := networks.missing():
        raise SystemExit(f"nothing was measured: {sentence}")
    lines = [
        "| job | links | speed, examples/s | what binds | proposed | promised | really | load |",
        "|---" * 8 + "|",
    ]
    for number, case in enumerate(CASES):
        if FLAGS.cases and not any(part in case.name for part in FLAGS.cases):
            continue
        try:
            speed, found = ran(case, 3600 + 40 * number)
            better = proposed(case, found)
            after = None if better is None else ran(better, 3620 + 40 * number)[0]
        except RuntimeError as error:
            planner.tell(f"{case.name}: {error}")
            continue
        gain = "-" if after is None else f"{after / speed:.1f} times"
        times = "-" if found.times is None else f"{found.times:.1f} times"
        binds = "nothing" if found.resource is None else f"{found.resource}, {found.utilization:.0%}"
        option = case.option
        what = f"{case.name}: {option.strategy}, {option.workers}+{option.ps}, `{case.model}`"
        cells = [what, case.rate or "no limit", f"{speed:.0f}", binds, found.better or "-", times, gain]
        lines.append("| " + " | ".join([*cells, f"{os.getloadavg()[0]:.1f}"]) + " |")
        planner.tell(lines[-1] + f" ({found.text})")
    figures.put(FLAGS.markdown, "\n".join(lines) + "\n")


if __name__ == "__main__":
    app.run(main)
