"""`Use`: what a task of a running job uses of its processor and its link, as its machine has measured it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Use:
    """What a task has used in the last seconds.

    Attributes:
        seconds: how long that was.
        processor: processor seconds per second, of all its threads.
        waited: seconds per second for which its threads waited for a core that others had.
        running: part of the time, from 0 to 1, for which at least one thread ran or waited for a core.
        cores: cores that the task may use.
        machine: part of the cores of its machine that was in use, by all programs; from 0 to 1.
        sending: part of the time for which data for other machines waited to be sent, or to be acknowledged; None if not known.
        sent: bytes per second to other machines; None if not known.
        received: bytes per second from other machines; None if not known.
        cores_of_all: cores that the tasks of its machine may use, all together; None if not known.
    """

    seconds: float
    processor: float
    waited: float
    running: float
    cores: int
    machine: float
    sending: float | None = None
    sent: float | None = None
    received: float | None = None
    cores_of_all: int | None = None

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Use":
        """Returns the use. Raises TypeError, ValueError or KeyError for values that are none."""
        found: dict[str, Any] = {}
        for each in fields(cls):
            if each.default is None and values.get(each.name) is None:
                continue
            value = float(values[each.name])
            if not math.isfinite(value):
                raise ValueError(f"{each.name} is {value}")
            found[each.name] = int(value) if each.name.startswith("cores") else value
        return cls(**found)

    @property
    def text(self) -> str:
        """`runs for 93 % of the time on 1.9 of 2 cores, sends for 40 % (1.2 MB/s)`."""
        text = f"runs for {self.running:.0%} of the time on {self.processor:.1f} of {self.cores} core{'s' * (self.cores > 1)}"
        return text if not self.sent else f"{text}, sends for {self.sending:.0%} ({self.sent / 1e6:.1f} MB/s)"
