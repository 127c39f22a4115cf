"""Chooses the steps of a `fit` that count, and makes a `Run` of them."""

import itertools
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfdist.launch.plan.configurations import Configuration
from tfdist.launch.plan.processor_time import ProcessorTime
from tfdist.planner.measurement import Run, Variable

SUFFIX = ".measured"
"""The file is beside the report, with this at the end of its name (strategies/runtime/measured_fit.py)."""

WARM_SECONDS = 1.5
"""Steps within this time after the first ones do not count: functions are traced, and caches and pipelines fill."""

PAUSE_SECONDS, PAUSE_TIMES = 0.5, 4.0
"""A time without a report is a pause if it is longer than the first, and than this many times the usual."""

TRACED_SECONDS = 0.05
"""Functions that take longer to trace interrupt the steps: the chief traces them, then the worker optimizes them."""

TRACES_AGAIN_SECONDS = 12.0
"""A program that traces again and again has, within so many seconds, less than a third of the time without it."""

LEAST_REPORTS = 3
"""Reports that a window has at least, after its first one."""

Window = tuple[tuple[float, int], tuple[float, int]]
"""The first and the last report that count: a moment, and the steps that were done then."""


@dataclass(frozen=True)
class Fit:
    """What a `fit` has written.

    Attributes:
        batch: examples of a step; None if not known.
        batch_bytes: bytes of a batch that the chief sends; None if not known.
        variables: the trainable variables.
        steps: the reports, pairs of a moment and the steps that were done then.
        epoch: steps of an epoch; None if not known.
        traced: for each of `steps`, the seconds for which functions of worker groups had been traced by then. Empty for none.
    """

    batch: int | None
    batch_bytes: int | None
    variables: tuple[Variable, ...]
    steps: Sequence[tuple[float, int]]
    epoch: int | None = None
    traced: Sequence[float] = ()

    def window(self) -> Window | None:
        """Returns the first and the last report that count; None as long as there are too few.

        They are those of the longest time without a pause, in which a function was traced, as at the end of an epoch. With many
        steps between two reports, tracing makes no pause that is long beside the others. A program that traces functions again
        and again is measured with that.
        """
        without, with_all = self._longest(True), self._longest(False)
        if with_all is not None and _seconds(with_all) >= max(TRACES_AGAIN_SECONDS, 3 * _seconds(without)):
            return with_all
        return without

    def _longest(self, without_tracing: bool) -> Window | None:
        if len(self.steps) < 2:
            return None
        warm = self.steps[0][0] + WARM_SECONDS
        begin = next((n for n, (at, _) in enumerate(self.steps) if n and at >= warm), len(self.steps))
        counted, traced = self.steps[begin:], self.traced[begin:] or [0.0] * (len(self.steps) - begin)
        times = [end - begin for (begin, _), (end, _) in itertools.pairwise(counted)]
        pause = max(PAUSE_SECONDS, PAUSE_TIMES * statistics.median(times)) if times else PAUSE_SECONDS
        # The worker still has calls from before: it optimizes the function and runs it first up to two reports later.
        before = [traced[max(0, number - 3)] for number in range(len(traced))]
        is_traced = [without_tracing and now - then > TRACED_SECONDS for now, then in zip(traced, before, strict=True)]
        ends = [number for number, time in enumerate(times, 1) if time > pause or is_traced[number]]
        parts = [counted[begin:end] for begin, end in itertools.pairwise([0, *ends, len(counted)])]
        longest = max(parts, key=lambda part: part[-1][0] - part[0][0] if part else 0.0)
        return (longest[0], longest[-1]) if len(longest) > LEAST_REPORTS else None

    def is_enough(self, seconds: float) -> bool:
        """Returns whether the window is as long as that."""
        return _seconds(self.window()) >= seconds


def _seconds(window: Window | None) -> float:
    return 0.0 if window is None else window[1][0] - window[0][0]


def read(report: Path) -> Fit | None:
    """Returns what `fit` has written beside its report; None if it has not."""
    try:
        values: dict[str, Any] = json.loads(Path(f"{report}{SUFFIX}").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    variables = tuple(Variable(v["name"], tuple(v["shape"]), v["size"], v["is_table"]) for v in values["variables"])
    steps, traced = [(at, steps) for at, steps, _ in values["steps"]], [traced for _, _, traced in values["steps"]]
    return Fit(values["batch"], values["batch_bytes"], variables, steps, values.get("epoch"), traced)


def run_of(configuration: Configuration, fit: Fit, processor: ProcessorTime) -> Run | None:
    """Returns the costs of a step; None if too few were made."""
    window = fit.window()
    if window is None or fit.batch is None:
        return None
    (begin, before), (end, after) = window
    steps = after - before
    if steps < 1 or end <= begin:
        return None
    workers = [f"worker:{index}" for index in range(configuration.workers)]
    servers = [f"ps:{index}" for index in range(configuration.ps)]

    def mean(names: list[str], place: int) -> float:
        return sum(processor.between(name, begin, end)[place] for name in names) / len(names) if names else 0.0

    # Under parameter_server and hogwild a step is one of a single worker; the probe has one.
    return Run(
        strategy=configuration.strategy,
        workers=configuration.workers,
        ps=configuration.ps,
        steps=steps,
        seconds=end - begin,
        batch=fit.batch,
        worker=mean(workers, 0) / steps,
        server=mean(servers, 0) / steps,
        chief=mean(["chief:0"], 0) / steps if configuration.ps else 0.0,
        period=configuration.period,
        waited=mean(workers, 1),
        moved=sum(processor.moved(name, begin, end) for name in servers or workers) / steps,
    )
