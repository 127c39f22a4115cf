"""`LivePanel`: a few lines at the bottom of a terminal that are drawn anew, while the output of the tasks scrolls above them.

It uses neither the alternate screen nor modes of the terminal, and the cursor stays visible, below the panel. So what has
scrolled by stays in the scrollback, and a launcher that is killed leaves a terminal that works.

Everything goes through a `BackgroundWriter`. A frame is drawn only when the one before has been read, so a terminal that stops
reading (Ctrl-S) delays nobody. Of a task that prints faster than a terminal can show, the latest lines are shown.
"""

import os
import time
from collections import deque
from collections.abc import Callable

from tfdist.launch.terminal.background_writer import BackgroundWriter
from tfdist.launch.terminal.terminal_text import cut

FRAME_SECONDS = 0.1
"""Shortest time between two frames."""

PANEL_SECONDS = 0.5
"""Longest time between two frames: the panel shows times."""

MOST_LINES = 200
"""Lines that a frame adds. Of more, the earlier ones are left out."""

LONGEST_LINE = 2000

SMALLEST = (20, 6)
"""Columns and rows of the smallest terminal that gets a panel."""


class LivePanel:
    """The panel, and the lines above it."""

    def __init__(
        self, stream: BackgroundWriter, render: Callable[[int, int], list[str]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Draws nothing yet.

        Args:
            stream: writes to the terminal.
            render: returns the lines of the panel for a number of columns and of rows at most. No line may be wider.
            clock: returns seconds.
        """
        self._stream = stream
        self._render = render
        self._clock = clock
        self._new: deque[tuple[str, bool]] = deque()  # Lines that are not shown yet, and whether each is important.
        self._left_out = 0
        self._recent: deque[str] = deque(maxlen=MOST_LINES)
        self._rows = 0  # Of the panel that is on the terminal.
        self._size = self._terminal_size()
        self._drawn_at = clock() - PANEL_SECONDS

    def add(self, line: str, important: bool = False) -> None:
        """Adds a line to the output above the panel. An important one is never left out."""
        if len(line) > LONGEST_LINE and not important:
            line = cut(line, LONGEST_LINE)
        self._new.append((line, important))
        if len(self._new) > MOST_LINES:
            least = next((number for number, (_, is_important) in enumerate(self._new) if not is_important), None)
            if least is not None:
                del self._new[least]
                self._left_out += 1

    def leave_out(self, count: int) -> None:
        """Counts lines that come too fast to be shown."""
        self._left_out += count

    def resumed(self) -> None:
        """Notes that this process goes on after it was stopped (Ctrl-Z): somebody else has used the terminal meanwhile."""
        self._rows = 0

    def tick(self) -> None:
        """Draws a frame, if it is time for one. Call it several times a second."""
        now = self._clock()
        is_due = now - self._drawn_at >= (FRAME_SECONDS if self._new else PANEL_SECONDS)
        if not is_due or not self._stream.is_idle:
            return
        self._drawn_at = now
        size = self._terminal_size()
        is_resized, self._size = size != self._size and self._rows > 0, size
        panel = self._panel() if self._is_ours() else []
        if is_resized:
            # Some terminals break lines anew, others cut them: nobody knows where the panel is now.
            self._take_new()
            lines = list(self._recent)[-max(0, size[1] - len(panel) - 1) :]
            text = "\x1b[H\x1b[2J" + "".join(f"{line}\n" for line in lines)
        else:
            text = self._erased() + "".join(f"{line}\n" for line in self._take_new())
        self._rows = len(panel)
        self._stream.write(text + "".join(f"{line}\n" for line in panel), important=True)

    def close(self) -> None:
        """Removes the panel, and shows the lines that are not shown yet."""
        text = self._erased() + "".join(f"{line}\n" for line in self._take_new())
        self._rows = 0
        if text:
            self._stream.write(text, important=True)

    def _panel(self) -> list[str]:
        columns, rows = self._size
        if columns < SMALLEST[0] or rows < SMALLEST[1]:
            return []
        # A line as wide as the terminal leaves the cursor at a place about which terminals differ.
        return self._render(columns - 1, max(3, rows // 2))[: rows - 2]

    def _take_new(self) -> list[str]:
        lines = [line for line, _ in self._new]
        if self._left_out:
            lines.insert(0, f"tfdist: {self._left_out} lines are left out here; the log files have them")
        self._new.clear()
        self._left_out = 0
        self._recent.extend(lines)
        return lines

    def _erased(self) -> str:
        return f"\r\x1b[{self._rows}A\x1b[J" if self._rows else ""

    def _is_ours(self) -> bool:
        """Returns whether this process is in the foreground of its terminal: not after `bg`."""
        try:
            return os.tcgetpgrp(self._stream.fileno()) == os.getpgrp()
        except OSError:
            return True  # It is not the terminal that controls this process.

    def _terminal_size(self) -> tuple[int, int]:
        try:
            size = os.get_terminal_size(self._stream.fileno())
        except OSError:
            return 80, 24
        return size.columns, size.lines
