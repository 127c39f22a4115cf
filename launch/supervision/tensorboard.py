"""`TensorBoard`: runs TensorBoard beside a job (`--tensorboard`), and writes what binds. It ends with the job."""

import contextlib
import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfdist.launch.jobs.job_status import JobStatus

END_SECONDS = 3.0

WRITE_SECONDS = 5.0
"""How often speed and binding resource are written."""

RUN = "tfdist"
"""The run, a folder inside the folder that is shown, with what the launcher writes."""

_PROGRAM = """
import sys
from tfdist.launch.backends.local.descendants import die_with_parent
die_with_parent()
from tensorboard.main import run_main
sys.argv[0] = "tensorboard"
run_main()
"""
_URL = re.compile(r" at (https?://\S+)")


class TensorBoard:
    """TensorBoard, if it is installed."""

    def __init__(self, folder: str, log_dir: Path, say: Callable[[str], None]) -> None:
        """Starts it. `look` says its address. `folder`, which it shows, may appear later. Its messages go into `log_dir`."""
        self._say = say
        self._log = log_dir / "tensorboard.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._is_said = False
        self._folder = os.path.join(os.path.abspath(folder), RUN)
        self._events: Any = None
        self._written_at = 0.0
        self._resource: str | None = None
        if importlib.util.find_spec("tensorboard") is None:
            say("--tensorboard: TensorBoard is not installed: pip install tensorboard")
            return
        try:
            with open(self._log, "wb") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _PROGRAM, "--logdir", os.path.abspath(folder)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            say(f"--tensorboard: it cannot be started: {error}")

    def look(self) -> None:
        """Says the address as soon as there is one, or that TensorBoard has ended."""
        if self._process is None or self._is_said:
            return
        try:
            text = self._log.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return
        if match := _URL.search(text):
            self._is_said = True
            self._say(f"TensorBoard is at {match[1]} until the job ends")
        elif self._process.poll() is not None:
            self._is_said = True
            last = [line for line in text.splitlines() if line.strip()][-1:] or [f"see {self._log}"]
            self._say(f"--tensorboard: TensorBoard has ended: {last[0]}")

    def note(self, status: JobStatus) -> None:
        """Writes how fast the job trains, and how busy the resource is that binds, as scalars by batches of `fit`.

        The name of the resource is a text, written when it changes. Figures that are not known are left out.
        """
        progress, binding, now = status.progress, status.binding, time.monotonic()
        if self._process is None or progress is None or not progress.batches or now - self._written_at < WRITE_SECONDS:
            return
        scalars = {"examples_per_second": progress.examples_per_second, "steps_per_second": progress.steps_per_second}
        if binding is not None and binding["resource"] is not None:
            scalars["binding_utilization"] = binding["utilization"]
        scalars |= {f"processor/{task.name}": task.use.running for task in status.tasks if task.use is not None}
        scalars |= {f"link/{task.name}": task.use.sending for task in status.tasks if task.use is not None}
        self._written_at = now
        texts = {}
        if binding is not None and (binding["resource"] or "none") != self._resource:
            self._resource = binding["resource"] or "none"
            texts = {f"{RUN}/binds": str(binding["text"])}
        try:
            if self._events is None:
                from tfdist.launch.supervision.tensorboard_events import EventFile

                self._events = EventFile(self._folder)
            known = {f"{RUN}/{name}": value for name, value in scalars.items() if value is not None}
            self._events.add(known, texts, progress.batches)
        except (OSError, ImportError, AttributeError) as error:  # As of a full disk, or of another TensorBoard.
            self._say(f"--tensorboard: what binds cannot be written: {error}")
            self._written_at = float("inf")

    def close(self) -> None:
        """Ends it."""
        if self._process is None:
            return
        if self._events is not None:
            with contextlib.suppress(OSError):
                self._events.close()
        self._process.terminate()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
