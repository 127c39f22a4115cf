"""The folder that the chief and the evaluator share. There is no connection between them, so neither can hold up the other.

    BASE/tfdist_checkpoints/training.json                 the job, the run of the program and its status; touched every 5 s
    BASE/tfdist_checkpoints/.training.json.end            what takes its place at the end if the disk is full then
    BASE/tfdist_checkpoints/fit_1/fit.json                the first call of `fit`: its job, run, epochs, whether it has ended
    BASE/tfdist_checkpoints/fit_1/epoch_00003.weights.h5  weights and optimizer after 3 epochs
    BASE/tfdist_checkpoints/fit_1/final.weights.h5        weights and optimizer at the end of that `fit`
    BASE/evaluator/state.json                             the evaluations and their results

A job is a training to its end. It has several runs if the chief's program fails or is killed, and is started again.

BASE is the environment variable TFDIST_EVALUATOR_DIR, which the launcher sets, or else the job_dir of the cluster. Every file
appears complete: it is written under another name in the same folder and renamed.
"""

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfdist.cluster import Cluster
from tfdist.strategies.checkpoint import folder_lock

VARIABLE = "TFDIST_EVALUATOR_DIR"

LAUNCH_VARIABLE = "TFDIST_LAUNCH"
"""A name of the launch, which the launcher gives to all tasks: a training that finished under it is no earlier one."""

KEEP = 5
"""Checkpoints that the chief keeps, over all calls of `fit`: the default of `tf.train.CheckpointManager` and Estimators."""

CLOCK_STEP_NS = 1_000_000
"""How much later than the file before it a checkpoint is said to be written, if the clock says that it is older."""

RUNNING, FINISHED, FAILED = "running", "finished", "failed"

_EPOCH = re.compile(r"epoch_(\d+)\.weights\.h5")


@dataclass(frozen=True)
class Checkpoint:
    """A complete file of weights.

    Attributes:
        fit: the number of the call of `fit` that wrote it, from 1.
        epoch: the number of epochs done, from 1.
        written_ns: the time of writing, in nanoseconds of the file system's clock, and later than that of every file written
            before, even if that clock was set back; an earlier file of this name has another.
        path: the file.
    """

    fit: int
    epoch: int
    written_ns: int
    path: Path


class EvaluationFolder:
    """Reads and writes the files that the module describes. Reading a file that does not exist returns None."""

    def __init__(self, base: "str | os.PathLike[str]") -> None:
        self.base = Path(base).absolute()
        self._checkpoints = self.base / "tfdist_checkpoints"
        self._training = self._checkpoints / "training.json"
        self._prepared_end = self._checkpoints / ".training.json.end"

    @classmethod
    def of(cls, cluster: Cluster) -> "EvaluationFolder":
        """Returns the folder for `cluster`.

        Raises:
            ClusterError: if the description names no folder, or one that is not on a file system.
        """
        base = os.environ.get(VARIABLE) or cluster.job_dir
        if not base:
            raise cluster.source.error(
                "the chief and the evaluator share a folder, and the description names none; set job_dir on both "
                f"(--job_dir, or the environment variable {VARIABLE}) to a folder that both can reach"
            )
        if "://" in base:
            raise cluster.source.error(
                f"the chief and the evaluator cannot share {base}, where renaming a file is not atomic; set the environment "
                f"variable {VARIABLE} to a folder of a file system that both can reach"
            )
        return cls(base)

    # The evaluator's files.

    def own(self, index: int) -> Path:
        """Returns the folder of evaluator `index`, which no other task writes to."""
        return self.base / ("evaluator" if index == 0 else f"evaluator_{index}")

    def is_announced(self) -> bool:
        """Returns whether an evaluator has ever started in this folder."""
        return any(self.base.glob("evaluator*/state.json"))

    # The run of the chief's program.

    def lock(self, seconds: float = folder_lock.WAIT_SECONDS) -> None:
        """Keeps chiefs of other jobs out of this folder until the process ends.

        Raises:
            ClusterError: if one uses it now, and does not end within `seconds`.
        """
        content = "the checkpoints for the evaluator"
        folder_lock.lock(str(self._checkpoints), seconds, variable=VARIABLE, content=content, flag="--job_dir")

    def is_used(self) -> bool:
        """Returns whether a chief of another job uses this folder now."""
        return folder_lock.is_locked(str(self._checkpoints))

    def write_training(self, content: dict[str, Any]) -> None:
        """Writes a dict of the present `job`, the present `run` of the chief's program and its `status`."""
        write_json(self._training, {**content, "launch": os.environ.get(LAUNCH_VARIABLE)})

    def prepare_end(self, content: dict[str, Any]) -> None:
        """Writes the end of a training beforehand, for `write_prepared_end`."""
        write_json(self._prepared_end, {**content, "launch": os.environ.get(LAUNCH_VARIABLE)})

    def write_prepared_end(self) -> None:
        """Records the end of a training on a full disk, too: renaming a file takes no room."""
        os.replace(self._prepared_end, self._training)

    def forget_prepared_end(self) -> None:
        """Removes what `prepare_end` has written."""
        self._prepared_end.unlink(missing_ok=True)

    def touch_training(self) -> None:
        """Shows that the run goes on."""
        os.utime(self._training)

    def training(self) -> tuple[dict[str, Any], int] | None:
        """Returns what the chief has written last, and the time of its last touch in nanoseconds."""
        content = read_json(self._training)
        try:
            return None if content is None else (content, self._training.stat().st_mtime_ns)
        except OSError:
            return None

    def forget_training(self) -> None:
        """Forgets an earlier run; also its job, if that has finished."""
        content, _ = self.training() or ({}, 0)
        if content.get("status") in (None, FINISHED):
            self._training.unlink(missing_ok=True)
        else:
            self.write_training({"run": None, "job": content.get("job"), "status": FAILED})

    # Calls of `fit`.

    def _fit(self, fit: int) -> Path:
        return self._checkpoints / f"fit_{fit}"

    def write_fit(self, fit: int, content: dict[str, Any]) -> None:
        """Writes where call `fit` stands.

        Args:
            fit: the number of the call, from 1.
            content: a dict of `job`, `run`, `ended`, `first` and `last` (epochs of the run, None before the first), `since`
                (the first epoch of earlier runs of the job, or None), `later_than` (the time of the last checkpoint of an
                earlier job in its folder, in nanoseconds), `not_written` (the epochs whose checkpoints could not be written),
                and `reason` (the last cause); at the end `final_not_written`, why the final weights could not be written, or
                None.
        """
        write_json(self._fit(fit) / "fit.json", content)

    def fit(self, fit: int) -> dict[str, Any] | None:
        """Returns what the chief has written last about that call."""
        content: dict[str, Any] | None = read_json(self._fit(fit) / "fit.json")
        return content

    # Checkpoints.

    def save(self, fit: int, epoch: int | None, save: Callable[[str], Any]) -> None:
        """Calls `save` with the path of a new file and deletes the files before the last `KEEP`. Epoch None: the final one."""
        name = "final" if epoch is None else f"epoch_{epoch:05d}"
        folder = self._fit(fit)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = folder / f".{name}.weights.h5"  # A chief that was killed has left it. One alone writes here.
        try:
            save(str(partial))
            pattern = "fit_*/final.weights.h5" if epoch is None else "fit_*/epoch_*.weights.h5"
            earlier = sorted(((_written(path) or 0, path) for path in self._checkpoints.glob(pattern)), reverse=True)
            path = folder / f"{name}.weights.h5"
            if earlier and (_written(partial) or 0) <= earlier[0][0]:  # The clock was set back. The order has to stay.
                os.utime(partial, ns=(earlier[0][0] + CLOCK_STEP_NS,) * 2)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
        for _, each in [other for other in earlier if other[1] != path][KEEP - 1 :]:
            each.unlink(missing_ok=True)

    def checkpoints(self, fit: int) -> list[Checkpoint]:
        """Returns the checkpoints of one call that exist now, in the order in which they were written."""
        found = []
        for path in self._fit(fit).glob("epoch_*.weights.h5"):
            match, written = _EPOCH.fullmatch(path.name), _written(path)
            if match and written is not None:
                found.append(Checkpoint(fit, int(match[1]), written, path))
        return sorted(found, key=lambda checkpoint: (checkpoint.written_ns, checkpoint.epoch))

    def final(self, fit: int) -> Path:
        """Returns the path of the file with the weights at the end of that call."""
        return self._fit(fit) / "final.weights.h5"


def _written(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None  # Deleted meanwhile.


def write_json(path: Path, content: Any) -> None:
    """Replaces a file by one with this content, atomically; makes its folder."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(content), encoding="utf-8")
    os.replace(partial, path)


def read_json(path: Path) -> Any:
    """Returns the content of a file of `write_json`; None if it does not exist."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
