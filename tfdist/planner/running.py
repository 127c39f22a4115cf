"""`Running`: a job that trains and what its tasks use. `Binding`: what binds it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tfdist.planner.measurement import Variable
from tfdist.planner.use import Use

APART = 0.2
"""A worker that runs for so much more of the time than the others is the one for which they wait."""

WORTH = 1.1
"""Less than this many times the speed is not worth saying."""


@dataclass(frozen=True)
class Running:
    """A job that trains.

    Attributes:
        strategy: its strategy.
        uses: what its tasks use, by `job:index`; those that are not known are missing.
        tasks: `job:index` of all tasks that train or serve.
        hosts: the host of each task.
        variables: the trainable variables; empty if not known.
        is_together: whether all workers make each step together.
    """

    strategy: str
    uses: Mapping[str, Use]
    tasks: Sequence[str]
    hosts: Mapping[str, str] = field(default_factory=dict)
    variables: Sequence[Variable] = ()
    is_together: bool = False

    @property
    def workers(self) -> list[str]:
        """The tasks that compute, of those whose use is known."""
        return [name for name in self.uses if name.startswith("worker:")] or [
            name for name in self.uses if not name.startswith(("ps:", "evaluator:"))
        ]


@dataclass(frozen=True)
class Binding:
    """What binds.

    Attributes:
        resource: what it is: `link of ps 1`; None if none is busy enough, or not known.
        utilization: part of the time for which it is busy, from 0 to 1; None without a resource.
        better: what would train faster: `3 ps`; None if nothing that can be computed.
        times: how many times the speed that would give.
        why: the rest of a sentence: what is known besides, or why nothing is.
        sentence: the beginning of that sentence, where it is not `RESOURCE, busy for 98% of the time`.
        unknown: what is not known, in words.
    """

    resource: str | None
    utilization: float | None = None
    better: str | None = None
    times: float | None = None
    why: str = ""
    unknown: tuple[str, ...] = ()
    sentence: str = ""

    @property
    def text(self) -> str:
        """A sentence."""
        if self.resource is None:
            text = self.why
        else:
            text = self.sentence or f"{self.resource}, busy for {self.utilization:.0%} of the time"
            text += f" ({self.why})" if self.why else ""
            if self.better is not None:
                text += f": {self.better} would give {self.times:.1f} times the speed"
        return "; ".join([text, *(f"not known: {each}" for each in self.unknown)])

    def as_json(self) -> dict[str, Any]:
        """Returns the attributes but `sentence`, and `text`."""
        values = asdict(self) | {"unknown": list(self.unknown), "text": self.text}
        return {name: value for name, value in values.items() if name != "sentence"}


def named(names: Sequence[str]) -> list[str]:
    """Returns tasks in words: `ps 1`, `the chief`."""
    return [name.replace(":", " ") if not name.startswith("chief:") else "the chief" for name in names]


def listed(names: Sequence[str]) -> str:
    """Returns several tasks as a list in words."""
    words = named(names)
    if len(words) > 4:
        words = [*words[:3], f"{len(words) - 3} others"]
    return f"{', '.join(words[:-1])} and {words[-1]}"
