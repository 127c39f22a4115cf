"""How long a task may give no answer before the others count it as gone for good. Imports no TensorFlow.

A link that is cut says nothing: a task behind it looks like one that is stopped, or busy. After a cut of 30 s TCP may take as
long again to notice that the link is back, so the default is twice that.
"""

import os

from tfdist.errors import ClusterError

VARIABLE = "TFDIST_LOST_TIMEOUT"
"""The seconds. `tfdist run --lost_timeout` sets it for all tasks."""

DEFAULT_SECONDS = 60.0

CONNECTION_TIMES = 2.0
"""A connection is kept for this many times `lost_seconds`: after a cut of 30 s TCP tries again about 51 s after its begin."""


def lost_seconds() -> float:
    """Returns the seconds.

    Raises:
        ClusterError: if the variable holds something else than a number of at least 1.
    """
    text = os.environ.get(VARIABLE, "")
    try:
        seconds = float(text or DEFAULT_SECONDS)
    except ValueError:
        seconds = 0.0
    if not 1.0 <= seconds < 1e6:
        raise ClusterError(f"{VARIABLE}={text}: expected seconds, a number of at least 1")
    return seconds
