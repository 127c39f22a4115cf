"""`tfdist.strategy` in processes that multiprocessing starts, and which import the program again."""

import subprocess
import sys

import pytest

PROGRAM = """
import multiprocessing, sys, tfdist
def work(): print("works", flush=True)
if __name__ != "__main__":
    tfdist.strategy({"worker": 2})  # As in a program without the line below.
if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=work)
    process.start()
    process.join()
    sys.exit(process.exitcode)
"""


@pytest.mark.parametrize("config", ["", '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}'])
def test_a_process_that_imports_the_program_is_not_the_same_task_once_more(tmp_path, monkeypatch, config):
    monkeypatch.setenv("TF_CONFIG", config)
    (tmp_path / "program.py").write_text(PROGRAM)
    got = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (got.returncode, got.stdout) == (1, "")
    assert "RuntimeError: tfdist.strategy() is called again in a process that multiprocessing has started" in got.stderr
