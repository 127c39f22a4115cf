"""`Pipe`: the pipe or pseudo-terminal to which a task on this machine prints."""

import fcntl
import os
import shutil
import struct
import termios
from collections.abc import Iterator

READ_BYTES = 1 << 16
PIPE_BYTES = 1 << 20
"""The most that a pipe holds without privileges (pipe(7), /proc/sys/fs/pipe-max-size)."""

_MOST = (1 << 16) - 1
"""Rows and columns that a terminal may have. The variables LINES and COLUMNS may say more."""


class Pipe:
    """Both ends, until the task has started; then the end to read."""

    def __init__(self, task: str, is_terminal: bool) -> None:
        """Opens it: a pseudo-terminal if `is_terminal` and there are any, so that a progress bar stays on one line.

        Raises OSError if too many files are open.
        """
        self.task = task
        self._read_end, self.write_end = (_terminal() if is_terminal else None) or os.pipe()
        os.set_blocking(self._read_end, False)

    def fileno(self) -> int:
        """Returns the descriptor that becomes readable when there is output."""
        return self._read_end

    def started(self) -> None:
        """Closes this process' copy of the end to which the task writes. Call it after the task has started."""
        os.close(self.write_end)

    def read(self) -> bytes | None:
        """Returns the output that there is; None if there is none now, and nothing when the task has closed its end."""
        try:
            return os.read(self._read_end, READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:  # The other end of the pseudo-terminal is closed.
            return b""

    def close(self) -> Iterator[bytes]:
        """Yields the rest of the output and closes the pipe.

        The rest is what the pipe can hold: a process that the task has left behind may write forever.
        """
        for _ in range(PIPE_BYTES // READ_BYTES):
            if not (data := self.read()):
                break
            yield data
        os.close(self._read_end)


def _terminal() -> tuple[int, int] | None:
    """Returns both ends of a pseudo-terminal of the size of this one; None where there is none, as in some sandboxes."""
    try:
        ours, theirs = os.openpty()
    except OSError:
        return None
    size = shutil.get_terminal_size()
    lines, columns = min(size.lines, _MOST), min(max(40, size.columns - 12), _MOST)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    return ours, theirs
