"""What the tasks of multi_worker_mirrored tell each other beside their collectives, by TensorFlow's coordination service."""

import threading
from collections.abc import Callable

import tensorflow as tf

from tfdist.errors import DifferentCallsError
from tfdist.strategies.private_api.eager_context import publish, published, unpublish

ADVICE = (
    "under multi_worker_mirrored every task runs the same program, and all take part in every fit, evaluate and predict: make "
    "these calls in all tasks, and only print, plot and save in one (`if tfdist.is_chief()`)"
)
DATA_ADVICE = (
    "under multi_worker_mirrored every task reads the whole data and takes its part of each batch: give every task the same "
    "data, and do not divide it by rank"
)

BACKUP_ADVICE = (
    "under multi_worker_mirrored every task restores the chief's backup: give it to every task; only the chief writes"
)

STEP_ADVICE = (
    "what Python decides in a step by the batch, each replica decides by its own part of it: decide by the number of steps, or "
    "update in every step"
)


LOOK_SECONDS = 1.0
"""After so long without an answer of the first task, which keeps the values, this one looks whether it is there."""


class Board:
    """Values that all tasks of the strategy see, each under a name of its own. Tests have one without TensorFlow.

    Args:
        watch_first: begins to look at the first task; see `LostTasks.watch`. None in that task, which waits for nobody.
    """

    def __init__(self, watch_first: Callable[[], Callable[[], Exception | None]] | None = None) -> None:
        self._watch_first = watch_first
        self._look: Callable[[], Exception | None] | None = None  # Kept for the next calls by one that found the task lost.

    def put(self, name: str, value: str) -> None:
        """Gives a value to all tasks. The name must be free. Raises TaskLostError if the first task is lost."""
        self._tell(publish, name, value)

    def take(self, name: str, seconds: float) -> str | None:
        """Returns a value, waiting for it; None after `seconds`.

        Raises:
            DifferentCallsError: if the first task, which keeps the values, is gone.
        """
        try:
            return published(name, seconds)
        except (tf.errors.DeadlineExceededError, tf.errors.NotFoundError):
            return None
        except tf.errors.OpError as error:
            raise DifferentCallsError(
                f"the first task has ended, or cannot be reached, and this task waits for it; {ADVICE}"
            ) from error

    def remove(self, name: str) -> None:
        """Removes a value of this task's own. Raises TaskLostError if the first task is lost."""
        self._tell(unpublish, name)

    def _tell(self, function: Callable[..., None], *arguments: str) -> None:
        """Calls a function of the service. Behind a cut link it would wait until TCP and gRPC give up."""
        if self._watch_first is None:
            function(*arguments)
            return
        errors: list[Exception] = []

        def tell() -> None:
            try:
                function(*arguments)
            except Exception as error:
                errors.append(error)

        teller = threading.Thread(target=tell, name="tfdist-board", daemon=True)
        teller.start()
        teller.join(LOOK_SECONDS)
        if teller.is_alive():
            look = self._look = self._look or self._watch_first()
            while teller.is_alive():
                if (loss := look()) is not None:
                    raise loss
                teller.join(LOOK_SECONDS)
        self._look = None
        if errors:
            raise errors[0]
