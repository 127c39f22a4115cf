"""Tests the folder that the chief and the evaluator share."""

import fcntl
import functools
import os
import stat
import time
from pathlib import Path

import pytest

from tfdist.choice import choose, prepared
from tfdist.dialects import read
from tfdist.errors import ClusterError
from tfdist.launch.backends.interface import Plan
from tfdist.launch.errors import UsageError
from tfdist.launch.jobs.job import Job, JobFiles, Program
from tfdist.launch.supervision import attached
from tfdist.strategies.checkpoint import folder_lock
from tfdist.strategies.evaluator import chief_callback
from tfdist.strategies.evaluator.folder import RUNNING, VARIABLE, EvaluationFolder


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


def test_what_a_killed_chief_had_written_of_a_checkpoint_does_not_stay(tmp_path, monkeypatch):
    folder = EvaluationFolder(tmp_path)

    def killed(path):
        Path(path).write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(Path, "unlink", lambda path, missing_ok: None)
        with pytest.raises(KeyboardInterrupt):
            folder.save(1, 3, killed)
    monkeypatch.setattr(os, "getpid", lambda: 1)  # It was started again.
    folder.save(1, 3, lambda path: Path(path).write_bytes(b"weights"))
    assert [each.name for each in (tmp_path / "tfdist_checkpoints" / "fit_1").iterdir()] == ["epoch_00003.weights.h5"]


def test_a_second_job_does_not_use_the_folder_of_one_that_runs(tmp_path, monkeypatch):
    folder = EvaluationFolder(tmp_path / "job")
    assert not folder.is_used()
    folder.write_training({"run": "1", "job": "1", "status": RUNNING})
    other = os.open(tmp_path / "job" / "tfdist_checkpoints", os.O_RDONLY)  # As the chief of another job.
    fcntl.flock(other, fcntl.LOCK_EX)
    monkeypatch.setattr(folder_lock, "_held", {})
    monkeypatch.setattr(chief_callback, "_strategies", [])
    monkeypatch.setattr(folder_lock, "_take", functools.partial(_take_at_once, folder_lock._take))
    with pytest.raises(
        ClusterError, match=r"TFDIST_EVALUATOR_DIR: .* holds the checkpoints for the evaluator of another program"
    ):
        chief_callback.install(None, folder, expected=True)
    cluster = prepared(read({"chief": 1, "worker": 1, "ps": 1, "evaluator": 1}))
    plan = Plan(Job(cluster, choose(cluster), Program("train.py"), environment={VARIABLE: str(tmp_path / "job")}))
    with pytest.raises(UsageError, match="another job that runs now evaluates its checkpoints there"):
        attached._with_evaluation_folder(plan, JobFiles(tmp_path))
    assert folder.training()[0]["status"] == RUNNING  # The launcher has not forgotten it.
    os.close(other)
    assert not folder.is_used()


def _take_at_once(take, descriptor, seconds):
    return take(descriptor, 0.0)
