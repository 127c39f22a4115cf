"""`Clock`: the time of a rendezvous, which tests replace."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Clock:
    """The time, and the way to wait.

    Attributes:
        now: returns seconds that only grow.
        sleep: waits for a number of seconds.
    """

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


SYSTEM_CLOCK = Clock()
