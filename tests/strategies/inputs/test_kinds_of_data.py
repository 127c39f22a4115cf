"""Keras takes kinds of data that iterate in their own way as in one process: the cases of programs/kinds_of_data.py."""

import contextlib
import functools
import json
import subprocess

import numpy as np
import pytest
import selection
from support_paths import PROGRAMS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

CLUSTERS = {
    "mirrored": "2",
    "parameter_server": '{"ps": 1, "worker": 2}',
    "sandblaster": json.dumps(
        "cluster { nworker_groups: 1 nserver_groups: 1 nworkers_per_group: 2 nservers_per_group: 1 server_worker_separate: true }"
    ),
    "hogwild": json.dumps(
        "cluster { nworker_groups: 2 nserver_groups: 2 nworkers_per_group: 1 nservers_per_group: 1 "
        "server_worker_separate: false sync_freq: 4 }"
    ),
}
FOR_A_RELEASE = {  # Of a cluster: the chief reads these data, and hands them out, as under parameter_server.
    "hogwild": ("processes_that_load", "ragged_batches", "outputs_of_two_rows_for_an_example"),
}
REPLICAS_SHARE = ("mirrored", "sandblaster")
N = 64
X = np.linspace(-1, 1, 4 * N, dtype="float32").reshape(N, 4)
ONCE = [0, 0, N]  # No example missed, none seen twice, the number of examples.
EVERY_CALL = [*[ONCE] * 5, [N, N]]  # Two epochs, their validation, an evaluation; the shape of a prediction.
SUMS = X[:8].sum(axis=1)
LOSS = float(((2 * X.sum(axis=1)) ** 2).mean())  # Of a kernel of 3 and a bias of 1.
EXPECTED = {
    "a_dataset_that_shuffles_at_the_end_of_an_epoch": EVERY_CALL,
    "threads_that_load": EVERY_CALL,
    "processes_that_load": [ONCE] * 2,
    "evaluation_before_training": [ONCE] * 2,
    "inputs_of_two_shapes": EVERY_CALL,
    "inputs_of_two_shapes_that_threads_load": EVERY_CALL,
    "some_batches_in_an_epoch": [[40, 0, 24], [40, 0, 24], [48, 0, 16], [40, 0, 24]],  # 3 batches, until the 8 are read.
    "a_generator_that_runs_dry": {"loss": [1.0, 0.0]},  # An epoch without steps.
    "generators_that_are_read_on": [1.0, 4 / 3, 5 / 3, 1.5, 5.5, 1.0, 4.0, 7.0, 10.0],
    "validation_data_that_run_dry": {"loss": [1.0, 1.0], "val_loss": [1.0]},
    "evaluations_without_batches": [1, [1.0, 1.0], []],
    "examples_without_values": [[0.0], [8, 0, 3]],
    "sparse_batches": [SUMS.tolist(), [float((SUMS**2).mean())] * 2],
    "ragged_batches": [[3.0, 3.0, 15.0], [81.0], [81.0]],
    "a_checkpoint_that_is_restored_before_the_first_batch_builds_the_model": [LOSS, *[LOSS, N // 8] * 2, LOSS],
    "outputs_of_two_rows_for_an_example": [X.reshape(-1, 2).tolist(), X.sum(axis=1).tolist(), X[:1].reshape(-1, 2).tolist()],
}


def cell(name, *case):
    """Parameters of a test, those for a release marked."""
    is_for_a_release = name == "sandblaster" or set(case) & set(FOR_A_RELEASE.get(name, ()))
    return pytest.param(name, *case, marks=pytest.mark.release if is_for_a_release else ())


on_each = pytest.mark.parametrize("name", [cell(name) for name in CLUSTERS])


@pytest.fixture(scope="module")
def results_of(tmp_path_factory, run_python):
    """A function that returns the results of the cases on a cluster, on which they run once."""

    @functools.cache
    def run(name):
        folder = tmp_path_factory.mktemp("kinds_of_data")
        left_out = () if selection.ALL else FOR_A_RELEASE.get(name, ())
        command = [str(PROGRAMS / "kinds_of_data.py"), CLUSTERS[name], *(f"not:{case}" for case in left_out)]
        with contextlib.suppress(subprocess.TimeoutExpired):  # The file is missing.
            run_python(folder, *command, timeout=880)
        path = folder / "kinds_of_data.json"
        assert path.exists(), (folder / "output.txt").read_text()[-5000:]
        return json.loads(path.read_text())

    return run


@pytest.mark.parametrize(("name", "case"), [cell(name, case) for name in CLUSTERS for case in EXPECTED])
def test_data_are_as_in_one_process(results_of, name, case):
    got = results_of(name)[case]
    assert not isinstance(got, str), got
    if (name, case) == ("mirrored", "a_generator_that_runs_dry"):
        got = {"loss": [*got["loss"][:-1], 0.0]}  # The last logs once more, not Keras' 0.
    assert _flat(got) == pytest.approx(_flat(EXPECTED[case]), rel=1e-4, abs=1e-5), got


@on_each
def test_replicas_that_share_batches_refuse_those_of_tensors_of_different_sizes(results_of, name):
    at_run_time, before = results_of(name)["batches_of_two_sizes"]
    if name not in REPLICAS_SHARE:
        assert [at_run_time, before] == [[32.0], [32.0]]
        return
    assert "batch[0] has 8 rows and batch[1] has 24, but replicas share the rows of a batch" in before
    assert "[batch[0] has as many rows:] [8] [batch[1] has:] [24] [But replicas share" in at_run_time


@on_each
def test_an_error_says_whose_data_have_no_batches(results_of, name):
    message = {
        "mirrored": "the dataset has no batches",
        "hogwild": "the dataset of worker group 1 ended in the group's first call, which reads",
    }
    assert message.get(name, "and this is data that workers read") in results_of(name)["data_that_a_group_lacks"][0]


def _flat(value):
    if isinstance(value, dict):
        return [each for name in sorted(value) for each in _flat(value[name])]
    return [each for part in value for each in _flat(part)] if isinstance(value, list) else [value]
