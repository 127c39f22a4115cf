"""`Progress`: how far the training is, as the task that reports has written it (strategies/runtime/fit_progress.py)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

SUFFIX = ".progress"
STEPS_SUFFIX = ".steps"
"""The suffix of the file with the number of steps, which only `--fail_at` reads (fault_injection.py)."""

ENDED_SUFFIX = ".ended"
"""The suffix of a file that says that the program has finished, while its process still ends (runtime/run_summary.py)."""


@dataclass(frozen=True)
class Progress:
    """How far `fit` is.

    Attributes:
        phase: "fit", "evaluate" (its validation), or "idle" after a `fit`.
        epoch: number of the epoch, from 1.
        epochs: number of epochs.
        step: steps of this epoch that are done.
        steps: steps of an epoch; None if not known.
        batches: batches of this `fit` that are done, those of its validation too.
        steps_per_second: speed; None if not known.
        examples_per_second: speed; None if not known, as in the first epoch.
        seconds_left: until the end of this `fit`; None if not known.
        metrics: those of the last epoch.
        exchange: under hogwild `period`, `delay`, `compression` and `bytes_per_second`.
        parameters: rows and bytes of each of the largest trainable variables; the others are one entry.
    """

    phase: str = "idle"
    epoch: int = 0
    epochs: int = 0
    step: int = 0
    steps: int | None = None
    batches: int = 0
    steps_per_second: float | None = None
    examples_per_second: float | None = None
    seconds_left: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    exchange: Mapping[str, Any] | None = None
    parameters: Sequence[tuple[int, int]] = ()

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Progress":
        """Returns the progress. Names that this version does not know are ignored."""
        known = {each.name for each in fields(cls)}
        found = {name: value for name, value in values.items() if name in known}
        parameters = tuple((int(rows), int(bytes_)) for rows, bytes_ in values.get("parameters", ()))
        return cls(**found | {"parameters": parameters})

    @property
    def done(self) -> tuple[int, int, str]:
        """What changes whenever a step is done."""
        return self.epoch, self.batches, self.phase

    @property
    def fraction(self) -> float | None:
        """The part of the steps of this `fit` that is done, from 0 to 1; None if not known."""
        if not self.steps or not self.epochs:
            return None
        return min(1.0, (max(0, self.epoch - 1) + min(1.0, self.step / self.steps)) / self.epochs)

    @property
    def step_text(self) -> str:
        """`130/937`, or `130` if the number of steps is not known."""
        return f"{self.step}/{self.steps}" if self.steps else str(self.step)

    @property
    def speed_text(self) -> str:
        """`1234 examples/s`, else `12.5 steps/s`; empty if not known."""
        if self.examples_per_second:
            return f"{_number(self.examples_per_second)} examples/s"
        return f"{_number(self.steps_per_second)} steps/s" if self.steps_per_second else ""

    def describe(self) -> str:
        """Returns one line: `epoch 2/5, step 130/937, 1234 examples/s, 0:00:41 left`."""
        validation = ", validation" if self.phase == "evaluate" else ""
        parts = [f"epoch {self.epoch}/{self.epochs}, step {self.step_text}{validation}", self.speed_text]
        if self.seconds_left is not None and self.phase != "idle":
            parts.append(f"{duration(self.seconds_left)} left")
        return ", ".join(part for part in parts if part)


def path_of(report: Path) -> Path:
    """Returns the path of the progress of a task that writes its report to `report`."""
    return Path(f"{report}{SUFFIX}")


def read(report: Path) -> Progress | None:
    """Returns the progress that a task has written beside its report; None if there is none."""
    try:
        values = json.loads(path_of(report).read_text(encoding="utf-8"), parse_constant=lambda _: None)
        return Progress.from_json(values)
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def has_ended(report: Path) -> bool:
    """Returns whether the program that writes this report has finished."""
    return Path(f"{report}{ENDED_SUFFIX}").exists()


def forget(report: Path) -> None:
    """Removes what an earlier attempt has written beside its report."""
    for suffix in (SUFFIX, STEPS_SUFFIX, ENDED_SUFFIX):
        try:
            Path(f"{report}{suffix}").unlink(missing_ok=True)
        except OSError:
            pass  # It is then taken for that of this attempt, until there is another.


def duration(seconds: float) -> str:
    """Returns `0:01:23`."""
    full_seconds = int(seconds)
    return f"{full_seconds // 3600}:{full_seconds // 60 % 60:02}:{full_seconds % 60:02}"


def size(count: float) -> str:
    """Returns a number of bytes: `512 MB`, `3.4 GB`."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.1f} {unit}" if count < 10 and unit != "B" else f"{count:.0f} {unit}"
        count /= 1000
    raise AssertionError


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"
