"""Tests the folder that the chief and the evaluator share."""

import stat
from pathlib import Path

from tfdist.strategies.evaluator.folder import EvaluationFolder


def test_other_users_cannot_read_checkpoints(tmp_path):
    folder = EvaluationFolder(tmp_path / "job")
    folder.write_training({"status": "running"})
    folder.save(1, 1, lambda path: Path(path).write_bytes(b"weights"))
    assert stat.S_IMODE((tmp_path / "job" / "tfdist_checkpoints").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "job" / "tfdist_checkpoints" / "fit_1").stat().st_mode) == 0o700
