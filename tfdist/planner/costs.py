"""What a step and a synchronization cost on the tasks, from the runs of a measurement. Times are seconds.

What was not measured comes from the constants of this file, and `Cost.assumed` says so.
"""

import functools
from dataclasses import dataclass

from tfdist.planner.measurement import Measurement, Run

PROCESSOR_PER_BYTE = 2e-9
"""Processor time of a task for each byte that it sends or receives and adds to parameters, where no run tells. One
synchronization of 7.45 MB in both directions costs about 30 ms (benchmarks/exchange.md)."""

PROCESSOR_PER_CALL = 1e-3
"""Processor time of a task for each call, where no run tells."""

CHIEF_PER_CALL = 2e-3
"""Processor time of the chief for each call of a worker group, where no run tells (benchmarks/chief.md)."""

CHIEF_PER_BYTE = 1e-9
"""Processor time of the chief for each byte of a batch that it sends: that part of its cost which a longer period does not
reduce. Serializing and sending are one copy each."""

HOP_SECONDS = 3e-4
"""Latency of a step of a ring: a round trip of 0.1 ms and a wake-up on either side."""

COMPRESSED = {None: 1.0, "float32": 1.0, "bf16": 0.5, "int8": 0.2539, "int4": 0.1289}
"""Bytes on the wire in units of those of float32. int8 and int4 also send a scale for each block of 256 values."""


@dataclass(frozen=True)
class Cost:
    """Processor seconds on each kind of task for what one worker does, and what is not measured.

    Attributes:
        worker: on the worker, without the computation of steps.
        server: on each ps.
        chief: on the chief.
        assumed: what comes from constants, in words; empty if all was measured.
    """

    worker: float
    server: float
    chief: float
    assumed: tuple[str, ...] = ()


class Costs:
    """The costs of a program that was measured."""

    def __init__(self, measurement: Measurement) -> None:
        self.measurement = measurement

    # The computation of a step.

    @functools.cached_property
    def compute(self) -> float:
        """Processor seconds of a step on a worker that is served: without Keras' loop, which the chief runs."""
        return min(self._hogwild[0].worker, self.measurement.single.worker) if self._hogwild else self.measurement.single.worker

    def wall(self, processor: float, cores: float) -> float:
        """Returns how long a computation of so many processor seconds takes on a machine with nothing else to do, on its cores
        or a part of one.

        A part of it is done by one core, and a part by all; the step of one process tells how large they are. What that waits
        for, such as files, belongs to it too.
        """
        if cores < 1:
            return self.wall(processor, 1) / cores
        single, measured = self.measurement.single.worker, self.measurement.cores
        ratio = max(self._wall / single, 1 / measured)
        if ratio >= 1 or measured == 1:
            return processor * max(ratio, 1.0)
        serial = (ratio * measured - 1) / (measured - 1)
        return processor * (serial + (1 - serial) / cores)

    @functools.cached_property
    def _wall(self) -> float:
        """How long a step of one process took, without the time for which its threads waited for cores that others had."""
        single = self.measurement.single
        wall, waited = single.seconds / single.steps, single.waited / single.steps
        if wall <= single.worker:  # Several threads: each took longer by the same factor.
            return wall * single.worker / (single.worker + waited)
        return wall - min(waited, wall - single.worker)

    def all_reduce(self, workers: int) -> tuple[float, float]:
        """Returns the processor seconds of a worker for its part of a step, and for the sum of the gradients.

        The measured ones beyond the computation are those of a ring of two, and grow with the bytes that a worker sends.
        """
        single, run = self.measurement.single.worker, self.measurement.run("multi_worker_mirrored")
        share = 2 * (workers - 1) / workers
        part = 1.0 if self.batch_grows else 1 / workers
        if run is None or run.workers < 2:
            return single * part, share * self.summed_bytes(workers) * PROCESSOR_PER_BYTE
        beyond = max(0.0, run.worker - single * (1.0 if self.batch_grows else 1 / run.workers))
        return single * part, beyond * share * run.workers / (2 * (run.workers - 1))

    def summed_bytes(self, workers: int) -> int:
        """Returns the size in bytes of what n workers add up in a ring: each of them sends 2 (n - 1) / n of it.

        A worker sends the whole gradient of dense variables. Of a table of an Embedding layer it sends the rows of its batch
        to n - 1 others. They are counted here so that the same formula holds.
        """
        measured, run = self.measurement, self.measurement.run("multi_worker_mirrored")
        if run is None or run.workers < 2 or not run.moved or not measured.table_bytes:
            return measured.model_bytes
        dense, others = measured.model_bytes - measured.table_bytes, run.workers - 1
        rows = max(0.0, run.moved / (2 * run.workers) - 2 * others / run.workers * dense) / others
        if not self.batch_grows:
            rows *= run.workers / workers
        return round(dense + rows * workers / 2)

    @property
    def batch_grows(self) -> bool:
        """Whether the program makes its batches larger for more workers that train together."""
        run = self.measurement.run("multi_worker_mirrored")
        return run is not None and run.batch > 1.5 * self.measurement.batch

    # Synchronizations.

    def served(self, ps: int, largest: float | None = None) -> Cost:
        """Returns the costs of a step of `parameter_server`.

        `largest` is the part of the parameters on the ps that holds the most; None if all hold equal parts.
        """
        part = 1 / ps if largest is None else largest
        one, two = (self.measurement.run("parameter_server", count) for count in (1, 2))
        size = 2 * self.measurement.model_bytes
        if one is None:
            worker, server = size * PROCESSOR_PER_BYTE + ps * PROCESSOR_PER_CALL, size * part * PROCESSOR_PER_BYTE
            return Cost(worker, server + PROCESSOR_PER_CALL, CHIEF_PER_CALL, ("parameter_server was not measured",))
        beyond = max(0.0, one.worker - self.compute)
        if two is None:
            call = min(PROCESSOR_PER_CALL, one.server)
            return Cost(beyond, call + (one.server - call) * part, one.chief, ("two ps were not measured",))
        # A task does something for each call and something for each byte: two points tell both.
        byte = min(one.server, max(0.0, 2 * (one.server - two.server)))
        more = ps - 1
        worker = beyond + more * max(0.0, two.worker - one.worker)
        return Cost(worker, one.server - byte + byte * part, one.chief + more * max(0.0, two.chief - one.chief))

    @functools.cached_property
    def table_part(self) -> float:
        """The part of the tables of Embedding layers that a step of `parameter_server` reads and updates; 1 if not known."""
        run, tables = self.measurement.run("parameter_server", 1), self.measurement.table_bytes
        if run is None or not run.moved or not tables:
            return 1.0
        return min(1.0, max(0.0, (run.moved / 2 - (self.measurement.model_bytes - tables)) / tables))

    def synchronized(self, period: int, ps: int, fragments: int) -> Cost:
        """Returns the costs of a period of `hogwild` without its steps: a synchronization of all parameters, and a call."""
        if self._hogwild is None:
            size, calls = 2 * self.measurement.model_bytes * PROCESSOR_PER_BYTE, fragments * PROCESSOR_PER_CALL
            chief = CHIEF_PER_CALL + period * self.measurement.batch_bytes * CHIEF_PER_BYTE
            return Cost(size + calls, size / ps + calls, chief, ("hogwild was not measured",))
        step, synchronization = self._hogwild
        one, served = self.served(1).server, self.served(ps).server
        share = served / one if one else 1 / ps  # Calls and bytes as under parameter_server.
        return Cost(synchronization.worker, synchronization.server * share, synchronization.chief + period * step.chief)

    @functools.cached_property
    def _hogwild(self) -> tuple[Cost, Cost] | None:
        """The costs of a step and those of a synchronization; None if hogwild was not measured.

        What a step costs in a run is c + o / period; runs with two periods tell both. With one, the step costs what it costs in
        one process.
        """
        runs = sorted((run for run in self.measurement.runs if run.strategy == "hogwild"), key=lambda run: run.period)
        if not runs:
            return None
        short, long = runs[0], runs[-1]
        server = short.server * short.period
        if short.period == long.period:
            single, batch = self.measurement.single.worker, self.measurement.batch_bytes * CHIEF_PER_BYTE
            synchronization = max(0.0, short.worker - single) * short.period
            return Cost(min(single, short.worker), 0.0, batch), Cost(
                synchronization, server, max(0.0, short.chief - batch) * short.period
            )
        worker_step, worker = _line(short, long, short.worker, long.worker)
        chief_step, chief = _line(short, long, short.chief, long.chief)
        return Cost(worker_step, 0.0, chief_step), Cost(worker, server, chief)


def _line(short: Run, long: Run, in_short: float, in_long: float) -> tuple[float, float]:
    """Returns c and o of c + o / period, neither below 0, given what a step costs with a short and with a long period."""
    synchronization = max(0.0, (in_short - in_long) / (1 / short.period - 1 / long.period))
    synchronization = min(synchronization, in_long * long.period)
    return in_long - synchronization / long.period, synchronization
