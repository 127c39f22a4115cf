"""SIGUSR1, which asks for a backup, outside of `fit`: there is nothing new to save, and the program goes on."""

import os
import signal
import threading
from typing import Any


def outlive() -> None:
    """Keeps the signal from ending a program with a backup, unless it handles it itself. In `fit` preemption.py heeds it."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL:
        signal.signal(signal.SIGUSR1, has_nothing_to_save)  # Programs that this one starts would inherit SIG_IGN.


def has_nothing_to_save(number: int, frame: Any) -> None:
    """Says so."""
    os.write(2, b"tfdist: SIGUSR1 outside of fit: there is nothing new to save\n")  # `print` may be what it interrupts.
