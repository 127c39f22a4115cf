"""Real runs of 2, 4 and 8 workers on this machine, with which scale_simulated.py compares what it simulates."""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tfdist.cluster import Cluster, Task
from tfdist.launch.jobs.job import Program
from tfdist.launch.plan import configurations, probe
from tfdist.launch.plan.configurations import ALL, Configuration
from tfdist.planner.measurement import Measurement, Run
from tfdist.synchronization import Synchronization

REAL = [
    *(Configuration("multi_worker_mirrored", workers) for workers in (4, 8)),
    *(Configuration("parameter_server", workers, 1) for workers in (2, 4, 8)),
    *(Configuration("hogwild", workers, 1, 16) for workers in (2, 4, 8)),
]
PROGRAM = str(Path(__file__).with_name("planner_program.py"))
MEASURE_SECONDS, PRIORITY = 240.0, -12


def measure(model: str) -> Measurement:
    """Measures a program of planner_program.py in the configurations of the planner's probe, then in those of `REAL`."""
    count = max(each.workers for each in REAL)
    tasks = [Task("chief", 0), *(Task("worker", number) for number in range(count)), Task("ps", 0), Task("ps", 1)]
    probe.everyone = lambda: Cluster(tuple(tasks), source=configurations.SOURCE)
    found = probe.Probe(Program(script=PROGRAM, args=[model]), [*ALL, *REAL], 1, Synchronization(), MEASURE_SECONDS, print)
    threading.Thread(target=_prefer, args=[found._pids], daemon=True).start()
    return found.run()


def _prefer(pids: dict[str, int]) -> None:
    """Gives the sessions of the tasks priority over other programs of the machine, which here stand for nothing."""
    while True:
        for pid in list(pids.values()):
            with contextlib.suppress(OSError):
                Path(f"/proc/{pid}/autogroup").write_text(str(PRIORITY))
        time.sleep(0.3)


def table(runs: Sequence[Run], simulated: Callable[[Run, float], float], cores: int) -> str:
    """Returns the table of real runs; empty without any.

    Args:
        runs: the runs.
        simulated: returns examples per second of a run on a machine whose cores are so many times slower.
        cores: cores of this machine.
    """
    lines = ["| on this machine | cores they got | simulated, examples/s | measured | error |", "|---" * 5 + "|"]
    errors = []
    for run in runs:
        got = (run.worker * run.workers + run.server * run.ps + run.chief) * run.steps / run.seconds
        speed, real_speed = simulated(run, cores / got), run.batch * run.steps / run.seconds
        errors.append(speed / real_speed - 1)
        name = Configuration(run.strategy, run.workers, run.ps, run.period).title
        lines.append(f"| {name} | {got:.2f} of {cores} | {speed:.0f} | {real_speed:.0f} | {errors[-1]:+.0%} |")
    sizes = [abs(error) for error in errors]
    return "\n".join([*lines, "", f"Error: mean {sum(sizes) / len(sizes):.0%}, worst {max(sizes):.0%}."]) if errors else ""
