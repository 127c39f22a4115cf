"""The output of the tasks: each task has its log file, and the terminal shows all, each line with the name of its task."""

import codecs
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, TextIO

from tfdist.launch.terminal.background_writer import BackgroundWriter
from tfdist.launch.terminal.live_panel import MOST_LINES, LivePanel
from tfdist.launch.terminal.terminal_text import draws, has_colors, shown

_COLORS = {"chief": "\x1b[36m", "worker": "\x1b[32m", "ps": "\x1b[33m", "evaluator": "\x1b[35m"}
_RESET, _CLEAR = "\x1b[0m", "\r\x1b[K"
_PROGRESS_SECONDS = 0.1

MAX_LINE = 1 << 16
"""Longest unfinished line, in characters. A longer one is shown in parts, each as a line."""

LAST_LINES = 20
"""Number of lines that `last_lines` returns."""

_LAST_BYTES = 1 << 16

# Lines that TensorFlow prints at every start on a machine without a GPU, whatever its log level. Only the files hold them.
_NOISE = re.compile(
    r"^WARNING: All log messages before absl::InitializeLog\(\)|"
    r"^[IWE]\d{4} .*(port\.cc|cudart_stub\.cc|cuda_platform\.cc|cuda_executor\.cc|cpu_feature_guard\.cc|cuda_diagnostics\.cc)"
)

# What TensorFlow says, on four lines, for each function that it passes on to a task that is gone. tfdist says once that it is.
_PASSED_ON = re.compile(r"^E\d{4} .* context\.cc:\d+\] Failed to register function remotely due to ")
_PASSED_ON_REST = re.compile(
    r"^Additional GRPC error information from remote target |^:UNKNOWN:|^This could happen if the remote "
)

# What a library says before it crashes the process, and the stack of C++ below it.
_CRASH = re.compile(r"^F\d{4} |^terminate called |^  what\(\): ")
_FRAME = re.compile(r"^    @ +0x[0-9a-f]+ |^Extension modules: ")


class Lines:
    """Splits the output of a task into finished lines and an unfinished rest, as a terminal would show them.

    A progress bar returns with `\\r` or `\\b` and overwrites itself: only its latest state counts. A character may be split
    between two reads, and the bytes need not be valid UTF-8.

    Attributes:
        rest: the unfinished rest.
        is_cut: whether the last line that `feed` has returned is a part of a long one, and goes on.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.rest = ""
        self.is_cut = False

    def feed(self, data: bytes, final: bool = False) -> list[str]:
        """Adds output and returns the lines that it finishes; with `final`, the unfinished line as well."""
        text = self.rest + self._decoder.decode(data, final).replace("\b", "").replace("\r\n", "\n")
        *finished, rest = text.split("\n")
        # Text before a lone "\r" is overwritten. A "\r" at the end may be the first half of "\r\n".
        pending = "\r" if rest.endswith("\r") and not final else ""
        self.rest = rest.removesuffix("\r").rpartition("\r")[2] + pending
        lines = [line.rstrip("\r").rpartition("\r")[2] for line in finished]
        is_long = len(self.rest) > MAX_LINE and not final
        if is_long or (final and (self.rest or (self.is_cut and not lines))):
            lines.append(self.rest)
            self.rest = ""
        self.is_cut = is_long or (self.is_cut and not lines)
        return lines


class Terminal:
    """The standard output of the launcher, which all tasks share.

    Attributes:
        is_tty: whether it is a terminal that can move its cursor.
        has_colors: whether to use colors.
        unfinished: while there is a panel, the latest unfinished line of a task.
    """

    def __init__(self, names: list[str], stream: TextIO | BackgroundWriter | None = None, verbose: bool = False) -> None:
        """Prepares the output.

        Args:
            names: the names of the tasks.
            stream: where to print; None for the standard output, without ever blocking.
            verbose: whether to show the lines that TensorFlow prints at every start.
        """
        if stream is None:
            sys.stdout.flush()
            stream = BackgroundWriter(sys.stdout.fileno(), sys.stdout.encoding)
        self._stream = stream
        self._width = max((len(name) for name in names), default=0)
        self._verbose = verbose
        self._after_passed_on: set[str] = set()  # The tasks whose last line was one of `_PASSED_ON`.
        self._progress_at = 0.0
        self._shown = ""  # The unfinished line at the cursor.
        self.is_tty = self._stream.isatty() and draws()
        self.has_colors = self.is_tty and has_colors()
        self._panel: LivePanel | None = None
        self.unfinished = ""

    def show_panel(self, render: Callable[[int, int], list[str]]) -> None:
        """Keeps a panel below the output until `hide_panel` or `close`; does nothing where this is no terminal.

        See `LivePanel`.
        """
        if self.is_tty and isinstance(self._stream, BackgroundWriter):
            panel = self._panel = LivePanel(self._stream, render)
            signal.signal(signal.SIGCONT, lambda *_: panel.resumed())

    def hide_panel(self) -> None:
        """Removes the panel, if there is one."""
        if self._panel is not None:
            signal.signal(signal.SIGCONT, signal.SIG_DFL)
            self._panel.close()
            self._panel = None

    def tick(self) -> None:
        """Draws the panel anew, if there is one and it is time. Call it several times a second."""
        if self._panel is not None:
            self._panel.tick()

    def line(self, task: str, text: str) -> None:
        """Prints a finished line of a task."""
        if self._verbose or not self._is_noise(task, text):
            self._write(self._prefix(task) + shown(text, self.has_colors))

    def lines(self, task: str, texts: list[str]) -> None:
        """Prints finished lines of a task; above a panel the latest of them."""
        if self._panel is not None and len(texts) > MOST_LINES:
            self._panel.leave_out(len(texts) - MOST_LINES)
            texts = texts[-MOST_LINES:]
        for text in texts:
            self.line(task, text)

    def progress(self, task: str, text: str) -> None:
        """Shows the unfinished line of a task, or nothing, until something else is printed; only on a real terminal."""
        if self._panel is not None:
            if text or self.unfinished.startswith(f"{task} | "):
                self.unfinished = f"{task} | {shown(text, False)}" if text else ""
            return
        now = time.monotonic()
        is_behind = isinstance(self._stream, BackgroundWriter) and not self._stream.is_idle
        if self.is_tty and text.strip() and now - self._progress_at > _PROGRESS_SECONDS and not is_behind:
            self._progress_at = now
            self._shown = self._prefix(task) + shown(text, self.has_colors)
            self._emit(_CLEAR + self._shown)

    def say(self, text: str) -> None:
        """Prints a line of the launcher."""
        self._write(f"tfdist: {text}", important=True)

    def wait_for_room(self, timeout: float) -> bool:
        """Waits at most `timeout` seconds for a slow reader; returns whether to print on."""
        if self._panel is not None or not isinstance(self._stream, BackgroundWriter):
            return True  # A panel leaves lines out.
        return self._stream.wait_for_room(timeout)

    def close(self) -> None:
        """Waits until everything is printed, unless the reader has stopped reading."""
        self.hide_panel()
        if isinstance(self._stream, BackgroundWriter):
            self._stream.close()

    def _is_noise(self, task: str, text: str) -> bool:
        """Returns whether a line, which follows the one of the last call for this task, is of no use on a terminal."""
        if _PASSED_ON.match(text) or (task in self._after_passed_on and _PASSED_ON_REST.match(text)):
            self._after_passed_on.add(task)
            return True
        self._after_passed_on.discard(task)
        return _NOISE.match(text) is not None

    def _prefix(self, task: str) -> str:
        name = f"{task:<{self._width}} | "
        return _COLORS.get(task.partition(":")[0], "") + name + _RESET if self.has_colors else name

    def _write(self, text: str, important: bool = False) -> None:
        if self._panel is not None:
            self._panel.add(text, important)
            return
        self._emit((_CLEAR if self._shown else "") + text + "\n", important)
        self._shown = ""

    def _emit(self, text: str, important: bool = False) -> None:
        if isinstance(self._stream, BackgroundWriter):
            self._stream.write(text, important)
        else:
            self._stream.write(text)


class TaskOutput:
    """The output of one task: its lines on the terminal, and its log file."""

    def __init__(self, task: str, path: Path, terminal: Terminal, append: bool = False) -> None:
        """Opens the file.

        Args:
            task: `job:index`.
            path: file for everything that the task prints.
            terminal: shows the lines.
            append: whether to continue an existing file, because the whole job is started again.
        """
        self.task = task
        self.path = path
        self._terminal = terminal
        self._lines = Lines()
        self._file: IO[str] | None = None
        try:
            # Each line is written at the end of the file, also after a program that rotates logs has cut it (copytruncate).
            self._file = open(path, "a", encoding="utf-8", errors="replace", buffering=1)  # noqa: SIM115
            if not append:
                self._file.truncate(0)
        except OSError as error:
            self._say_not_written(error)

    def add(self, data: bytes, is_last: bool = False) -> None:
        """Adds what the task has printed. The last bytes of a process end its last line."""
        if lines := self._lines.feed(data, is_last):
            text = "\n".join(shown(line, False) for line in lines)
            self._write(text if self._lines.is_cut else f"{text}\n")
            self._terminal.lines(self.task, lines)
        self._terminal.progress(self.task, self._lines.rest)

    def close(self) -> None:
        """Ends the unfinished line, and closes the file."""
        self.add(b"", is_last=True)
        if self._file is not None:
            self._file.close()

    def _write(self, text: str) -> None:
        if self._file is None:
            return
        try:
            self._file.write(text)
            self._file.flush()
        except OSError as error:
            self._say_not_written(error)

    def _say_not_written(self, error: OSError) -> None:
        self._file = None  # A full disk does not end the training.
        self._terminal.say(f"{self.path}: {error.strerror}; the output of {self.task} is not written there from here on")


def last_lines(path: Path, start: int = 0) -> list[str]:
    """Returns the last lines of a log file from `start` bytes on, at most 20, without TensorFlow's usual lines; none where it
    cannot be read.

    Where they are the stacks of a process that crashed, the first one is what the library said of it.
    """
    try:
        with open(path, "rb") as file:
            file.seek(max(start, file.seek(0, os.SEEK_END) - _LAST_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    lines = [line for line in lines if line.strip() and not (_NOISE.match(line) or _FRAME.match(line))]
    crash = next((place for place in range(len(lines) - 1, -1, -1) if _CRASH.match(lines[place])), len(lines))
    has_stacks = any(line.startswith("Fatal Python error: ") for line in lines[crash:])
    if has_stacks and len(lines) - crash > LAST_LINES:
        return [lines[crash], *lines[1 - LAST_LINES :]]
    return lines[-LAST_LINES:]
