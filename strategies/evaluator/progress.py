"""Where the evaluator and the training stand: what is evaluated, kept over restarts, and what the chief has written."""

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfdist.strategies.evaluator.folder import (
    FAILED,
    FINISHED,
    KEEP,
    LAUNCH_VARIABLE,
    VARIABLE,
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

    def evaluated(self, fit: int, job: str | None) -> list[dict[str, Any]]:
        """Returns the evaluations of a call of `fit` in a job, of all its runs: dicts of `epoch`, `logs`, `run` and more."""
        return [entry for entry in self._content["evaluated"] if (entry["fit"], entry.get("job")) == (fit, job)]

    def bests(self, fit: int, job: str | None) -> list[float | None]:
        """Returns the best value of each ModelCheckpoint in a job's call of `fit`; nothing before the first evaluation."""
        best = self._content["best"].get(str(fit), {})
        return list(best["values"]) if best.get("job", "") == job else []

    def add(
        self,
        checkpoint: Checkpoint,
        run: str | None,
        job: str | None,
        iterations: int | None,
        logs: dict[str, float],
        bests: list[float | None],
    ) -> None:
        """Records an evaluation. `bests` has the best value of each ModelCheckpoint."""
        self._content["evaluated"].append(
            {
                "fit": checkpoint.fit,
                "epoch": checkpoint.epoch,
                "written_ns": checkpoint.written_ns,
                "run": run,
                "job": job,
                "iterations": iterations,
                "logs": logs,
            }
        )
        self._content["best"][str(checkpoint.fit)] = {"job": job, "values": bests}
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
        launch = os.environ.get(LAUNCH_VARIABLE)
        is_of_this_launch = status == FINISHED and launch is not None and content.get("launch") == launch
        # A run whose end this evaluator has reached belongs to an earlier job; the chief of this job has not begun yet. But an
        # evaluator that is killed while it ends starts again in the job whose end it has reached.
        self.run = None if over and run == self._state.done and not is_of_this_launch else run
        if self.run is None:
            return self._without_chief(status if run else None)
        state = self._folder.fit(fit) or {}
        following = self._folder.fit(fit + 1) or {}
        if (state.get("run") == run and state.get("ended")) or following.get("run") == run or status == FINISHED:
            return Status(has_ended=True)
        if status == FAILED:
            return Status(why_not_wait="the chief's program failed")
        silent = time.monotonic() - self._last_change
        limit = CHIEF_GONE_SECONDS if self._is_alive else max(CHIEF_GONE_SECONDS, self._start_timeout)
        return Status(why_not_wait=f"the chief's program has been gone for {limit:.0f} s" if silent > limit else None)

    def job(self, fit: int) -> str | None:
        """Returns the job of the checkpoints of a call of `fit`; None before the chief begins it."""
        job: str | None = (self._folder.fit(fit) or {}).get("job")
        return job

    def checkpoints(self, fit: int) -> list[Checkpoint]:
        """Returns the checkpoints of a call of `fit` in the present job, in order. There may be some of an earlier job, too."""
        content, _ = self._folder.training() or ({}, 0)
        state = self._folder.fit(fit) or {}
        if state.get("job") is None or state["job"] != content.get("job"):
            return []
        return [each for each in self._folder.checkpoints(fit) if each.written_ns > state.get("later_than", 0)]

    def history(self, fit: int) -> dict[str, list[Any]]:
        """Returns the training metrics of all epochs of the chief's call of `fit`, by name; none if it raised."""
        history: dict[str, list[Any]] = (self._folder.fit(fit) or {}).get("history", {})
        return history

    def missed(self, fit: int) -> dict[int, str]:
        """Returns the epochs of a call of `fit` without a checkpoint to evaluate, each with the reason, as a sentence.

        Those before the first one of the present run are of earlier runs of its job, and so are their evaluations.
        """
        state = self._folder.fit(fit) or {}
        if state.get("run") != self.run or state.get("last") is None:
            return {}
        first, since = state["first"], state.get("since") or state["first"]
        evaluated = self._state.evaluated(fit, state["job"])
        have = {entry["epoch"] for entry in evaluated if entry["run"] == self.run or entry["epoch"] < first}
        have |= {checkpoint.epoch for checkpoint in self.checkpoints(fit)}
        deleted, not_written = "deleted before it could be evaluated", f"the chief could not write it ({state.get('reason')})"
        epochs = (epoch for epoch in range(min(first, since), state["last"] + 1) if epoch not in have)
        return {epoch: not_written if epoch in state.get("not_written", ()) else deleted for epoch in epochs}

    def final(self, fit: int) -> Path | None:
        """Returns the file of the weights with which call `fit` returned.

        None if the call raised, or if so many calls have followed that the chief has deleted the file.

        Raises:
            OSError: if the chief could not write the file, or if somebody else has deleted it.
        """
        path, state = self._folder.final(fit), self._folder.fit(fit) or {}
        reason, is_sure = state.get("final_not_written"), True
        if reason is None and not state.get("ended"):
            content, _ = self._folder.training() or ({}, 0)
            if content.get("is_complete", True):
                return None  # There may be that of an earlier job.
            reason, is_sure = "nor how the training ended", False
        if reason is None and path.exists():
            return path
        if reason is None and self._folder.final(fit + KEEP).exists():
            return None
        cause = f"the chief could not write it ({reason})" if reason else "it was deleted"
        there = f"{'is' if is_sure else 'may be'} of an earlier training" if path.exists() else "does not exist"
        usage = shutil.disk_usage(self._folder.base)
        raise OSError(
            f"fit has no trained weights to return: {path} {there}, {cause}. The disk of {self._folder.base} has "
            f"{usage.free / 1e9:.2f} of {usage.total / 1e9:.2f} GB free; make room there, or name a folder of another disk "
            f"with --job_dir or {VARIABLE}"
        )

    def done(self) -> None:
        """Records that the evaluator has reached the end of the present run."""
        if self.run is not None:
            self._state.done = self.run

    def _without_chief(self, earlier: str | None) -> Status:
        if time.monotonic() - self._last_change <= self._start_timeout:
            return Status()
        if earlier == FINISHED:
            return Status(has_ended=True)  # Everything of that training is evaluated.
        if earlier == FAILED:
            return Status(why_not_wait=f"the chief's program failed, and was not started again for {self._start_timeout:.0f} s")
        return Status(why_not_wait=f"no sign of the chief within {self._start_timeout:.0f} s in {self._folder.base}")
