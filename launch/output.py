"""What the tasks print: each into its own file, and on the terminal with the task's name in front."""

import codecs
import fcntl
import os
import re
import select
import shutil
import struct
import sys
import termios
import time
from collections import deque
from pathlib import Path
from typing import IO, TextIO

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07")
_COLOURS = {"chief": "\x1b[36m", "worker": "\x1b[32m", "ps": "\x1b[33m", "evaluator": "\x1b[35m"}
_RESET, _CLEAR = "\x1b[0m", "\r\x1b[K"
_PROGRESS_SECONDS = 0.1

MAX_LINE = 1 << 16
"""Characters of an unfinished line after which it is taken as finished."""

# What TensorFlow prints at every start on a machine without GPU, past its own log level. It stays in the files.
_NOISE = re.compile(
    r"^WARNING: All log messages before absl::InitializeLog\(\)|"
    r"^[IWE]\d{4} .*(port\.cc|cudart_stub\.cc|cuda_platform\.cc|cuda_executor\.cc|cpu_feature_guard\.cc|cuda_diagnostics\.cc)"
)


class Lines:
    """Turns the bytes of one task into finished lines and the unfinished rest, as a terminal would show them.

    A progress bar goes back with `\\r` or `\\b` and writes over itself: only its latest state counts. Characters may be split
    between two reads and need not be valid UTF-8.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.rest = ""

    def feed(self, data: bytes, final: bool = False) -> list[str]:
        """Takes more output and returns the lines that it finishes; with `final` also the unfinished one."""
        text = self.rest + self._decoder.decode(data, final).replace("\b", "").replace("\r\n", "\n")
        *finished, rest = text.split("\n")
        # Of what a lone "\r" ends, only the latest is kept; at the very end it may be the first half of "\r\n".
        pending = "\r" if rest.endswith("\r") and not final else ""
        self.rest = rest.removesuffix("\r").rpartition("\r")[2] + pending
        lines = [line.rstrip("\r").rpartition("\r")[2] for line in finished]
        if len(self.rest) > MAX_LINE:
            lines.append(self.rest)
            self.rest = ""
        if final and self.rest:
            lines.append(self.rest)
            self.rest = ""
        return lines


class Terminal:
    """The launcher's own standard output, shared by all tasks."""

    def __init__(self, names: list[str], stream: TextIO | None = None, verbose: bool = False) -> None:
        self._stream = stream or sys.stdout
        self._width = max((len(name) for name in names), default=0)
        self._verbose = verbose
        self._progress_at = 0.0
        self._shown = ""  # the unfinished line that the cursor stands on
        self.is_tty = self._stream.isatty()

    def line(self, task: str, text: str) -> None:
        """Prints a finished line of a task."""
        if self._verbose or not _NOISE.match(text):
            self._write(self._prefix(task) + (text if self.is_tty else _ESCAPE.sub("", text)))

    def progress(self, task: str, text: str) -> None:
        """Shows the unfinished line of a task until something else is printed; only on a real terminal."""
        now = time.monotonic()
        if self.is_tty and text.strip() and now - self._progress_at > _PROGRESS_SECONDS:
            self._progress_at = now
            self._shown = self._prefix(task) + text
            self._emit(_CLEAR + self._shown)

    def say(self, text: str) -> None:
        """Prints a line of the launcher itself."""
        self._write(f"tfdist: {text}")

    def _prefix(self, task: str) -> str:
        name = f"{task:<{self._width}} | "
        return _COLOURS.get(task.partition(":")[0], "") + name + _RESET if self.is_tty else name

    def _write(self, text: str) -> None:
        self._emit((_CLEAR if self._shown else "") + text + "\n")
        self._shown = ""

    def _emit(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            # Whoever read the output has gone (`| head`), or the disk is full; the job goes on, and so do the files.
            self._stream = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


class TaskOutput:
    """The pipe (or pseudo-terminal) of one task, its file, and its last lines."""

    def __init__(self, task: str, path: Path, terminal: Terminal, use_terminal: bool, append: bool = False) -> None:
        """Opens them.

        Args:
            task: `job:index`.
            path: the file for everything the task prints.
            terminal: where it is shown.
            use_terminal: whether the task gets a pseudo-terminal, so that its progress bar stays on one line.
            append: whether the file goes on, because the task has been started before.
        """
        self.task = task
        self.path = path
        self.last: deque[str] = deque(maxlen=20)
        self._terminal = terminal
        self._lines = Lines()
        self._file: IO[str] | None = open(  # noqa: SIM115
            path, "a" if append else "w", encoding="utf-8", errors="replace", buffering=1
        )
        if use_terminal:
            self._read_end, self.write_end = os.openpty()
            size = shutil.get_terminal_size()
            fcntl.ioctl(self.write_end, termios.TIOCSWINSZ, struct.pack("HHHH", size.lines, max(40, size.columns - 12), 0, 0))
        else:
            self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)

    def fileno(self) -> int:
        """The descriptor to wait on for output."""
        return self._read_end

    def started(self) -> None:
        """Closes this process' copy of the end that the task writes to, once the task has it."""
        os.close(self.write_end)

    def pump(self) -> bool:
        """Takes what there is; returns False when the task has closed its end."""
        try:
            data = os.read(self._read_end, 1 << 16)
        except BlockingIOError:
            return True
        except OSError:  # A pseudo-terminal whose other side is closed.
            data = b""
        for line in self._lines.feed(data):
            self._take(line)
        if data and self._lines.rest:
            self._terminal.progress(self.task, self._lines.rest)
        return bool(data)

    def close(self) -> None:
        """Takes what is left and closes pipe and file."""
        while self.pump() and self._has_more():
            pass
        for line in self._lines.feed(b"", final=True):
            self._take(line)
        os.close(self._read_end)
        if self._file is not None:
            self._file.close()

    def _has_more(self) -> bool:
        return bool(select.select([self._read_end], [], [], 0)[0])

    def _take(self, line: str) -> None:
        plain = _ESCAPE.sub("", line)
        self._keep(plain + "\n")
        if plain.strip() and not _NOISE.match(plain):
            self.last.append(plain)
        self._terminal.line(self.task, line)

    def _keep(self, text: str) -> None:
        if self._file is None:
            return
        try:
            self._file.write(text)
        except OSError as error:
            self._file = None  # A full disk is no reason to end a training.
            self._terminal.say(f"{self.path}: {error}; the rest of this output is not kept")
