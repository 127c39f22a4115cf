"""Signals during `fit` that make the chief save a backup: SIGTERM, after which it ends, and SIGUSR1, after which it goes on.

The launcher, Slurm and Kubernetes send SIGTERM before they kill a task; Slurm can send SIGUSR1 earlier.
"""

import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist.strategies.keras_hooks.callbacks import listed, with_callback
from tfdist.strategies.keras_hooks.interface import hooks_of
from tfdist.strategies.keras_hooks.task_requests import TaskRequests
from tfdist.strategies.private_api import patches
from tfdist.strategies.runtime.save_signal import has_nothing_to_save

EXIT_CODE = 128 + signal.SIGTERM

_late: set[int] = set()
"""Signals that came with the last step of a `fit` or after it. The end of `fit` saves the backup."""


_is_installed = False
_masks = threading.local()


def install() -> None:
    """Makes `fit` of every Keras model with a backup heed the signals. Calling it again does nothing."""
    global _is_installed
    patches.FIT.patch(_fit)
    if not _is_installed:
        _is_installed = True
        os.register_at_fork(before=_hold_sigterm, after_in_parent=_release_sigterm, after_in_child=_end_by_sigterm)


def _hold_sigterm() -> None:
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _release_sigterm() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _end_by_sigterm() -> None:
    """Lets SIGTERM end a fork of the program, such as one that reads data. Python's multiprocessing relies on that.

    It would inherit the handler of this module, or that of TensorFlow under multi_worker_mirrored, which Python does not know
    and which ignores it. Python forgets signals that come before this, so they are held back.
    """
    handler = signal.getsignal(signal.SIGTERM)
    if handler in (None, signal.SIG_DFL) or getattr(handler, "__func__", None) is SaveOnSignal._receive:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _release_sigterm()


def end_after_fit(wait: Callable[[], bool]) -> None:
    """Heeds the signals that came with the last step of a `fit` or after it. The backup that holds its end calls it.

    Args:
        wait: waits for that backup; returns whether it is on the disk.
    """
    received = set(_late)
    _late.clear()
    if received:
        _report(received, wait())


class SaveOnSignal(keras.callbacks.Callback):
    """Makes each backup save after the step in which a signal arrives. After SIGTERM the program ends with 143.

    Does nothing in programs that handle the signals themselves, or have no backup. A backup is one of:

    * a `BackupAndRestore`. Keras later resumes at the beginning of the epoch, with the weights of the backup, as with
      `save_freq=1`;
    * a callback with a method `save_on_signal(batch)`, which returns False if the epoch is about to end: that end saves, as for
      a signal that arrives after the last step, during the validation. Its method `wait_for_save()` waits for what it saves,
      and returns whether that is on the disk.

    Under multi_worker_mirrored the chief's signal makes all tasks save, after the step that follows.

    Attributes:
        backups: functions that save, one for each backup.
    """

    tfdist_reads_batches = False  # See keras_hooks/trainer.py. BackupAndRestore reads them.

    def __init__(self, callbacks: Any, saves: bool) -> None:
        """Prepares the callback.

        Args:
            callbacks: the argument of `fit`.
            saves: whether this task is the chief. Another ignores SIGUSR1, which all tasks get, and does not handle SIGTERM.
        """
        super().__init__()
        given = listed(callbacks)
        self.backups = [save for one in given if (save := _function_to_save(one)) is not None]
        self._waits = [wait for one in given if (wait := getattr(one, "wait_for_save", None)) is not None]
        self._frequent = [save for one in given if _is_frequent(one) and (save := _function_to_save(one)) is not None]
        self._late: set[int] = set()
        self._saves = saves
        self._requests: TaskRequests | None = None
        self._is_last = False  # Whether the chief ends, or has ended, after a save that all have made.
        self._received: set[int] = set()
        self._earlier_handlers: dict[int, Any] = {}
        self._process = os.getpid()

    def on_train_begin(self, logs: Any = None) -> None:
        """See `keras.callbacks.Callback`."""
        if not self.backups or threading.current_thread() is not threading.main_thread():
            return
        hooks = hooks_of(getattr(self.model, "distribute_strategy", None))
        self._requests = None if hooks is None else hooks.task_requests
        for number in (signal.SIGTERM, signal.SIGUSR1) if self._saves else (signal.SIGUSR1,):
            if signal.getsignal(number) in (signal.SIG_DFL, has_nothing_to_save):
                self._earlier_handlers[number] = signal.signal(number, self._receive)

    def _receive(self, number: int, frame: Any) -> None:
        if os.getpid() == self._process:  # Not a fork of the program.
            self._received.add(number)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """See `keras.callbacks.Callback`."""
        if not self._saves:
            self._received.clear()
        if self._requests is not None:
            if self._received:
                self._requests.ask_to_save(ends=signal.SIGTERM in self._received)
            if not self.backups or not self._requests.is_save_due():
                return
            self._is_last = self._is_last or self._requests.ends_after_save()
        elif not self._received:
            return
        received, self._received = self._received, set()
        saved = [save(batch) for save in self.backups]
        if not self._saves:
            return
        if any(each is False for each in saved):
            self._late |= received
        else:
            self._report(received)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """See `keras.callbacks.Callback`. Heeds signals that came after the last step of the epoch."""
        if not self._saves or not self._received:
            return
        if self._waits:  # They save after this.
            self._late |= self._take_received()
        elif self._requests is None or not self._frequent:
            for save in self._frequent:  # The others have saved.
                save(0)
            self._report(self._take_received())

    def _take_received(self) -> set[int]:
        received, self._received = self._received, set()
        if self._requests is not None:
            self._requests.withdraw_save()
        return received

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """See `keras.callbacks.Callback`. The end of the epoch before has saved.

        Where all tasks save together, the chief makes one more step with them: they would fail without it.
        """
        received, self._late = self._late, set()
        if received and self._requests is not None:
            self._received |= received
            self._requests.ask_to_save(ends=signal.SIGTERM in received)
        elif received:
            self._report(received)

    def on_train_end(self, logs: Any = None) -> None:
        """See `keras.callbacks.Callback`."""
        received = self._late | self._take_received()
        if self._waits:
            _late.update(received if self._saves else ())
        elif signal.SIGTERM in received:  # Too late for a `BackupAndRestore`: it has deleted its backup.
            self.release()
            signal.raise_signal(signal.SIGTERM)

    def end_after(self, error: Exception) -> None:
        """Heeds a SIGTERM that came before an error of `fit`. The program may catch the error, and would go on.

        Where the chief has ended as it was asked to, the error of the others is that they have lost it.
        """
        if not self._saves and self._is_last and isinstance(error, tf.errors.OpError):
            self.release()
            print("tfdist: the chief has got SIGTERM, saved the backup with this task, and ended: it ends, too", flush=True)
            sys.exit(EXIT_CODE)
        if self._saves and signal.SIGTERM in self._received | self._late:
            self.release()
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            print(f"tfdist: SIGTERM: no backup is saved, because fit has failed ({why}), and the program ends", flush=True)
            sys.exit(EXIT_CODE)

    def _report(self, received: set[int]) -> None:
        if signal.SIGTERM in received:
            self.release()
        _report(received, all([wait() for wait in self._waits]))

    def release(self) -> None:
        """Gives the signals back."""
        while self._earlier_handlers:
            signal.signal(*self._earlier_handlers.popitem())


def _report(received: set[int], is_saved: bool) -> None:
    """Says whether the backup is saved, and ends the program after SIGTERM."""
    ends = signal.SIGTERM in received
    saved = "the backup is saved" if is_saved else "the backup could not be saved"
    print(f"tfdist: {'SIGTERM' if ends else 'SIGUSR1'}: {saved}{', and the program ends' if ends else ''}", flush=True)
    if ends:
        sys.exit(EXIT_CODE)


def _is_frequent(callback: Any) -> bool:
    """Returns whether a callback is a `BackupAndRestore` that saves after steps instead of epochs."""
    return isinstance(callback, keras.callbacks.BackupAndRestore) and callback.save_freq != "epoch"


def _function_to_save(callback: Any) -> Callable[[int], bool | None] | None:
    if not isinstance(callback, keras.callbacks.BackupAndRestore):
        return getattr(callback, "save_on_signal", None)

    def save(batch: int) -> None:
        every, callback.save_freq = callback.save_freq, 1
        callback.on_train_batch_end(batch)
        callback.save_freq = every

    return save


# Replacements. The first parameter is the function that they replace.


def _fit(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    bound = inspect.signature(original).bind(model, *args, **kwargs)
    given = bound.arguments.get("callbacks")
    saver = SaveOnSignal(given, saves=bool(model.distribute_strategy.extended.should_checkpoint))
    _late.clear()
    if not saver.backups and not isinstance(given, keras.callbacks.CallbackList):
        return original(model, *args, **kwargs)
    bound.arguments["callbacks"] = with_callback(saver, model, given)  # In the place of one of an earlier call in that list.
    try:
        return original(*bound.args, **bound.kwargs)
    except Exception as error:
        saver.end_after(error)
        raise
    finally:
        saver.release()
