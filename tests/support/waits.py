"""Waits of tests, each with a limit."""

import time


def wait_until(condition, seconds=60.0):
    """Waits until `condition()` is true, and returns its value. Fails after so many seconds."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)
    return value
