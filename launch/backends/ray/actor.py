"""`Actor`: the actor of a task. It starts the agent on its node and carries bytes between the agent and the launcher.

Ray sends this class by value, so it needs nothing on the node but the standard library. The agent then finds tfdist, or says
that it is not there. When the actor ends, the agent reads the end of its standard input, and ends its task.
"""

import os
import selectors
import subprocess
import sys
import threading

RECEIVE_SECONDS = 1.0
"""Longest time that `receive` waits for something to return."""

READ_BYTES = 1 << 18


class Actor:
    """The agent of a task. `send` and `receive` are called at the same time, by one thread each."""

    def __init__(self, arguments: list[str], variables: dict[str, str]) -> None:
        """Starts the agent: this Python with `arguments`, and with `variables` besides those of Ray."""
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **variables},
            start_new_session=True,
        )
        assert self._process.stdin is not None
        self._in = self._process.stdin
        self._selector = selectors.DefaultSelector()
        for number, pipe in enumerate((self._process.stdout, self._process.stderr)):
            assert pipe is not None
            self._selector.register(pipe, selectors.EVENT_READ, number)
        threading.Thread(target=self._process.wait, daemon=True).start()

    def send(self, data: bytes) -> None:
        """Writes to the agent; nothing closes its standard input."""
        try:
            if data:
                self._in.write(data)
                self._in.flush()
            else:
                self._in.close()
        except OSError:
            pass  # It has ended, which `receive` reports.

    def receive(self) -> tuple[bytes, bytes, int | None]:
        """Returns what the agent has written to standard output and standard error; last its exit code, else None."""
        received = [b"", b""]
        if self._selector.get_map():
            for key, _ in self._selector.select(RECEIVE_SECONDS):
                data = os.read(key.fd, READ_BYTES)
                received[key.data] = data
                if not data:
                    self._selector.unregister(key.fileobj)
        has_ended = not self._selector.get_map()
        return received[0], received[1], self._process.wait() if has_ended else None
