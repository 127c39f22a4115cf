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
        quota: the quota of processor time of its control group, in cores; None without one.
        quota_used: part of the quota that was used, by all processes of the group; None without a quota.
        held: part of the quota's periods in which the group was held, because it had used its time; None without a quota.
        quota_group: the control group of the quota. Tasks of a machine with the same one share the quota.
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
    cores_of_all: float | None = None
    quota: float | None = None
    quota_used: float | None = None
    held: float | None = None
    quota_group: str | None = None

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Use":
        """Returns the use. Raises TypeError, ValueError or KeyError for values that are none."""
        values_of_use: dict[str, Any] = {}
        for entry in fields(cls):
            if entry.default is None and values.get(entry.name) is None:
                continue
            if entry.name == "quota_group":
                values_of_use[entry.name] = str(values[entry.name])
                continue
            value = float(values[entry.name])
            if not math.isfinite(value):
                raise ValueError(f"{entry.name} is {value}")
            values_of_use[entry.name] = int(value) if entry.name == "cores" else value
        return cls(**values_of_use)

    @property
    def capacity(self) -> float:
        """Processor seconds per second that the task may use: its cores, or less with a smaller quota."""
        return self.cores if self.quota is None else min(self.cores, self.quota)

    @property
    def text(self) -> str:
        """`runs for 93 % of the time on 1.9 of 2 cores, sends for 40 % (1.2 MB/s)`."""
        cores = self.capacity
        plural, digits = "s" * (cores != 1), 1 if cores >= 1 else 2
        text = f"runs for {self.running:.0%} of the time on {self.processor:.{digits}f} of {cores:.3g} core{plural}"
        if self.quota is not None and self.held:
            text += f" (a quota, which held it in {self.held:.0%} of the periods)"
        return text if not self.sent else f"{text}, sends for {self.sending:.0%} ({self.sent / 1e6:.1f} MB/s)"
