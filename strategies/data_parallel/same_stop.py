"""`SameStop`: the tasks that train together stop together.

Callbacks run in every task. One that looks at a clock, at a file, or that is given to one task only, sets `stop_training` in
one task and not in the others, which would then wait for it in their next step without end. So all stop if one does, as
PyTorch Lightning's `should_stop` does it:

* at the end of an epoch every task says whether it stops;
* within an epoch a task that stops asks whether all do so after this execution. If not, it makes one more with the others, and
  its request travels with the sums of the metrics. (If a replica spans tasks, these are the requests of its first one. Others
  stop it at the end of the epoch.)
"""

import logging
from typing import Any

import keras

from tfdist.strategies.data_parallel.same_calls import SameCalls
from tfdist.strategies.keras_hooks.task_requests import TaskRequests

_log = logging.getLogger("tfdist")


class SameStop(keras.callbacks.Callback):
    """Makes `fit` stop in all tasks, or in none. It runs after the user's callbacks."""

    tfdist_reads_batches = False  # See keras_hooks/trainer.py.

    def __init__(self, calls: SameCalls, requests: TaskRequests) -> None:
        super().__init__()
        self._calls = calls
        self._requests = requests
        self._has_asked = False  # Whether this task wants to stop, and makes more steps with the others.

    def on_train_begin(self, logs: Any = None) -> None:
        """See `keras.callbacks.Callback`."""
        self._has_asked = False
        self._requests.ask_to_stop(False)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """See `keras.callbacks.Callback`."""
        if self._requests.is_stop_due():
            self.model.stop_training = True
        elif self._is_stopping and batch + 1 != self.params["steps"]:  # After the last step all end the epoch.
            if not self._has_asked and self._wanting(True) == len(self._calls.names):
                return
            self.model.stop_training, self._has_asked = False, True
            self._requests.ask_to_stop(True)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """See `keras.callbacks.Callback`."""
        if epoch + 1 < self.params["epochs"]:
            wants = self._has_asked or self._is_stopping
            self.model.stop_training = self._wanting(wants) > 0

    @property
    def _is_stopping(self) -> bool:
        """In a loop of the user's with a `CallbackList`, the model may lack what `fit` sets."""
        return bool(getattr(self.model, "stop_training", False))

    def _wanting(self, wants: bool) -> int:
        """Returns how many tasks want to stop here. Says so if this one does, and not all."""
        wanting = self._calls.count(wants)
        if wants and not self._has_asked and wanting < len(self._calls.names):
            _log.warning("a callback stops the training in %s, and not in all tasks: all stop", self._calls.me)
        return wanting
