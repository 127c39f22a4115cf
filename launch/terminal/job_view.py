"""`JobView`: the lines of the live view about a job, drawn with rich (https://github.com/Textualize/rich)."""

import io
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tfdist.launch.jobs.job import Job
from tfdist.launch.jobs.job_status import JobStatus, State, TaskStatus
from tfdist.launch.jobs.progress import Progress, duration, size
from tfdist.messages import printable

_STYLES = {
    State.QUEUED: "yellow",
    State.STARTING: "yellow",
    State.RUNNING: "green",
    State.SUCCEEDED: "dim",
    State.FAILED: "bold red",
    State.CANCELLED: "red",
    State.LOST: "bold red",
}
_ROLES = {"chief": "cyan", "worker": "green", "ps": "yellow", "evaluator": "magenta"}
_FEWEST_ROWS = 2


class JobView:
    """The view of a job.

    Attributes:
        status: the latest status; None before the first.
    """

    def __init__(
        self, job: Job, colors: bool, unfinished: Callable[[], str] = lambda: "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begins to count the time.

        `unfinished` returns the unfinished line of a task, such as a progress bar of its own; or nothing.
        """
        self.status: JobStatus | None = None
        self._unfinished = unfinished
        # Under multi_worker_mirrored every training task does the steps that one reports.
        self._stepping = {task.name for task in job.training}
        self._reporter = job.reporter.name
        self._title = f"{job.choice.strategy}, {job.cluster.describe()}"
        self._colors = colors
        self._clock = clock
        self._begin = clock()

    def render(self, columns: int, rows: int) -> list[str]:
        """Returns at most `rows` lines (3 or more) of at most `columns` cells."""
        status = self.status
        if status is None:
            return [self._line(self._head("starting"), columns)]
        foot: list[RenderableType] = []
        if status.progress is not None:
            foot.append(self._bar(status.progress, columns))
            if status.progress.exchange:
                foot.append(Text(_exchange(status.progress)))
        elif unfinished := self._unfinished():
            foot.append(Text(printable(unfinished)))
        if status.binding is not None:
            foot.append(Text(printable(_binds(status.binding))))
        foot = foot[: max(1, rows - 1 - _FEWEST_ROWS)]
        lines = [self._line(self._head(status.state), columns)]
        lines += self._tasks(status, columns, rows - 1 - len(foot))
        return [*lines, *(self._line(each, columns) for each in foot)]

    def _head(self, state: str) -> Text:
        style = _STYLES.get(State(state), "")
        return Text.assemble(("── ", "dim"), (state, style), f"  {duration(self._clock() - self._begin)}  {self._title}")

    def _tasks(self, status: JobStatus, columns: int, rows: int) -> list[str]:
        """Returns the table of the tasks; those that do not fit are counted, and those that run are left out first."""
        tasks = list(status.tasks)
        left_out: list[TaskStatus] = []
        if len(tasks) > rows - 1:
            by_interest = sorted(tasks, key=lambda task: (_runs_well(task), task.name != self._reporter))
            kept = {task.name for task in by_interest[: max(0, rows - 2)]}
            left_out = [task for task in tasks if task.name not in kept]
            tasks = [task for task in tasks if task.name in kept]
        lines = self._table(tasks, status.progress, columns) if tasks else []
        if left_out:
            counts = Counter(str(task.state) for task in left_out)
            text = ", ".join(f"{count} {state}" for state, count in counts.items())
            lines.append(self._line(Text(f"and {len(left_out)} more: {text}" if tasks else text, "dim"), columns))
        return lines

    def _table(self, tasks: list[TaskStatus], progress: Progress | None, columns: int) -> list[str]:
        has_hosts = any(task.where not in ("", "localhost") for task in tasks)
        table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="dim")
        names = {"task": 0, "state": 0, "step": 30, "examples/s": 60, "memory": 40, "host": 80 if has_hosts else 10_000, "": 50}
        shown = [name for name, fewest in names.items() if columns >= fewest]
        for name in shown:
            justify = "right" if name in ("step", "examples/s", "memory") else "left"
            table.add_column(name, no_wrap=True, overflow="ellipsis", justify=justify)  # type: ignore[arg-type]
        for task in tasks:
            cells = self._cells(task, progress)
            table.add_row(*(cells[name] for name in shown))
        return self._lines(table, columns)

    def _cells(self, task: TaskStatus, progress: Progress | None) -> dict[str, Text]:
        is_stepping = progress is not None and task.name in self._stepping and task.state == State.RUNNING
        speed = progress.examples_per_second if progress is not None and task.name == self._reporter else None
        note = task.note if task.note.startswith("stopped") else ""
        restarts = f"{task.restarts} restart{'s' * (task.restarts > 1)}" if task.restarts else ""
        code = f"exit code {task.exit_code}" if task.exit_code else ""
        return {
            "task": Text(task.name, _ROLES.get(task.name.partition(":")[0], "")),
            "state": Text(str(task.state), _STYLES[task.state]),
            "step": Text(progress.step_text if progress is not None and is_stepping else ""),
            "examples/s": Text(f"{speed:,.0f}" if speed else ""),
            "memory": Text(size(task.memory) if task.memory is not None else ""),
            "host": Text(printable(task.where)),
            "": Text(printable(", ".join(part for part in (code, note, restarts) if part)), "red"),
        }

    def _bar(self, progress: Progress, columns: int) -> RenderableType:
        metrics = [f"{name} {value:.4f}" for name, value in progress.metrics.items() if isinstance(value, int | float)]
        text = Text(printable(", ".join([progress.describe(), *metrics])))
        if progress.fraction is None:
            return text
        width = min(30, max(8, columns // 4))
        bar = Table.grid(padding=(0, 1, 0, 0))
        bar.add_column(width=width)
        bar.add_column(no_wrap=True, overflow="ellipsis")
        bar.add_row(ProgressBar(total=1.0, completed=progress.fraction, width=width), text)
        return bar

    def _line(self, content: RenderableType, columns: int) -> str:
        return self._lines(content, columns)[0]

    def _lines(self, content: RenderableType, columns: int) -> list[str]:
        """Returns the lines of `content`; without colors padded or cut to fit."""
        console = Console(
            file=io.StringIO(),
            width=columns,
            height=100,
            force_terminal=True,
            color_system="standard" if self._colors else None,
            no_color=not self._colors,
            legacy_windows=False,
            highlight=False,
            markup=False,
            emoji=False,
            _environ={},
        )
        with console.capture() as capture:
            console.print(content, no_wrap=True, overflow="ellipsis", crop=True)
        lines = capture.get().splitlines() or [""]
        return lines if self._colors else [_cut(line, columns) for line in lines]


def _runs_well(task: TaskStatus) -> bool:
    return task.state == State.RUNNING and not task.note.startswith("stopped")


def _cut(line: str, columns: int) -> str:
    line = line.rstrip()
    return line if cell_len(line) <= columns else set_cell_size(line, columns)


def _binds(binding: Mapping[str, Any]) -> str:
    """Returns what binds, shorter than its text, with which it would not fit."""
    if binding["resource"] is None:
        return f"binds: {binding['text']}"
    times = f"; {binding['better']} would give {binding['times']:.1f} times the speed" if binding["better"] else ""
    return f"binds: {binding['resource']}, busy for {binding['utilization']:.0%}{times}"


def _exchange(progress: Progress) -> str:
    values = progress.exchange or {}
    text = f"synchronization every {values.get('period')} updates, delay {values.get('delay')}"
    speed = values.get("bytes_per_second")
    if isinstance(speed, int | float) and math.isfinite(speed):
        text += f": {size(speed)}/s"
    return text + (f" as {values['compression']}" if values.get("compression") else "")
