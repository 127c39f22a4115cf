"""The folder in which the chief and the evaluator meet: they share files and no connection, so neither can hold up the other.

    BASE/tfdist_checkpoints/training.json                 which run of the program, whether it runs; touched every 5 s
    BASE/tfdist_checkpoints/fit_1/fit.json                of the first call of `fit`: run, epochs, whether it ended
    BASE/tfdist_checkpoints/fit_1/epoch_00003.weights.h5  weights and optimizer after 3 epochs
    BASE/tfdist_checkpoints/fit_1/final.weights.h5        the same when that `fit` returned
    BASE/evaluator/state.json                             what the evaluator has evaluated, and with what result

BASE is the variable TFDIST_EVALUATOR_DIR, which the launcher sets, else the job_dir of the cluster. Every file appears
complete: it is written under another name in the same folder and renamed.
"""

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfdist.cluster import Cluster

VARIABLE = "TFDIST_EVALUATOR_DIR"

KEEP = 5
"""Checkpoints that the chief keeps, over all calls of `fit`, as many as `tf.train.CheckpointManager` and Estimators do."""

RUNNING, FINISHED, FAILED = "running", "finished", "failed"

_EPOCH = re.compile(r"epoch_(\d+)\.weights\.h5")


@dataclass(frozen=True)
class Checkpoint:
    """A complete file of weights.

    Attributes:
        fit: which call of `fit` wrote it, from 1.
        epoch: epochs done, from 1.
        written_ns: when, in nanoseconds of the file system's clock; tells it from an earlier file of this name.
        path: the file.
    """

    fit: int
    epoch: int
    written_ns: int
    path: Path


class EvaluationFolder:
    """Reads and writes what the module describes. Reading what is not there gives None or nothing."""

    def __init__(self, base: "str | os.PathLike[str]") -> None:
        self.base = Path(base).absolute()
        self._checkpoints = self.base / "tfdist_checkpoints"
        self._training = self._checkpoints / "training.json"

    @classmethod
    def of(cls, cluster: Cluster) -> "EvaluationFolder":
        """The folder for `cluster`.

        Raises:
            ClusterError: where none is named, or it is not on a file system.
        """
        base = os.environ.get(VARIABLE) or cluster.job_dir
        if not base:
            raise cluster.source.error(
                "the chief and the evaluator meet in a folder, and none is named; give job_dir on both "
                f"(--job_dir, or the environment variable {VARIABLE}), a folder that both can reach"
            )
        if "://" in base:
            raise cluster.source.error(
                f"the chief and the evaluator cannot meet in {base}: renaming a file there is not one step; "
                f"name a folder of a file system that both can reach in the environment variable {VARIABLE}"
            )
        return cls(base)

    # The evaluator's part.

    def own(self, index: int) -> Path:
        """The folder of evaluator `index`, of which it alone writes."""
        return self.base / ("evaluator" if index == 0 else f"evaluator_{index}")

    def is_announced(self) -> bool:
        """Whether an evaluator has ever worked in this folder."""
        return any(self.base.glob("evaluator*/state.json"))

    # The run of the chief's program.

    def write_training(self, run: str, status: str) -> None:
        """Says that `run` is the present run of the chief's program, and its status."""
        write_json(self._training, {"run": run, "status": status})

    def touch_training(self) -> None:
        """Says that the run goes on."""
        os.utime(self._training)

    def training(self) -> tuple[dict[str, Any], int] | None:
        """What the chief last said, and when it last touched it."""
        content = read_json(self._training)
        try:
            return None if content is None else (content, self._training.stat().st_mtime_ns)
        except OSError:
            return None

    def forget_training(self) -> None:
        """Removes what an earlier run has left to say."""
        self._training.unlink(missing_ok=True)

    # Calls of `fit`.

    def _fit(self, fit: int) -> Path:
        return self._checkpoints / f"fit_{fit}"

    def write_fit(self, fit: int, content: dict[str, Any]) -> None:
        """Says where call `fit` stands: a dict with `run`, `ended`, `first` and `last` (epochs, None before the first)."""
        write_json(self._fit(fit) / "fit.json", content)

    def fit(self, fit: int) -> dict[str, Any] | None:
        """What the chief last said about that call."""
        content: dict[str, Any] | None = read_json(self._fit(fit) / "fit.json")
        return content

    # Checkpoints.

    def save(self, fit: int, epoch: int | None, save: Callable[[str], Any]) -> None:
        """Writes one by calling `save` with a path, and deletes those before the last `KEEP`. Epoch None: the final one."""
        name = "final" if epoch is None else f"epoch_{epoch:05d}"
        folder = self._fit(fit)
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f".{name}.{os.getpid()}.weights.h5"
        try:
            save(str(partial))
            os.replace(partial, folder / f"{name}.weights.h5")
        finally:
            partial.unlink(missing_ok=True)
        pattern = "fit_*/final.weights.h5" if epoch is None else "fit_*/epoch_*.weights.h5"
        written = sorted(((_written(path) or 0, path) for path in self._checkpoints.glob(pattern)), reverse=True)
        for _, path in written[KEEP:]:
            path.unlink(missing_ok=True)

    def checkpoints(self, fit: int) -> list[Checkpoint]:
        """Those of one call that are there now, in the order in which they were written."""
        found = []
        for path in self._fit(fit).glob("epoch_*.weights.h5"):
            match, written = _EPOCH.fullmatch(path.name), _written(path)
            if match and written is not None:
                found.append(Checkpoint(fit, int(match[1]), written, path))
        return sorted(found, key=lambda checkpoint: (checkpoint.written_ns, checkpoint.epoch))

    def final(self, fit: int) -> Path | None:
        """The weights with which that call returned."""
        path = self._fit(fit) / "final.weights.h5"
        return path if path.exists() else None


def _written(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None  # Deleted in this moment.


def write_json(path: Path, content: Any) -> None:
    """Replaces a file by one with this content, in one step; makes its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(content), encoding="utf-8")
    os.replace(partial, path)


def read_json(path: Path) -> Any:
    """The content of a file that `write_json` wrote; None where there is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
