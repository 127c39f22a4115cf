"""SIGTERM during `fit`: the chief saves a backup and ends. The launcher, Slurm and Kubernetes send it before they kill."""

import signal
import sys
import threading
from typing import Any

import keras

EXIT_CODE = 128 + signal.SIGTERM


class SaveWhenTerminated(keras.callbacks.Callback):
    """Makes each `BackupAndRestore` save after the step in which SIGTERM arrives, and ends the program with 143.

    Does nothing in programs that handle SIGTERM themselves, or have no `BackupAndRestore`. Keras then resumes at the beginning
    of the epoch, with the weights of the backup, as with `save_freq=1`.
    """

    tfdist_reads_batches = False  # See keras_hooks/trainer.py. BackupAndRestore reads them.

    def __init__(self, callbacks: Any) -> None:
        """`callbacks` is the argument of `fit`."""
        super().__init__()
        if isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks = callbacks.callbacks
        each = callbacks if isinstance(callbacks, list | tuple) else [callbacks]
        self._backups = [one for one in each if isinstance(one, keras.callbacks.BackupAndRestore)]
        self._is_wanted = False
        self._before: Any = None

    def on_train_begin(self, logs: Any = None) -> None:
        """See `keras.callbacks.Callback`."""
        is_main = threading.current_thread() is threading.main_thread()
        if self._backups and is_main and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            self._before = signal.signal(signal.SIGTERM, self._want)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """See `keras.callbacks.Callback`."""
        if not self._is_wanted:
            return
        for backup in self._backups:
            backup.save_freq = 1
            backup.on_train_batch_end(batch, logs)
        print("tfdist: SIGTERM: the backup is saved, and the program ends", flush=True)
        self.release()
        sys.exit(EXIT_CODE)

    def release(self) -> None:
        """Gives the signal back."""
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
            self._before = None

    def _want(self, number: int, frame: Any) -> None:
        del number, frame
        self._is_wanted = True
