"""One small training under each strategy, with what it saves and loads.

Only `nox` names this file. A run of all tests leaves it out: with its one combination of versions they have larger ones of each.
"""

import json

import numpy as np
import pytest
from support_paths import PROGRAMS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(280)]

PROGRAM = str(PROGRAMS / "every_strategy.py")
STEPS = 6 * 12

SYNCHRONOUS = {
    "mirrored": "cluster { nworker_groups: 1 nserver_groups: 1 nworkers_per_group: 2 nworkers_per_procs: 2 "
    "server_worker_separate: false }",
    "multi_worker_mirrored": '{"worker": 2}',
}
ASYNCHRONOUS = {
    "parameter_server": "cluster { nworker_groups: 2 nserver_groups: 1 nworkers_per_group: 2 nservers_per_group: 1 "
    "nworkers_per_procs: 2 server_worker_separate: true }",
    "hogwild": "cluster { nworker_groups: 2 nserver_groups: 2 nworkers_per_group: 1 nservers_per_group: 1 "
    "server_worker_separate: false sync_freq: 3 }",
}


@pytest.fixture
def trained(start, tmp_path):
    """Returns a function that trains on a cluster; it returns what the program has found."""

    def train(description):
        (tmp_path / "cluster").write_text(description)
        job = start("-m", "tfdist.launch", "--cluster", "cluster", PROGRAM, "results.json")
        assert job.wait(260) == 0, job.output
        return json.loads((tmp_path / "results.json").read_text())

    return train


def check_files(results):
    assert results["loss"] == pytest.approx(results["evaluate"]["loss"], rel=1e-5)
    for file in ("weights", "checkpoint"):
        assert results[file] == {"changed": True, "restored": True}, file
    assert results["iterations"] == results["loaded"] == STEPS


@pytest.fixture(scope="module")
def in_one_process(tmp_path_factory, run_python):
    """What the program finds without tfdist's strategies."""
    folder = tmp_path_factory.mktemp("one_process")
    assert run_python(folder, PROGRAM, "results.json", timeout=200) == 0, (folder / "output.txt").read_text()
    return json.loads((folder / "results.json").read_text())


@pytest.mark.parametrize("description", SYNCHRONOUS.values(), ids=SYNCHRONOUS)
def test_a_synchronous_one_equals_one_process(trained, in_one_process, description):
    results = trained(description)
    check_files(results)
    assert results["history"].keys() == in_one_process["history"].keys()
    for name, values in in_one_process["history"].items():
        assert results["history"][name] == pytest.approx(values, rel=1e-4), name
    assert results["evaluate"] == pytest.approx(in_one_process["evaluate"], rel=1e-4)
    assert np.array(results["predict"]) == pytest.approx(np.array(in_one_process["predict"]), rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("description", ASYNCHRONOUS.values(), ids=ASYNCHRONOUS)
def test_an_asynchronous_one_learns(trained, description):
    results = trained(description)
    check_files(results)
    assert results["history"]["loss"][-1] < 0.8 * results["history"]["loss"][0]
    assert results["evaluate"]["loss"] < results["history"]["loss"][0]
