"""The errors that a program may catch, and `Source`, which makes the message of a `ClusterError`.

Only `TaskLostError` is elsewhere (strategies/data_parallel/lost_tasks.py), because it is one of TensorFlow's.
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from tfdist.messages import printable, without_secrets


class ClusterError(ValueError):
    """A cluster description that cannot be used.

    The message is one line: the place of the fault (file and line, variable or field), the fault, and what is expected.
    Commands print it and exit with 2. Nothing has been started when it is raised.
    """


class UnsupportedVersionError(ImportError):
    """The installed TensorFlow or Keras cannot be used: it is too old, or lacks a private name that tfdist builds on.

    The message is one sentence: the version, the reason, and the command that installs a version that works.
    """


class StartTimeoutError(TimeoutError):
    """Tasks did not start in time. The message names them."""


class JobLostTaskError(RuntimeError):
    """The job has lost tasks without which the training cannot go on. The message names them."""


class WorkersGoneError(JobLostTaskError):
    """In every worker group some worker has stopped answering while executions were in flight, or no group runs any."""


class ServersGoneError(JobLostTaskError):
    """A ps does not answer any more, so that its part of the parameters cannot be reached."""


class DifferentCallsError(RuntimeError):
    """The tasks of a strategy whose tasks train together make different calls. The message names them."""


class UnstatedError(ClusterError):
    """A command line or script that leaves the number of processes to the system on which it runs, or that starts only some of
    them. `tasks` are those of the job in which it runs, `per_node` the processes on each node, if it says so."""

    def __init__(self, *args: object, tasks: int = 1, per_node: int = 0) -> None:
        super().__init__(*args)
        self.tasks, self.per_node = tasks, per_node


@dataclass(frozen=True)
class Source:
    """The source of a description.

    Attributes:
        dialect: name of its dialect, or of the form in which it was given (`flags`, `dict`, `python`, ...).
        name: the file, variable, flag or command line that contains it, as messages show it: printable and without secrets.
    """

    dialect: str
    name: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", printable(without_secrets(self.name)))

    def error(self, message: str, *, field: str = "", line: int | None = None) -> ClusterError:
        """Returns (does not raise) a `ClusterError` whose message starts with this source, the line and the field.

        What the message quotes is made printable, and secrets in it become `***`.
        """
        where = self.name if line is None else f"{self.name}:{line}"
        text = ": ".join(part for part in (where, field, message) if part)
        return ClusterError(printable(without_secrets(text)))


def nearest(name: object, known: Iterable[str], *, otherwise: str = "") -> str:
    """Returns `"; did you mean X?"` for the known name closest to `name`, or `otherwise` if none is close."""
    # Only text can resemble a name. str() of a caller's object, or of an int of 5000 digits, may raise.
    matches = difflib.get_close_matches(name[:100], list(known), n=1, cutoff=0.6) if isinstance(name, str) else []
    return f"; did you mean {matches[0]}?" if matches else otherwise
