"""docs/from_horovod.md: every line of its tables is run."""

import json
import os
import re
import shlex
import sys

import pytest
from support_paths import CHECKOUT, PROGRAMS

sys.path.append(str(PROGRAMS))  # There is another module `programs` in benchmarks/, which other tests put on the path.

import from_horovod

pytestmark = pytest.mark.cluster

PAGE = CHECKOUT / "docs" / "from_horovod.md"
PROGRAM = from_horovod.__file__


def ranks(tmp_path, start, *cluster):
    job = start("-m", "tfdist.launch", *cluster, PROGRAM, str(PAGE), str(tmp_path))
    assert job.wait(280) == 0, job.output
    assert "done" in job.output
    return [json.loads(path.read_text()) for path in sorted(tmp_path.glob("rank-*.json"))], job


def check(result, rank, size):
    values = result["values"]
    assert values["hvd.rank()"] == values["hvd.local_rank()"] == rank
    assert values["hvd.size()"] == values["hvd.local_size()"] == size
    assert values["hvd.cross_rank()"] == 0
    assert result["steps"] == 3 * 64 // (8 * size)
    assert result["learning_rate"] == pytest.approx([0.01 * (1 + (size - 1) * done) for done in (0, 0.5, 1)])
    assert (result["mean"], result["total"], result["parts"]) == (3.0, 3.0 * size, [3.0] * size)


SERVED = '{"chief": 1, "worker": 1, "ps": 1}'


@pytest.mark.parametrize("cluster", [["--tier", "BASIC"], ["--cluster", SERVED]], ids=["default", "parameter_server"])
def test_the_recipe_trains_as_one_rank(start, tmp_path, cluster):
    (result,), _ = ranks(tmp_path, start, *cluster)
    check(result, 0, 1)
    assert (tmp_path / "model.keras").exists() and (tmp_path / "log.csv").read_text().count("\n") == 4


def test_the_recipe_trains_two_ranks_to_equal_weights_and_the_first_saves(start, tmp_path):
    command = next(right for left, right in command_lines() if "-np 2" in left)
    cluster = command.partition("tfdist run ")[2].partition(" train.py")[0]
    results, job = ranks(tmp_path, start, *shlex.split(cluster))
    assert len(results) == 2
    for rank, result in enumerate(results):
        check(result, rank, 2)
    assert results[0]["weights"] == results[1]["weights"] and results[0]["loss"] == pytest.approx(results[1]["loss"])
    assert job.output.count("| done") == 1
    assert (tmp_path / "log.csv").read_text().count("\n") == 4


def command_lines():
    table = PAGE.read_text().partition("The command line")[2].partition("## ")[0]
    return re.findall(r"^\| `(horovodrun [^`]+)` \| (?:[^`|]*)`([^`]+)` \|$", table, re.MULTILINE)


def test_every_command_line_describes_as_many_ranks(tmp_path, quick_python):
    rows = command_lines()
    assert len(rows) == PAGE.read_text().count("| `horovodrun")
    for horovod, line in rows:
        count = int(re.search(r"-np (\d+)", horovod)[1])
        (tmp_path / "train.py").write_text(
            f"import tfdist; assert tfdist.size() == {count}, tfdist.size(); assert tfdist.rank() == 0"
        )
        if line.startswith("TF_CONFIG="):
            variable, _, command = line.partition("' ")
            config = variable.removeprefix("TF_CONFIG='")
            environment = os.environ | {"TF_CONFIG": config}
        else:
            environment, command = os.environ, line.replace("train.py", "--dry_run train.py")
        words = shlex.split(command)
        assert words[0] == "tfdist"
        run = quick_python.run(["-m", *words], str(tmp_path), environment)
        assert run.returncode == 0, run.stderr
        if "TF_CONFIG=" in run.stdout:
            assert len(re.findall(r"^(?:chief|worker):\d", run.stdout, re.MULTILINE)) == count
