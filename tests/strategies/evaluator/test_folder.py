"""Tests the folder that the chief and the evaluator share."""

import os
import stat
import time
from pathlib import Path

from tfdist.strategies.evaluator.folder import EvaluationFolder


def test_other_users_cannot_read_checkpoints(tmp_path):
    folder = EvaluationFolder(tmp_path / "job")
    folder.write_training({"status": "running"})
    folder.save(1, 1, lambda path: Path(path).write_bytes(b"weights"))
    assert stat.S_IMODE((tmp_path / "job" / "tfdist_checkpoints").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "job" / "tfdist_checkpoints" / "fit_1").stat().st_mode) == 0o700


def test_a_clock_that_is_set_back_deletes_no_new_checkpoint_and_keeps_the_order(tmp_path):
    folder = EvaluationFolder(tmp_path)
    for epoch in range(1, 7):
        folder.save(1, epoch, lambda path: Path(path).write_bytes(b"weights"))
    ahead = time.time() + 3600
    for number, checkpoint in enumerate(folder.checkpoints(1)):  # As if they had been written before the clock was set back.
        os.utime(checkpoint.path, (ahead + number, ahead + number))
    for epoch in (7, 8):
        folder.save(1, epoch, lambda path: Path(path).write_bytes(b"weights"))
        folder.save(1, None, lambda path: Path(path).write_bytes(b"weights"))
    assert [checkpoint.epoch for checkpoint in folder.checkpoints(1)] == [4, 5, 6, 7, 8]
    folder.save(1, 5, lambda path: Path(path).write_bytes(b"weights"))  # After a restart.
    assert [checkpoint.epoch for checkpoint in folder.checkpoints(1)] == [4, 6, 7, 8, 5]
