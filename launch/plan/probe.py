"""Runs the user's unchanged program in small configurations on this machine, for at most a minute, and measures them.

One fork server imports TensorFlow for all of them. When the probe ends, for whatever reason, none of its processes is left: the
fork server ends them.
"""

import json
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from tfdist.choice import choose
from tfdist.cluster import Cluster
from tfdist.devices import threads
from tfdist.launch.backends.interface import TaskRunner
from tfdist.launch.backends.local import backend as local
from tfdist.launch.errors import UsageError
from tfdist.launch.jobs.ending_signals import ending_signals
from tfdist.launch.jobs.events import Event, Exited, Lost, Output, Ready, Started
from tfdist.launch.jobs.job import Job, JobFiles, Program
from tfdist.launch.plan import window
from tfdist.launch.plan.configurations import Configuration, everyone
from tfdist.launch.plan.processor_time import ProcessorTime
from tfdist.launch.terminal.output import last_lines
from tfdist.launch.terminal.terminal_text import shown
from tfdist.planner.measurement import Measurement, Run
from tfdist.process_cluster import MEASURED
from tfdist.strategies.checkpoint.environment import FOLDER as BACKUP_FOLDER
from tfdist.strategies.evaluator.folder import VARIABLE as EVALUATION_FOLDER
from tfdist.synchronization import Synchronization

NOT_MEASURED = (BACKUP_FOLDER, EVALUATION_FOLDER)
"""Variables of this process that would make the tasks continue and replace the files of a training of the user's."""

PROBE_SECONDS = 60.0
MEASURED_SECONDS = 4.0
"""How long the steps of a configuration are measured if there is time."""

LEAST_SECONDS = 1.5
"""How long at least, where time is short."""

RESERVED_SECONDS = 2.0
"""Kept for the end of the processes."""

TICK_SECONDS = 0.1


class Probe:
    """Measures one program for `seconds`, in `configurations`: one process, then the most important first."""

    def __init__(
        self,
        program: Program,
        configurations: Sequence[Configuration],
        cores: int,
        synchronization: Synchronization,
        seconds: float = PROBE_SECONDS,
        say: Callable[[str], None] = lambda line: None,
        environment: dict[str, str] | None = None,
    ) -> None:
        self._program = program
        self._configurations = list(configurations)
        self._cores = cores
        self._synchronization = synchronization
        self._deadline = time.monotonic() + seconds - RESERVED_SECONDS
        self._seconds = seconds
        self._say = say
        self._environment = environment or {}
        self._pids: dict[str, int] = {}
        self._ended: dict[str, Exited] = {}  # Those of the tasks that the probe has not ended.
        self._started_in = 5.0  # How long the last configuration took until its steps counted.

    def run(self) -> Measurement:
        """Measures. No process is left when it returns or raises.

        Raises:
            UsageError: if the program fails or makes too few steps in one process, with the last lines that it has printed.
        """
        cluster = everyone()
        environment = self._environment | dict.fromkeys(NOT_MEASURED, "")
        job = Job(cluster, choose(cluster), self._program, environment=environment)
        with tempfile.TemporaryDirectory(prefix="tfdist-plan-") as name, _ends_on_signals():
            folder = Path(name)
            runner: TaskRunner = local.start(local.plan(job), JobFiles(folder))
            try:
                return self._measure(runner, folder)
            finally:
                runner.close()

    def _measure(self, runner: TaskRunner, folder: Path) -> Measurement:
        cluster = self._ready(runner)
        runs: list[Run] = []
        first: window.Fit | None = None
        for number, configuration in enumerate(self._configurations):
            left = self._deadline - time.monotonic()
            share = left / (len(self._configurations) - number)
            seconds = min(MEASURED_SECONDS, max(LEAST_SECONDS, share - self._started_in))
            if runs and left < self._started_in + LEAST_SECONDS:
                self._say(f"not measured, because {self._seconds:.0f} s are over: {configuration.title}")
                continue
            here = folder / str(number)
            here.mkdir()
            members = configuration.cluster(cluster, self._synchronization)
            fit, processor = self._one(runner, here, configuration, members, seconds)
            if first is None and fit is not None and not fit.variables:
                raise UsageError("nothing was measured: the model that the program fits has no variables that train")
            run = None if fit is None else window.run_of(configuration, fit, processor)
            if run is None and not runs:
                raise UsageError(f"nothing was measured: {self._too_few(here, configuration, fit)}")
            if run is None:
                self._say(f"not measured: {configuration.title}: {self._too_few(here, configuration, fit)}")
                continue
            first = first or fit
            runs.append(run)
            self._say(f"{configuration.title}: {run.batch * run.steps / run.seconds:.0f} examples/s")
        assert first is not None
        words = [self._program.script or f"-m {self._program.module}", *self._program.args]
        size, variables = first.batch_bytes or 0, first.variables
        return Measurement(" ".join(words), self._cores, runs[0].batch, size, variables, tuple(runs), epoch=first.epoch)

    def _ready(self, runner: TaskRunner) -> Cluster:
        while time.monotonic() < self._deadline:
            for event in runner.poll(TICK_SECONDS):
                if isinstance(event, Ready):
                    return event.cluster
                if isinstance(event, Lost):
                    raise UsageError(event.reason)
        raise UsageError(f"importing TensorFlow took more than {self._seconds:.0f} s (--seconds); try again with more")

    def _one(
        self, runner: TaskRunner, folder: Path, configuration: Configuration, cluster: Cluster, seconds: float
    ) -> tuple[window.Fit | None, ProcessorTime]:
        """Trains in one configuration until its steps were measured for `seconds`, then ends its tasks."""
        begin, report = time.monotonic(), folder / "report.json"
        limits = threads(self._cores, 1)
        self._pids.clear()
        self._ended.clear()
        for task in cluster.tasks:
            reports = task.name == configuration.reporter
            variables = {**limits, "TF_CONFIG": json.dumps(cluster.tf_config(task.job, task.index)), MEASURED: "1"}
            runner.start(task, variables | {"TFDIST_REPORT": ""}, str(report) if reports else None, False)
        running = {task.name for task in cluster.tasks}
        processor, fit, has_ended = ProcessorTime(), None, False
        try:
            while time.monotonic() < self._deadline and not has_ended:
                for event in runner.poll(TICK_SECONDS):
                    self._note(event, folder, running)
                    if isinstance(event, Exited):
                        has_ended = True
                        self._ended[event.task] = event
                fit = window.read(report)
                processor.look(time.monotonic(), self._pids)  # After the last step of the window.
                if fit is not None and fit.is_enough(seconds):
                    break
        finally:
            if fit is not None and (counted := fit.window()) is not None:
                self._started_in = counted[0][0] - begin
            self._end(runner, folder, running)
        return fit, processor

    def _end(self, runner: TaskRunner, folder: Path, running: set[str]) -> None:
        runner.signal(sorted(running), signal.SIGKILL)
        latest = time.monotonic() + RESERVED_SECONDS
        while running and time.monotonic() < latest:
            for event in runner.poll(TICK_SECONDS):
                self._note(event, folder, running)

    def _note(self, event: Event, folder: Path, running: set[str]) -> None:
        if isinstance(event, Lost):
            raise UsageError(event.reason)
        if isinstance(event, Started):
            self._pids[event.task] = event.pid
        elif isinstance(event, Exited):
            self._pids.pop(event.task, None)
            running.discard(event.task)
        elif isinstance(event, Output):
            with open(folder / f"{event.task}.log", "ab") as log:
                log.write(event.data)

    def _too_few(self, folder: Path, configuration: Configuration, fit: window.Fit | None) -> str:
        """Returns why there are too few steps. Shows the last lines of a program that has failed."""
        ended = self._ended.get(configuration.reporter)
        if fit is None and ended is not None:
            reason = f"has ended without a step of fit under tfdist.strategy(), which is what is measured ({ended.cause})"
        elif fit is None:
            reason = f"made no step of fit within {self._seconds:.0f} s; try more (--seconds), if it loads data for so long"
        elif fit.batch is None:
            reason = "gives fit data of unknown batch size; give it arrays, a batched tf.data.Dataset or a generator of batches"
        elif ended is not None:
            reason = f"has ended after too few steps of fit ({ended.cause})"
        else:
            reason = f"made too few steps of fit within {self._seconds:.0f} s; try more (--seconds)"
        lines = [shown(line, colors=False) for line in last_lines(folder / f"{configuration.reporter}.log")]
        if lines and ended is not None and ended.code:
            for line in ("the last lines of the program:", *(f"  {line}" for line in lines)):
                self._say(line)
            lines = []
        return f"the program {reason}" + (f"; its last line: {lines[-1].strip()}" if lines else "")


@contextmanager
def _ends_on_signals() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP end this process as Ctrl-C does: with its tasks."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in ending_signals() - {signal.SIGINT}}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
