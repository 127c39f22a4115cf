"""`HeadWatch`: notices that the head of a cluster of Ray gives no answer, before Ray ends this process because of it.

After 60 s without its head (`gcs_rpc_server_reconnect_timeout_s`) Ray's library ends the process in C++, without a word of the
launcher.
"""

import threading
from collections.abc import Callable

from tfdist.launch.jobs.running_time import RunningTime

SILENT_SECONDS = 40.0
"""How long the head may give no answer. What is left of Ray's 60 s is for the end of the tasks and the summary."""

POLL_SECONDS = 2.0
"""How often it is asked."""


class HeadWatch:
    """Asks the head in a thread: while it is gone, Ray's calls do not return."""

    def __init__(self, ask: Callable[[], object]) -> None:
        """Begins. `ask` is a call that only the head answers."""
        self._ask = ask
        self._has_answered = threading.Event()
        self._clock = RunningTime()
        self._answered_at = self._clock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tfdist-ray-head", daemon=True)
        self._thread.start()

    def why_lost(self) -> str | None:
        """Returns a sentence if the head has not answered for `SILENT_SECONDS`, else None. Call it several times a second."""
        now = self._clock()
        if self._has_answered.is_set():
            self._has_answered.clear()
            self._answered_at = now
        if now - self._answered_at <= SILENT_SECONDS:
            return None
        return f"the head of the cluster of Ray (its GCS) has given no answer for {SILENT_SECONDS:.0f} s; start it again"

    def close(self) -> bool:
        """Ends the thread; returns whether Ray may be shut down: not if a call has not returned, because the head is lost."""
        self._is_over.set()
        while self._thread.is_alive() and self.why_lost() is None:
            self._thread.join(0.5)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._is_over.wait(POLL_SECONDS):
            try:
                self._ask()
            except Exception:  # Ray has many.
                continue
            self._has_answered.set()
