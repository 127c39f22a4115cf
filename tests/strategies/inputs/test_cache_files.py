"""Caches of datasets on disk: under the names of their tasks, and written anew after a kill."""

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


PROGRAM = """
import os, signal, sys
import tensorflow as tf
from tfdist.strategies.inputs import cache_files
if sys.argv[2:]:
    cache_files._is_of_this_machine = lambda path: sys.argv[2] == "here"
cache_files.install("")
numbers = tf.data.Dataset.range(5).cache("numbers")
for number in numbers:
    if number == 2 and sys.argv[1:2] == ["killed"]:
        os.kill(os.getpid(), signal.SIGKILL)
assert list(numbers.as_numpy_iterator()) == [0, 1, 2, 3, 4]
"""


def test_a_cache_that_a_killed_process_has_not_completed_is_written_anew(run_python, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    assert run_python(tmp_path, "program.py", "killed", timeout=60) == -9
    assert (tmp_path / "numbers_0.lockfile").exists()
    assert run_python(tmp_path, "program.py", "", "elsewhere", timeout=60) == 1  # Another machine may be writing it.
    assert (tmp_path / "numbers_0.lockfile").exists()
    assert run_python(tmp_path, "program.py", "", "here", timeout=60) == 0, (tmp_path / "output.txt").read_text()
    assert sorted(path.name for path in tmp_path.glob("numbers*")) == ["numbers.data-00000-of-00001", "numbers.index"]
    assert run_python(tmp_path, "program.py", timeout=60) == 0


def test_a_cache_that_another_process_writes_is_left_to_it(tmp_path):
    writing = iter(tf.data.Dataset.range(3).cache(str(tmp_path / "numbers")))
    next(writing)
    tf.data.Dataset.range(3).cache(str(tmp_path / "numbers"))
    assert [int(number) for number in writing] == [1, 2]
