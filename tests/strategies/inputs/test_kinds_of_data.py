"""Keras takes kinds of data that iterate in their own way as in one process: the cases of programs/kinds_of_data.py."""

import json
import subprocess

import numpy as np
import pytest
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
    "validation_data_that_run_dry": {"loss": [1.0, 1.0], "val_loss": [1.0]},
    "evaluations_without_batches": [1, [1.0, 1.0], []],
    "sparse_batches": [SUMS.tolist(), [float((SUMS**2).mean())] * 2],
    "ragged_batches": [[3.0, 3.0, 15.0], [81.0]],
    "a_checkpoint_that_is_restored_before_the_first_batch_builds_the_model": [LOSS, *[LOSS, 2 * N // 8] * 2, LOSS],
    "outputs_of_two_rows_for_an_example": [X.reshape(-1, 2).tolist(), X.sum(axis=1).tolist(), X[:1].reshape(-1, 2).tolist()],
}


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.release) if name == "sandblaster" else name for name in CLUSTERS],
)
def ran(request, tmp_path_factory, run_python):
    """(name of the cluster, results of the cases)"""
    folder = tmp_path_factory.mktemp("kinds_of_data")
    try:
        run_python(folder, str(PROGRAMS / "kinds_of_data.py"), CLUSTERS[request.param], timeout=880)
    except subprocess.TimeoutExpired:
        pass  # The file is missing.
    path = folder / "kinds_of_data.json"
    assert path.exists(), (folder / "output.txt").read_text()[-5000:]
    return request.param, json.loads(path.read_text())


@pytest.mark.parametrize("case", EXPECTED)
def test_data_are_as_in_one_process(ran, case):
    name, results = ran
    got = results[case]
    assert not isinstance(got, str), got
    if (name, case) == ("mirrored", "a_generator_that_runs_dry"):
        got["loss"].pop()  # The last logs once more, not Keras' 0.
        got["loss"].append(0.0)
    assert _flat(got) == pytest.approx(_flat(EXPECTED[case]), rel=1e-4, abs=1e-5), got


def test_replicas_that_share_batches_refuse_those_of_tensors_of_different_sizes(ran):
    name, results = ran
    at_run_time, before = results["batches_of_two_sizes"]
    if name not in REPLICAS_SHARE:
        assert [at_run_time, before] == [[32.0], [32.0]]
        return
    assert "batch[0] has 8 rows and batch[1] has 24, but replicas share the rows of a batch" in before
    assert "[batch[0] has as many rows:] [8] [batch[1] has:] [24] [But replicas share" in at_run_time


def test_an_error_says_whose_data_have_no_batches(ran):
    name, results = ran
    message = {
        "mirrored": "the dataset has no batches",
        "hogwild": "the dataset of worker group 1 ended in the group's first call, which reads",
    }
    assert message.get(name, "and this is data that workers read") in results["data_that_a_group_lacks"][0]


def _flat(value):
    if isinstance(value, dict):
        return [each for name in sorted(value) for each in _flat(value[name])]
    return [each for part in value for each in _flat(part)] if isinstance(value, list) else [value]
