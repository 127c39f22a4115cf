"""`BoundedCalls`: calls that the system may never finish, such as those to a network file system or a name server."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from tfdist.launch.rendezvous.stores.interface import StoreUnavailableError

LAST_SECONDS = 1.0
"""Time of a call after the limit of the rendezvous, with which a process tells the others why it ends."""

Result = TypeVar("Result")


class BoundedCalls:
    """Runs one call after the other, each for a limited time.

    Calls after the timeout, that of the rendezvous, get only a moment.

    A call that takes longer goes on in a thread that nobody waits for. Until it ends, no other call starts, so that there is
    never more than one such thread.
    """

    def __init__(self, what: str, timeout_seconds: float) -> None:
        self._what = what
        self._deadline = time.monotonic() + timeout_seconds
        self._thread: threading.Thread | None = None

    def run(self, call: Callable[[], Result], seconds: float) -> Result:
        """Returns the result of `call`, or raises its exception.

        Raises:
            StoreUnavailableError: if there is no result within `limit(seconds)`.
        """
        seconds = self.limit(seconds)
        if self._thread is not None:
            self._wait(self._thread, seconds)
        results: list[Result] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                results.append(call())
            except BaseException as error:
                errors.append(error)

        self._thread = threading.Thread(target=run, name="tfdist-store-call", daemon=True)
        self._thread.start()
        self._wait(self._thread, seconds)
        if errors:
            raise errors[0]
        return results[0]

    def limit(self, seconds: float) -> float:
        """Returns how long a call may take that usually may take `seconds`: not (much) longer than the rendezvous."""
        return min(seconds, max(LAST_SECONDS, self._deadline - time.monotonic()))

    def _wait(self, thread: threading.Thread, seconds: float) -> None:
        thread.join(seconds)
        if thread.is_alive():
            raise StoreUnavailableError(f"{self._what} does not answer")
        self._thread = None
