"""`BackgroundWriter`: writes text to a descriptor in a thread, so that a reader that stops reading stops nobody else.

A terminal stops reading after Ctrl-S, and so does a program at the other end of a pipe that is stopped. A write then blocks,
and a launcher that waits in it answers no signal. Another program may also have made the descriptor non-blocking, which every
process that shares it sees (fcntl(2), "File status flags"): a write fails with EAGAIN until the reader has caught up.
"""

import errno
import os
import select
import threading
import time
from collections import deque

LIMIT_BYTES = 1 << 20
"""Text that may wait for the reader."""

STALLED_SECONDS = 1.0
"""A reader that takes nothing for this long has stopped: what does not fit is left out. A slow reader is waited for."""

CLOSE_SECONDS = 30.0
"""How long `close` waits for a slow reader."""

CLOSE_STALLED_SECONDS = 5.0
"""How long `close` waits for one that takes nothing. Longer than `STALLED_SECONDS`: what is not read then is lost."""

_GONE = (errno.EPIPE, errno.EBADF, errno.ECONNRESET)


class BackgroundWriter:
    """A text stream that never blocks its writer.

    Attributes:
        left_out: number of lines that were left out since the reader last took something.
    """

    def __init__(self, descriptor: int, encoding: str = "utf-8", limit: int = LIMIT_BYTES) -> None:
        """Starts the thread.

        Args:
            descriptor: an open descriptor, which stays open.
            encoding: characters that it lacks become `?`.
            limit: bytes that may wait.
        """
        self.left_out = 0
        self._descriptor = descriptor
        self._encoding = encoding
        self._limit = limit
        self._pending: deque[bytes] = deque()
        self._size = 0
        self._progress_at = time.monotonic()
        self._gone = False
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="tfdist-output", daemon=True).start()

    def fileno(self) -> int:
        """Returns the descriptor."""
        return self._descriptor

    def isatty(self) -> bool:
        """Returns whether the descriptor is a terminal."""
        return os.isatty(self._descriptor)

    def write(self, text: str, important: bool = False) -> None:
        """Writes `text` soon. Where it does not fit and the reader has stopped, leaves it out, unless it is important.

        A slow reader gets all: callers wait for it, see `wait_for_room`, before they take more from the tasks.
        """
        data = text.encode(self._encoding, "replace")
        with self._changed:
            if self._gone:
                return
            if self._size + len(data) > self._limit and not important and self._has_stalled():
                self.left_out += text.count("\n")
                return
            if self.left_out:
                note = f"tfdist: {self.left_out} lines are left out here, because nothing read them; the log files have them\n"
                self.left_out = 0
                data = note.encode(self._encoding, "replace") + data
            if not self._size:
                self._progress_at = time.monotonic()
            self._pending.append(data)
            self._size += len(data)
            self._changed.notify_all()

    @property
    def is_idle(self) -> bool:
        """Whether everything has been written."""
        return self._size == 0

    def wait_for_room(self, timeout: float) -> bool:
        """Waits at most `timeout` seconds for a slow reader; returns whether the caller may write on.

        It may if there is room, and also if the reader has stopped: then nothing is gained by waiting.
        """
        with self._changed:
            return self._changed.wait_for(lambda: self._size < self._limit // 2 or self._has_stalled(), timeout)

    def close(self) -> None:
        """Waits until everything is written, the reader is gone, has taken nothing for 5 s, or 30 s have passed."""
        deadline = time.monotonic() + CLOSE_SECONDS
        with self._changed:
            while self._size and not self._has_stalled(CLOSE_STALLED_SECONDS) and time.monotonic() < deadline:
                self._changed.wait(STALLED_SECONDS / 10)

    def _has_stalled(self, seconds: float = STALLED_SECONDS) -> bool:
        return self._size > 0 and time.monotonic() - self._progress_at > seconds

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending)
                data = self._pending.popleft()
            self._write_all(memoryview(data))

    def _write_all(self, data: memoryview) -> None:
        while data:
            try:
                written = os.write(self._descriptor, data)
            except BlockingIOError:
                poll = select.poll()
                poll.register(self._descriptor, select.POLLOUT)
                poll.poll(1000)
                continue
            except OSError as error:
                # The reader is gone (`| head`), or a disk is full, which may end. The job and the log files continue.
                with self._changed:
                    self._gone = error.errno in _GONE
                    self.left_out += bytes(data).count(b"\n")
                    self._took(len(data) if not self._gone else self._size)
                    if self._gone:
                        self._pending.clear()
                return
            with self._changed:
                self._took(written)
            data = data[written:]

    def _took(self, count: int) -> None:
        self._size -= count
        self._progress_at = time.monotonic()
        self._changed.notify_all()
