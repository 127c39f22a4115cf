"""`BoundedCalls`: calls that the system may never finish, such as those to a network file system or a name server."""

import threading
from collections.abc import Callable
from typing import TypeVar

from tfdist.launch.rendezvous.stores.interface import StoreUnavailableError

Result = TypeVar("Result")


class BoundedCalls:
    """Runs one call after the other, each for a limited time.

    A call that takes longer goes on in a thread that nobody waits for. Until it ends, no other call starts, so that there is
    never more than one such thread.

    Args:
        what: what the calls need, for the message.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._thread: threading.Thread | None = None

    def run(self, call: Callable[[], Result], seconds: float) -> Result:
        """Returns the result of `call`, or raises its exception.

        Raises:
            StoreUnavailableError: if there is no result within `seconds`.
        """
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

    def _wait(self, thread: threading.Thread, seconds: float) -> None:
        thread.join(seconds)
        if thread.is_alive():
            raise StoreUnavailableError(f"{self._what} does not answer")
        self._thread = None
