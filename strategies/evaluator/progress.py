"""Where the evaluator and the training stand: what is evaluated, kept over restarts, and what the chief has written."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfdist.strategies.evaluator.folder import (
    FAILED,
    FINISHED,
    Checkpoint,
    EvaluationFolder,
    read_json,
    write_json,
)

CHIEF_GONE_SECONDS = 120.0
"""The evaluator gives up after this long without a touch of the chief's program (one each 5 s)."""


class Progress:
    """The file `state.json` of an evaluator. It is written last in each evaluation, so that no evaluation is lost."""

    def __init__(self, path: Path) -> None:
        """Reads the file, or announces the evaluator by writing an empty one."""
        self._path = path
        self._content: dict[str, Any] = {"evaluated": [], "best": {}, "done": None, **(read_json(path) or {})}
        write_json(path, self._content)

    def not_evaluated(self, checkpoints: list[Checkpoint]) -> list[Checkpoint]:
        """Returns those of `checkpoints` that have not been evaluated, in order."""
        done = {(entry["fit"], entry["epoch"], entry["written_ns"]) for entry in self._content["evaluated"]}
        return [c for c in checkpoints if (c.fit, c.epoch, c.written_ns) not in done]

    def evaluated(self, fit: int, run: str | None) -> list[dict[str, Any]]:
        """Returns the evaluations of a call of `fit` in this job: dicts of `epoch`, `logs`, `run` and more.

        A job has several runs if the chief was lost and started again. A run whose end this evaluator has reached belongs to
        another job.

        Args:
            fit: the number of the call, from 1.
            run: the present run of the chief's program.
        """
        return [e for e in self._content["evaluated"] if e["fit"] == fit and self._is_of_this_job(e["run"], run)]

    def best(self, fit: int, position: int, run: str | None) -> float | None:
        """Returns the best value of the ModelCheckpoint number `position` in this job's call of `fit`; None without one."""
        best = self._content["best"].get(str(fit))
        if best is None or not self._is_of_this_job(best["run"], run) or position >= len(best["values"]):
            return None
        value: float | None = best["values"][position]
        return value

    def _is_of_this_job(self, run: str | None, present: str | None) -> bool:
        return run == present or run != self.done

    def add(
        self, checkpoint: Checkpoint, run: str | None, iterations: int | None, logs: dict[str, float], bests: list[float | None]
    ) -> None:
        """Records an evaluation."""
        self._content["evaluated"].append(
            {
                "fit": checkpoint.fit,
                "epoch": checkpoint.epoch,
                "written_ns": checkpoint.written_ns,
                "run": run,
                "iterations": iterations,
                "logs": logs,
            }
        )
        self._content["best"][str(checkpoint.fit)] = {"run": run, "values": bests}
        write_json(self._path, self._content)

    @property
    def done(self) -> str | None:
        """The last run of the chief's program whose end this evaluator has reached."""
        done: str | None = self._content["done"]
        return done

    @done.setter
    def done(self, run: str) -> None:
        self._content["done"] = run
        write_json(self._path, self._content)


@dataclass(frozen=True)
class Status:
    """Where a call of `fit` on the chief stands.

    Attributes:
        has_ended: whether the call has returned, so that it writes no further checkpoint.
        why_not_wait: a sentence with another reason to stop waiting, or None.
    """

    has_ended: bool = False
    why_not_wait: str | None = None


class Training:
    """The chief's program, as the files show it."""

    def __init__(self, folder: EvaluationFolder, state: Progress, start_timeout: float) -> None:
        """Begins to wait; `start_timeout` is in seconds, until the chief has to write its first file."""
        self._folder = folder
        self._state = state
        self._start_timeout = start_timeout
        self._last_change = time.monotonic()
        self._last: tuple[str, int] | None = None
        self._is_alive = False
        self.run: str | None = None
        """The present run of the chief's program; None before it begins."""

    def look(self, fit: int) -> Status:
        """Returns where the chief stands with its call number `fit`, from the files."""
        found = self._folder.training()
        content, touched = found or ({}, 0)
        run, status = content.get("run"), content.get("status")
        if run is not None and (run, touched) != self._last:
            self._is_alive = self._last is not None
            self._last, self._last_change = (run, touched), time.monotonic()
        over = status in (FINISHED, FAILED)
        # A run whose end this evaluator has reached belongs to an earlier job; the chief of this job has not begun yet.
        self.run = None if over and run == self._state.done else run
        if self.run is None:
            return self._without_chief(has_run_before=run is not None)
        state = self._folder.fit(fit) or {}
        following = self._folder.fit(fit + 1) or {}
        if (state.get("run") == run and state.get("ended")) or following.get("run") == run or status == FINISHED:
            return Status(has_ended=True)
        if status == FAILED:
            return Status(why_not_wait="the chief's program failed")
        silent = time.monotonic() - self._last_change
        limit = CHIEF_GONE_SECONDS if self._is_alive else max(CHIEF_GONE_SECONDS, self._start_timeout)
        return Status(why_not_wait=f"the chief's program has been gone for {limit:.0f} s" if silent > limit else None)

    def missed(self, fit: int) -> list[int]:
        """Returns the epochs of the present run whose checkpoints were deleted before they were evaluated."""
        state = self._folder.fit(fit) or {}
        if state.get("run") != self.run or state.get("last") is None:
            return []
        have = {entry["epoch"] for entry in self._state.evaluated(fit, self.run) if entry["run"] == self.run}
        have |= {checkpoint.epoch for checkpoint in self._folder.checkpoints(fit)}
        return [epoch for epoch in range(state["first"], state["last"] + 1) if epoch not in have]

    def done(self) -> None:
        """Records that the evaluator has reached the end of the present run."""
        if self.run is not None:
            self._state.done = self.run

    def _without_chief(self, has_run_before: bool) -> Status:
        if time.monotonic() - self._last_change <= self._start_timeout:
            return Status()
        if has_run_before:
            return Status(has_ended=True)  # Everything of that training is evaluated.
        return Status(why_not_wait=f"no sign of the chief within {self._start_timeout:.0f} s in {self._folder.base}")
