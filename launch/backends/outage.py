"""`Outage`: how long who follows a job waits for a system that gives no answer.

The API server of Kubernetes and the controller of Slurm are updated and started again while jobs run.
"""

import time

from tfdist.launch.backends.interface import NoAnswerError

OUTAGE_SECONDS = 600.0
"""How long a system may give no answer before who follows a job gives up."""


class Outage:
    """Takes note of the answers of a system, and of those that it does not give."""

    def __init__(self) -> None:
        self._began: float | None = None

    def without_answer(self, error: NoAnswerError) -> str:
        """Notes that a question was not answered; returns a sentence to show, the first time, else an empty text.

        Raises:
            NoAnswerError: `error`, if there was no answer for `OUTAGE_SECONDS`.
        """
        if self._began is None:
            self._began = time.monotonic()
            return f"{error}; the job may go on meanwhile, and is asked for again, for up to {OUTAGE_SECONDS:.0f} s"
        if time.monotonic() - self._began > OUTAGE_SECONDS:
            raise error
        return ""

    def answered(self) -> str:
        """Notes an answer; returns a sentence to show, if there was none before, else an empty text."""
        if self._began is None:
            return ""
        self._began = None
        return "there are answers again"
