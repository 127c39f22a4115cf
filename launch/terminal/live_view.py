"""Whether the terminal shows the live view, and why not."""

import importlib.util

from tfdist.launch.jobs.job import Job
from tfdist.launch.jobs.job_status import JobStatus
from tfdist.launch.terminal.output import Terminal

VIEWS = ("auto", "live", "lines")


class LiveView:
    """The live view of a job on a terminal, or nothing where there is none."""

    def __init__(self, job: Job, terminal: Terminal, mode: str) -> None:
        """Says why there is none, if the user asks for one. The mode "auto" shows it where it can be shown."""
        self._terminal = terminal
        self._view = None
        reason = "" if terminal.is_tty else "output is not a terminal that can draw"
        if not reason and importlib.util.find_spec("rich") is None:
            reason = "the package rich is missing: pip install rich"
        if reason and mode == "live":
            terminal.say(f"--view live: {reason}; the output is shown as lines")
        if not reason and mode != "lines":
            from tfdist.launch.terminal.job_view import JobView

            self._view = JobView(job, terminal.has_colors, lambda: terminal.unfinished)

    def show(self) -> None:
        """Shows it from now on."""
        if self._view is not None:
            self._terminal.show_panel(self._view.render)

    def hide(self) -> None:
        """Removes it from the terminal."""
        self._terminal.hide_panel()

    def update(self, status: JobStatus) -> None:
        """Takes the latest status."""
        if self._view is not None:
            self._view.status = status
