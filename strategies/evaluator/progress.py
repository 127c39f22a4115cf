"""What an evaluator knows: what it has evaluated, kept over restarts, and how the training is getting on."""

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
"""After this long without a sign of life of the chief's program (one each 5 s) the evaluator gives up."""


class Progress:
    """The file `state.json` of an evaluator. Written after everything else that belongs to an evaluation: none is lost."""

    def __init__(self, path: Path) -> None:
        """Reads the file, or announces the evaluator by writing an empty one."""
        self._path = path
        self._content: dict[str, Any] = {"evaluated": [], "best": {}, "done": None, **(read_json(path) or {})}
        write_json(path, self._content)

    def not_evaluated(self, checkpoints: list[Checkpoint]) -> list[Checkpoint]:
        """Those of `checkpoints` still to be evaluated, in order."""
        done = {(entry["fit"], entry["epoch"], entry["written_ns"]) for entry in self._content["evaluated"]}
        return [c for c in checkpoints if (c.fit, c.epoch, c.written_ns) not in done]

    def evaluated(self, fit: int, run: str | None) -> list[dict[str, Any]]:
        """What was evaluated of a call of `fit` in this job, whose present run is `run`: `epoch`, `logs`, `run` and more.

        A job may have several runs, when the chief was lost and started again. A run that was seen to its end was another job.
        """
        return [e for e in self._content["evaluated"] if e["fit"] == fit and self._is_of_this_job(e["run"], run)]

    def best(self, fit: int, position: int, run: str | None) -> float | None:
        """The best value that the ModelCheckpoint number `position` of that call of `fit` had seen in this job."""
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
        """Remembers an evaluation."""
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
        """The run of the chief's program that this evaluator has seen to its end."""
        done: str | None = self._content["done"]
        return done

    @done.setter
    def done(self, run: str) -> None:
        self._content["done"] = run
        write_json(self._path, self._content)


@dataclass(frozen=True)
class Status:
    """Where a call of `fit` stands.

    Attributes:
        has_ended: whether it has, so that no further checkpoint of it will come.
        why_not_wait: a sentence, when waiting for one is no use for another reason.
    """

    has_ended: bool = False
    why_not_wait: str | None = None


class Training:
    """The chief's program as the evaluator sees it through the files."""

    def __init__(self, folder: EvaluationFolder, state: Progress, start_timeout: float) -> None:
        """`start_timeout`: seconds until the first sign of life of the chief."""
        self._folder = folder
        self._state = state
        self._start_timeout = start_timeout
        self._last_change = time.monotonic()
        self._last: tuple[str, int] | None = None
        self._seen_alive = False
        self.run: str | None = None
        """The present run of the chief's program, None as long as it has not begun."""

    def look(self, fit: int) -> Status:
        """Reads where the chief stands with its call number `fit`."""
        found = self._folder.training()
        content, touched = found or ({}, 0)
        run, status = content.get("run"), content.get("status")
        if run is not None and (run, touched) != self._last:
            self._seen_alive = self._last is not None
            self._last, self._last_change = (run, touched), time.monotonic()
        over = status in (FINISHED, FAILED)
        # A program that this evaluator has seen to its end is of a job before this one, whose chief has not begun yet.
        self.run = None if over and run == self._state.done else run
        if self.run is None:
            return self._without_chief(has_been_here=run is not None)
        state = self._folder.fit(fit) or {}
        following = self._folder.fit(fit + 1) or {}
        if (state.get("run") == run and state.get("ended")) or following.get("run") == run or status == FINISHED:
            return Status(has_ended=True)
        if status == FAILED:
            return Status(why_not_wait="the chief's program failed")
        silent = time.monotonic() - self._last_change
        limit = CHIEF_GONE_SECONDS if self._seen_alive else max(CHIEF_GONE_SECONDS, self._start_timeout)
        return Status(why_not_wait=f"the chief's program has been gone for {limit:.0f} s" if silent > limit else None)

    def missed(self, fit: int) -> list[int]:
        """Epochs of the present run whose checkpoints are gone without having been evaluated."""
        state = self._folder.fit(fit) or {}
        if state.get("run") != self.run or state.get("last") is None:
            return []
        have = {entry["epoch"] for entry in self._state.evaluated(fit, self.run) if entry["run"] == self.run}
        have |= {checkpoint.epoch for checkpoint in self._folder.checkpoints(fit)}
        return [epoch for epoch in range(state["first"], state["last"] + 1) if epoch not in have]

    def done(self) -> None:
        """Remembers that the evaluator's program has ended with the present run."""
        if self.run is not None:
            self._state.done = self.run

    def _without_chief(self, has_been_here: bool) -> Status:
        if time.monotonic() - self._last_change <= self._start_timeout:
            return Status()
        if has_been_here:
            return Status(has_ended=True)  # Everything of that training is evaluated.
        return Status(why_not_wait=f"no sign of the chief within {self._start_timeout:.0f} s in {self._folder.base}")
