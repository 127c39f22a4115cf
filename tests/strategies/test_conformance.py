"""Runs TensorFlow's conformance tests and Keras' distribution tests on the strategies of tfdist."""

import importlib.util
from pathlib import Path

import pytest
from support_paths import PROGRAMS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

PROGRAM = PROGRAMS / "tensorflow_conformance.py"
CUSTOM_LOOP = PROGRAM.parent / "custom_loop.py"
KERAS = ("distribute_test.py", "optimizer_distribute_test.py")
THEIRS = 'tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])'
OURS = """
import tfdist
from tfdist.cluster import Cluster, Task
from tfdist.errors import Source


def ours():
    return tfdist.strategy(Cluster((Task("chief", 0, slots=2),), source=Source("python", "a test")))


"""


def test_tensorflows_conformance_tests(start):
    job = start(str(PROGRAM))
    assert job.wait(280) == 0, job.output[-6000:]
    assert "test_all_reduce_sum_gradient_tape_in_a_function" in job.output and "FAILED" not in job.output


@pytest.fixture(scope="module")
def of_keras(tmp_path_factory, run_python):
    """What pytest says of Keras' tests, with the strategy of tfdist instead of TensorFlow's."""
    folder = tmp_path_factory.mktemp("keras")
    for name in KERAS:
        source = (keras_folder() / "src" / "backend" / "tensorflow" / name).read_text()
        assert THEIRS in source
        (folder / name).write_text(OURS + source.replace(THEIRS, "ours()"))
    run_python(folder, "-m", "pytest", "-v", "-p", "no:cacheprovider", *KERAS, timeout=280)
    return (folder / "output.txt").read_text()


def keras_folder():
    return Path(importlib.util.find_spec("keras").origin).parent


@pytest.mark.parametrize("name", KERAS)
def test_keras_distribution_tests(of_keras, name):
    results = [line.partition("::")[2].split() for line in of_keras.splitlines() if line.startswith(f"{name}::")]
    assert len(results) >= 7 and all(result in ("PASSED", "SKIPPED") for _, result, *_ in results), of_keras[-6000:]


def singa(folder, groups, workers):
    """Writes the description of a SINGA cluster with 2 ps and returns its path."""
    (folder / "job.conf").write_text(
        f"cluster {{ nworker_groups: {groups} nworkers_per_group: {workers} nserver_groups: 1 nservers_per_group: 2 "
        "server_worker_separate: true }"
    )
    return "job.conf"


def test_a_custom_loop_with_the_cluster_coordinator(start, tmp_path):
    job = start("-m", "tfdist.launch", "--cluster", singa(tmp_path, 2, 1), str(CUSTOM_LOOP))
    assert job.wait(200) == 0, job.output
    assert "accuracy 1.00" in job.output
    assert "iterations 121 <ShardedVariable" in job.output
    assert "updates 6 weight -0.60" in job.output and "different numbers 12" in job.output


def test_a_custom_loop_is_refused_if_a_group_spans_tasks(start, tmp_path):
    job = start("-m", "tfdist.launch", "--cluster", singa(tmp_path, 1, 2), str(CUSTOM_LOOP))
    assert job.wait(200) == 1
    assert "strategy.run cannot be traced by hand where the workers of a group are in several tasks" in job.output
