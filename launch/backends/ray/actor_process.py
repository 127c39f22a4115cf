"""`ActorProcess`: an actor in the form of a child process, with pipes, as `agents/link.py` uses it."""

import os
import subprocess
import threading
from collections.abc import Callable
from typing import Any

END_SECONDS = 5.0
"""How long an actor that was killed may take until Ray says so."""

_READ_BYTES = 1 << 16


class ActorProcess:
    """One actor and its agent: the part of `subprocess.Popen` that a `Link` uses.

    Attributes:
        stdin: leads to the standard input of the agent.
        stdout: the standard output of the agent.
        returncode: exit code of the agent, 1 if the actor itself is gone; None while it runs.
    """

    def __init__(self, ray: Any, actor: Any, errors: Any, why_gone: Callable[[Exception], str]) -> None:
        """Begins to carry bytes.

        Args:
            ray: the module.
            actor: the handle of an `Actor`, which may not have been created yet.
            errors: file for what the agent prints to standard error.
            why_gone: returns the sentence for `errors` when Ray reports the end of the actor.
        """
        self._ray = ray
        self._actor = actor
        self._why_gone = why_gone
        self.returncode: int | None = None
        self._has_ended = threading.Event()
        self._errors = os.dup(errors.fileno())
        read_in, write_in = os.pipe()
        read_out, write_out = os.pipe()
        self.stdin = os.fdopen(write_in, "wb", 0)
        self.stdout = os.fdopen(read_out, "rb", 0)
        for target, descriptor in ((self._send, read_in), (self._receive, write_out)):
            threading.Thread(target=target, args=(descriptor,), daemon=True).start()

    def poll(self) -> int | None:
        """Returns the exit code, or None."""
        return self.returncode

    def wait(self, timeout: float = END_SECONDS) -> int | None:
        """Returns the exit code when there is one. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        if not self._has_ended.wait(timeout):
            raise subprocess.TimeoutExpired("actor", timeout)
        return self.returncode

    def kill(self) -> None:
        """Kills the actor, and thus the agent and the task."""
        try:
            self._ray.kill(self._actor)
        except Exception:  # Ray has many; in all cases the actor, or Ray itself, is gone.
            pass
        if not self._has_ended.wait(END_SECONDS):
            self.returncode = 1
            self._has_ended.set()

    def _send(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "rb", 0) as pipe:
            try:
                while data := pipe.read(_READ_BYTES):
                    self._ray.get(self._actor.send.remote(data))
                self._ray.get(self._actor.send.remote(b""))
            except Exception:  # `_receive` gets the same one, and reports it.
                pass

    def _receive(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "wb", 0) as pipe, os.fdopen(self._errors, "wb", 0) as errors:
            code: int | None = None
            try:
                while code is None:
                    output, error_output, code = self._ray.get(self._actor.receive.remote())
                    errors.write(error_output)
                    view = memoryview(output)
                    while view:  # A pipe takes a part, and makes this thread wait for its reader.
                        view = view[pipe.write(view) :]
            except BrokenPipeError:
                code = 1  # The launcher has closed the connection.
            except Exception as error:  # Whatever Ray raises: the actor does not answer any more.
                code = 1
                try:
                    errors.write(f"{self._why_gone(error)}\n".encode())
                except OSError:
                    pass  # A full disk.
            self.returncode = code
        self._has_ended.set()
