"""How far `fit` is: the chief writes it to a file twice a second, for the launcher's live view and its watchdog."""

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.json_values import replace_file

SUFFIX = ".progress"
"""The file is beside the report (run_summary.py), with this at the end of its name."""

WRITE_SECONDS = 0.5
SPEED_SECONDS = 10.0
"""The speed is the mean over this time. Under hogwild, the steps of a whole sync period arrive at once."""

LARGEST = 50
"""So many of the largest variables are written one by one."""

_open: "set[FitProgress]" = set()
"""Those whose `fit` has begun and is not known to be over. What ends the program may have left one."""


def close_all() -> None:
    """Notes that the program has finished, even if it has left a `fit` by `sys.exit`, or one goes on in a thread."""
    for progress in list(_open):
        progress.close()


class FitProgress(keras.callbacks.Callback):
    """Writes the progress of a `fit`.

    The file holds JSON: `phase` ("fit", "evaluate", or "idle" after it), `epoch` from 1, `epochs`, `step` of the epoch, `steps`
    of an epoch (null if not known), `batches` (of training and validation that have begun, in this `fit`), `steps_per_second`,
    `examples_per_second` (null in the first epoch), `seconds_left` (of this `fit`, or null), `metrics` (of the last epoch) and
    `exchange` (of `Hogwild.exchange`, or null) and `parameters` (`parameters_of`).
    """

    tfdist_reads_batches = False  # See keras_hooks/trainer.py.

    def __init__(self, report: str, counts: dict[str, Any], clock: Callable[[], float] = time.monotonic) -> None:
        """Prepares the callback.

        Args:
            report: path of the report.
            counts: `steps` and `examples` of the epochs that are over.
            clock: returns seconds.
        """
        super().__init__()
        self._path = f"{report}{SUFFIX}"
        self._counts = counts
        self._clock = clock
        self._written_at = -WRITE_SECONDS
        self._samples: deque[tuple[float, int]] = deque()
        self._steps_done = 0  # Steps of this `fit`.
        self._epoch_begin: float | None = None
        self._epoch_seconds: float | None = None
        self._values: dict[str, Any] = {"phase": "idle", "epoch": 0, "epochs": 0, "step": 0, "steps": None, "metrics": {}}
        self._batches = 0
        self._parameters: list[list[int]] = []
        self._is_over = False

    # What Keras calls.

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """See `keras.callbacks.Callback`."""
        now = self._clock()
        _open.add(self)
        if self._epoch_begin is None:
            self._samples.append((now, 0))
        self._epoch_begin = now
        steps = self.params.get("steps") or self._values["steps"]
        self._values.update(phase="fit", epoch=epoch + 1, epochs=self.params.get("epochs") or 0, step=0, steps=steps)
        self._write()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """See `keras.callbacks.Callback`."""
        steps = batch + 1 - self._values["step"]
        self._values["step"] = batch + 1
        self._steps_done += steps
        self._heard(steps)

    def on_test_begin(self, logs: Any = None) -> None:
        """See `keras.callbacks.Callback`."""
        self._values["phase"] = "evaluate"

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        """See `keras.callbacks.Callback`. With `on_test_batch_end`, Keras would wait for the logs of each batch."""
        self._heard(1)

    def on_test_end(self, logs: Any = None) -> None:
        """See `keras.callbacks.Callback`."""
        self._values["phase"] = "fit"

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """See `keras.callbacks.Callback`."""
        self._values["steps"] = self._values["step"]
        self._values["metrics"] = {name: _number(value) for name, value in (logs or {}).items() if _number(value) is not None}
        assert self._epoch_begin is not None
        self._epoch_seconds = self._clock() - self._epoch_begin
        self._write()

    def on_train_end(self, logs: Any = None) -> None:
        """See `keras.callbacks.Callback`."""
        self.close()

    def close(self) -> None:
        """Notes that `fit` is over, also because of an exception, which the program may catch.

        The file then never says again that it goes on: the launcher takes a process that ends with such a file for one that was
        ended in the middle.
        """
        if self._is_over:
            return
        self._values["phase"] = "idle"
        if not self._write():
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        self._is_over = True
        _open.discard(self)

    # The file.

    def _heard(self, batches: int) -> None:
        self._batches += batches
        if self._clock() - self._written_at >= WRITE_SECONDS:
            self._write()

    def _write(self) -> bool:
        """Writes the file; returns whether that was possible."""
        if self._is_over:
            return True
        now = self._written_at = self._clock()
        self._samples.append((now, self._steps_done))
        while len(self._samples) > 2 and now - self._samples[1][0] > SPEED_SECONDS:
            self._samples.popleft()
        (begin, before), (end, after) = self._samples[0], self._samples[-1]
        speed = (after - before) / (end - begin) if end > begin and after > before else None
        counted = self._counts["examples"] / self._counts["steps"] if self._counts["steps"] else 0.0
        self._parameters = self._parameters or parameters_of(self.model)  # A model may be built by its first batch.
        exchange = getattr(getattr(self.model, "distribute_strategy", None), "exchange", None)
        values = {
            **self._values,
            "batches": self._batches,
            "steps_per_second": speed,
            "examples_per_second": speed * counted if speed and counted else None,
            "seconds_left": self._seconds_left(speed),
            "exchange": exchange(speed) if exchange is not None else None,
            "parameters": self._parameters,
        }
        try:
            replace_file(self._path, values)
        except OSError:
            return False  # A full disk does not end the training.
        return True

    def _seconds_left(self, speed: float | None) -> float | None:
        """Returns how long the rest of this `fit` takes: its other epochs as long as the last one, if one is over."""
        values = self._values
        if values["phase"] == "idle" or not values["steps"] or not speed:
            return None
        epochs = max(0, values["epochs"] - values["epoch"])
        epoch_seconds = self._epoch_seconds if self._epoch_seconds is not None else values["steps"] / speed
        return float(max(0, values["steps"] - values["step"]) / speed + epochs * epoch_seconds)


def parameters_of(model: Any) -> list[list[int]]:
    """Returns length of the first dimension and bytes of the largest trainable variables, then an entry for all others."""
    sizes = []
    for variable in getattr(model, "trainable_variables", ()):
        size = int(np.prod(variable.shape, dtype=np.int64)) * tf.as_dtype(variable.dtype).size
        sizes.append([int(variable.shape[0]) if len(variable.shape) else 0, size])
    sizes.sort(key=lambda each: -each[1])
    others = sum(size for _, size in sizes[LARGEST:])
    return sizes[:LARGEST] + ([[0, others]] if others else [])


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
