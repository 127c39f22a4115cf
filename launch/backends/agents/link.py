"""`Link`: the connection to the agent on one host, a child process such as `ssh` or `srun`."""

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfdist.launch.backends.agents.frames import BEAT_SECONDS, START, Decoder, encode
from tfdist.launch.jobs.running_time import RunningTime
from tfdist.launch.terminal.output import last_lines
from tfdist.messages import printable

START_SECONDS = 60.0
"""How long login and the start of the agent may take until its first word."""

_READ_BYTES = 1 << 18

_SAYS_ONLY_CODE = re.compile(r"^srun: error: .*: Exited with exit code \d+$")
"""The last line of srun, after what the program on the node has said."""


class Link:
    """One connection. It never blocks: what cannot be sent yet waits in memory.

    Attributes:
        host: the host, as the description names it.
        lost: why the connection is gone, as the second half of a sentence; None while it stands.
        has_spoken: whether an agent has said anything there.
    """

    def __init__(
        self, host: str, command: list[str], first_line: dict[str, Any], log: Path, popen: Callable[..., Any] = subprocess.Popen
    ) -> None:
        """Starts the command with `popen`, and sends `first_line`, which the bootstrap and the agent read.

        What they print to standard error goes into `log`.
        """
        self.host = host
        self.lost: str | None = None
        self._log = log
        self._name = command[0]
        self._limit: float = first_line["silence"]
        self.has_spoken = False
        self._decoder = Decoder(START)
        self._unsent = bytearray(encode(first_line))
        self._clock = RunningTime()
        self._heard_at = self._clock()
        self._said_at = 0.0
        try:
            errors: Any = open(log, "ab")  # noqa: SIM115  closed below
        except OSError:
            errors = open(os.devnull, "wb")  # noqa: SIM115
        self._log_start = os.fstat(errors.fileno()).st_size  # What an earlier connection has left says nothing of this one.
        with errors:
            self._process = popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # Ctrl-C in the terminal reaches the launcher only.
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        for pipe in (self._in, self._out):
            os.set_blocking(pipe.fileno(), False)

    def fileno(self) -> int:
        """Returns the descriptor that becomes readable when `hear` has something."""
        return int(self._out.fileno())

    def say(self, message: dict[str, Any]) -> None:
        """Sends a message as soon as possible."""
        self._unsent += encode(message)
        self._send()

    def tick(self) -> None:
        """Sends a sign of life and what waits, and notices that nothing is heard any more. Call it several times a second."""
        now = self._clock()
        limit = self._limit if self.has_spoken else START_SECONDS
        if self.lost is None and now - self._heard_at > limit:
            silence = f"nothing was heard from there for {limit:.0f} s"
            last = f"; the last line that {self._name} has shown is: {self._last_line()}" if self._last_line() else ""
            self._lose(silence if self.has_spoken else f"{silence}, in which no agent has started{last}")
        elif now - self._said_at >= BEAT_SECONDS:
            self._said_at = now
            self.say({"beat": True})
        else:
            self._send()

    def hear(self) -> list[tuple[dict[str, Any], bytes]]:
        """Returns what the agent has said."""
        try:
            data = os.read(self._out.fileno(), _READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self._lose(None)
            return []
        self._heard_at = self._clock()
        try:
            found = self._decoder.feed(data)
        except ValueError:
            self._lose("something else than the agent wrote to the connection")
            return []
        self.has_spoken = self.has_spoken or bool(found)
        return found

    def wait(self, timeout: float) -> bool:
        """Waits until the command has ended; returns whether it has."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        """Ends the command. The agent notices it, and ends."""
        for pipe in (self._in, self._out):
            try:
                pipe.close()
            except OSError:
                pass
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self.lost = self.lost or "it was closed"

    def _send(self) -> None:
        while self._unsent and self.lost is None:
            try:
                sent = os.write(self._in.fileno(), self._unsent[: 1 << 16])
            except BlockingIOError:
                return
            except OSError:
                return  # It has ended; `hear` finds out why.
            del self._unsent[:sent]

    def _lose(self, reason: str | None) -> None:
        if reason is None:
            ended = (
                f"{self._name} ended with {self._process.returncode}" if self.wait(2.0) else f"{self._name} closed its output"
            )
            reason = f"{ended}: {self._last_line()}" if self._last_line() else ended
        self.lost = self.lost or reason

    def _last_line(self) -> str:
        """Returns the last line of standard error; without one that of the output before the first word of the agent."""
        last = last_lines(self._log, self._log_start)
        if last and _SAYS_ONLY_CODE.search(last[-1]):  # What the agent has said before is the reason.
            last = [line for line in last if not line.startswith("srun: ")] or last
        last = last[-1:]
        return printable(last[0].strip() if last else "" if self.has_spoken else self._decoder.skipped)
