"""`Watchdog`: notices that nothing was heard of the training for too long: no output, or no step."""

from tfdist.launch.jobs.running_time import RunningTime


class Watchdog:
    """Counts the seconds since something was last heard."""

    def __init__(self, timeout: float | None) -> None:
        """Begins to count. `timeout` is the limit in seconds; None for none."""
        self._timeout = timeout
        self._clock = RunningTime()
        self._heard_at = self._clock()

    @property
    def silent(self) -> float:
        """Seconds since something was last heard."""
        return self._clock() - self._heard_at

    def heard(self) -> None:
        """Starts the count again."""
        self._heard_at = self._clock()

    def tick(self) -> bool:
        """Counts on; returns whether the limit is exceeded. Call it several times a second."""
        silent = self.silent
        return self._timeout is not None and silent > self._timeout
