"""`TensorBoard`: runs TensorBoard beside a job (`--tensorboard`). It ends with the job, or with this process."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

END_SECONDS = 3.0

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
        """Starts it. `look` says its address.

        Args:
            folder: what it shows; may appear later.
            log_dir: existing folder for its own messages.
            say: shows a line to the user.
        """
        self._say = say
        self._log = log_dir / "tensorboard.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._is_said = False
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

    def close(self) -> None:
        """Ends it."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
