"""Tests that asynchronous worker groups of parameter_server count each step once and each gradient once."""

import json
from types import SimpleNamespace

import keras
import pytest
from support_paths import PROGRAMS

from tfdist.strategies.parameter_server.constraints import warn_of_lost_updates

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

CLUSTER = (
    "cluster { nworker_groups: 2 nworkers_per_group: 2 nworkers_per_procs: 2 nserver_groups: 1 nservers_per_group: 2 "
    "server_worker_separate: true }"
)


@pytest.fixture(scope="module")
def results(tmp_path_factory, run_python):
    folder = tmp_path_factory.mktemp("counters")
    (folder / "job.conf").write_text(CLUSTER)
    program = str(PROGRAMS / "asynchronous_counters.py")
    assert (
        run_python(folder, "-m", "tfdist.launch", "--cluster", "job.conf", program, "--", "results.json", timeout=200) == 0
    ), (folder / "output.txt").read_text()[-3000:]
    return json.loads((folder / "results.json").read_text())


@pytest.mark.parametrize(
    ("case", "total"), [("small", 200), ("several steps per execution", 200), ("sharded", 24), ("rows", 12)]
)
def test_no_accumulated_gradient_is_lost_or_counts_twice(results, case, total):
    assert results[case] == [total, total]


@pytest.mark.parametrize(("case", "total"), [("constrained", 200), ("constrained and sharded", 24)])
def test_the_constraint_of_a_weight_loses_no_update_of_another_group(results, case, total):
    assert results[case] == [total, total]


@pytest.mark.parametrize("groups", [1, 2])
def test_a_layer_that_assigns_its_whole_kernel_is_named_if_several_groups_train_it(caplog, groups):
    layer = keras.layers.SpectralNormalization(keras.layers.Dense(2), name="spectral")
    model = keras.Sequential([keras.Input((2,)), layer], name="model")
    with caplog.at_level("WARNING", logger="tfdist"):
        warn_of_lost_updates(model, SimpleNamespace(has_several_groups=groups > 1))
    assert ("the training of model loses updates: model/spectral, a SpectralNormalization, assigns" in caplog.text) == (
        groups > 1
    )


def test_the_loss_scale_grows_after_its_number_of_steps(results):
    assert results["loss scale"] == [2.0**4, 0]
