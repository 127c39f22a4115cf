"""Caches of datasets on disk under the names of their tasks."""

import pytest
import tensorflow as tf

from tfdist.strategies.inputs import cache_files
from tfdist.strategies.private_api import patches


@pytest.fixture(autouse=True)
def as_another_task(monkeypatch):
    monkeypatch.setattr(patches.CACHE, "_replacements", [])
    monkeypatch.setattr(tf.data.Dataset, "cache", tf.data.Dataset.cache)
    monkeypatch.setattr(cache_files, "_task", "")
    cache_files.install("worker-1")


@pytest.mark.parametrize("kind", [str, lambda path: path, lambda path: tf.constant(str(path))], ids=["text", "path", "tensor"])
def test_a_file_that_another_task_writes_is_not_used(kind, tmp_path):
    (tmp_path / "numbers_0.lockfile").touch()  # Of the first task, which is writing.
    dataset = tf.data.Dataset.range(3).cache(kind(tmp_path / "numbers"))
    assert [int(number) for number in dataset] == [0, 1, 2]
    assert sorted(path.name for path in tmp_path.glob("numbers.worker-1*"))


def test_caches_in_memory_stay_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert [int(number) for number in tf.data.Dataset.range(3).cache()] == [0, 1, 2]
    assert list(tmp_path.iterdir()) == []
