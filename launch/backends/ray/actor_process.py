"""`ActorProcess`: an actor in the form of a child process, with pipes, as `agents/link.py` uses it."""

import os
import subprocess
import threading
from collections.abc import Callable
from typing import Any

END_SECONDS = 5.0
"""How long an actor that was killed may take until Ray says so."""

POLL_SECONDS = 1.0
"""How often a thread that waits for the actor looks whether it shall end."""

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

        `actor` may not have been created yet. What the agent prints to standard error goes into `errors`, and what `why_gone`
        says when Ray reports the end of the actor.
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
        # Ray ends the whole process, with exit code 1, if a thread calls it after `ray.shutdown`.
        self._is_closing = threading.Event()
        self._sends = threading.Lock()  # Held while bytes are on their way to the actor.
        self._receiver = threading.Thread(target=self._receive, args=(write_out,), daemon=True)
        self._receiver.start()
        threading.Thread(target=self._send, args=(read_in,), daemon=True).start()

    def poll(self) -> int | None:
        """Returns the exit code, or None."""
        return self.returncode

    def wait(self, timeout: float = END_SECONDS) -> int | None:
        """Returns the exit code when there is one. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        if not self._has_ended.wait(timeout):
            raise subprocess.TimeoutExpired("actor", timeout)
        self._leave_ray()
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
        self._leave_ray()

    def _leave_ray(self) -> None:
        """Makes the threads stop calling Ray, and waits until they have."""
        self._is_closing.set()
        if self._sends.acquire(timeout=2 * POLL_SECONDS):
            self._sends.release()
        self._receiver.join(2 * POLL_SECONDS)

    def _get(self, reference: Any) -> Any:
        """Returns the result of a call to the actor. Raises Ray's GetTimeoutError soon after `_leave_ray`."""
        while True:
            try:
                return self._ray.get(reference, timeout=POLL_SECONDS)
            except self._ray.exceptions.GetTimeoutError:
                if self._is_closing.is_set():
                    raise

    def _send(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "rb", 0) as pipe:
            try:
                while True:
                    data = pipe.read(_READ_BYTES)
                    with self._sends:
                        if self._is_closing.is_set():
                            return
                        self._get(self._actor.send.remote(data))
                    if not data:  # That ended the input of the agent.
                        return
            except Exception:  # `_receive` gets the same one, and reports it.
                pass

    def _receive(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "wb", 0) as pipe, os.fdopen(self._errors, "wb", 0) as errors:
            code: int | None = None
            try:
                while code is None:
                    output, error_output, code = self._get(self._actor.receive.remote())
                    errors.write(error_output)
                    view = memoryview(output)
                    while view:  # A pipe takes a part, and makes this thread wait for its reader.
                        view = view[pipe.write(view) :]
            except BrokenPipeError:
                code = 1  # The launcher has closed the connection.
            except Exception as error:  # Whatever Ray raises: the actor does not answer any more.
                code = 1
                try:
                    if not self._is_closing.is_set():
                        errors.write(f"{self._why_gone(error)}\n".encode())
                except OSError:
                    pass  # A full disk.
            self.returncode = code
        self._has_ended.set()
