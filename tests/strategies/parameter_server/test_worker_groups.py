"""Tests worker groups and sharded variables of parameter_server. tests/contract tests what Keras does under them."""

import json

import numpy as np
import pytest
import selection
from rounding import equal
from support_paths import PROGRAMS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

PROGRAM = PROGRAMS / "server_groups.py"
CASES = [
    "momentum",
    "shards",
    "shards_averaged",
    "shards_as_a_whole",
    "rows_looked_up",
    "large_read_in_a_loop",
    *(["adam", "shards_read_in_a_loop"] if selection.ALL else []),
]
OF_CALLBACKS = ["callbacks", "best_weights"]


@pytest.fixture(scope="module")
def run(tmp_path_factory, run_python):
    """A function that returns the results of the program on a SINGA cluster, or in one process if `cluster` is None."""

    def run(cluster, cases):
        folder = tmp_path_factory.mktemp("worker_groups")
        command = [str(PROGRAM), "results.json", ",".join(cases)]
        if cluster:
            (folder / "job.conf").write_text(f"cluster {{ {cluster} }}")
            command = ["-m", "tfdist.launch", "--cluster", "job.conf", command[0], "--", *command[1:]]
        run_python(folder, *command, timeout=400)
        output = (folder / "output.txt").read_text()
        assert (folder / "results.json").exists(), output[-5000:]
        assert "a step also reads all of it" not in output  # Embeddings are looked up by rows alone.
        return json.loads((folder / "results.json").read_text())

    return run


@pytest.fixture(scope="module")
def alone(run):
    return run(None, CASES)


@pytest.fixture(scope="module")
def sandblaster(run):
    cluster = "nworker_groups: 1 nworkers_per_group: 2 nserver_groups: 1 nservers_per_group: 2 server_worker_separate: true"
    return run(cluster, [*CASES, *OF_CALLBACKS, "what_cannot_work_says_so"])


@pytest.fixture(scope="module")
def sandblaster_in_one_process(run):
    cluster = (
        "nworker_groups: 1 nworkers_per_group: 2 nworkers_per_procs: 2 nserver_groups: 1 nservers_per_group: 2 "
        "server_worker_separate: true"
    )
    return run(cluster, ["rows_looked_up"])


@pytest.fixture(scope="module")
def downpour(run):
    cluster = "nworker_groups: 2 nworkers_per_group: 2 nserver_groups: 1 nservers_per_group: 2 server_worker_separate: true"
    return run(cluster, ["momentum", "rows_looked_up", *OF_CALLBACKS])


def assert_equal(got, expected):
    assert got["iterations"] == expected["iterations"]
    for name, values in expected["history"].items():
        assert got["history"][name] == pytest.approx(values, rel=1e-4, abs=1e-6), name
    assert got["weights"] == pytest.approx(expected["weights"], rel=1e-4)
    np.testing.assert_allclose(got["prediction"], expected["prediction"], rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("case", CASES)
def test_a_group_in_several_processes_equals_one_process(alone, sandblaster, case):
    assert_equal(sandblaster[case], alone[case])


def test_a_group_in_one_process_equals_one_process(alone, sandblaster_in_one_process):
    assert_equal(sandblaster_in_one_process["rows_looked_up"], alone["rows_looked_up"])


def test_large_variables_are_sharded_and_ps_carry_nearly_equal_loads(sandblaster):
    for case in CASES:
        assert ("ShardedVariable" in sandblaster[case]["kinds"]) == (case.startswith("shards") or case == "rows_looked_up")
    first, second = sandblaster["bytes"]
    assert abs(first - second) < 0.01 * (first + second)


def test_callbacks_of_a_single_group_see_exactly_the_steps_so_far(sandblaster):
    got = sandblaster["callbacks"]
    assert got["seen"] == [10.0 * step for step in range(1, 31)] * 3
    assert got["done"] == list(range(1, 91))


def test_callbacks_of_asynchronous_groups_see_the_steps_of_all_groups(downpour):
    got = downpour["callbacks"]
    for epoch in range(3):
        seen = got["seen"][30 * epoch : 30 * (epoch + 1)]
        # A step adds the metrics of its group. At most the steps that the other group had in flight are missing.
        assert all(10.0 * (step - 4) <= count <= 10.0 * (step + 4) for step, count in enumerate(seen, start=1)), seen
    # The bar counts steps that are done. At most two more of each group are in flight.
    assert all(step <= done <= step + 4 for step, done in enumerate(got["done"], start=1))


@pytest.mark.parametrize("cluster", ["sandblaster", "downpour"])
def test_a_learning_rate_reaches_every_worker(request, cluster):
    first, second, third = request.getfixturevalue(cluster)["callbacks"]["weights"]
    assert first != second
    assert second == third


@pytest.mark.parametrize("cluster", ["sandblaster", "downpour"])
def test_early_stopping_restores_the_best_weights(request, cluster):
    got = request.getfixturevalue(cluster)["best_weights"]
    assert len(got["losses"]) < 9
    assert got["after"] == pytest.approx(min(got["losses"]), rel=1e-4)


def test_what_cannot_work_says_so(sandblaster):
    got = sandblaster["what_cannot_work_says_so"]
    assert "the metric seen counts in " in got["metric"] and "create it with self.add_variable" in got["metric"]
    assert "was created outside the strategy's scope" in got["lora"]


def test_asynchronous_groups_learn(downpour, alone):
    for case in ("momentum", "rows_looked_up"):
        loss, reference = downpour[case]["history"]["loss"], alone[case]["history"]["loss"]
        assert loss[-1] < loss[0], case
        assert loss[-1] < reference[0], case
        assert downpour[case]["iterations"] == alone[case]["iterations"]


def test_files_saved_with_two_ps_load_with_three_with_one_and_without_a_cluster(run_python, tmp_path):
    program = str(PROGRAM.parent / "shards_files.py")

    def run_on(servers, what):
        command = [program, what]
        if servers:
            (tmp_path / "job.conf").write_text(f"cluster {{ nservers_per_group: {servers} server_worker_separate: true }}")
            command = ["-m", "tfdist.launch", "--cluster", "job.conf", program, "--", what]
        assert run_python(tmp_path, *command, timeout=120) == 0, (tmp_path / "output.txt").read_text()[-3000:]

    run_on(2, "save")
    for servers in (3, 1, 0):
        run_on(servers, "load")
        got = json.loads((tmp_path / "loaded.json").read_text())
        assert got["shards"] == max(1, servers)
        assert got["steps"] == [8, 8]
        assert max(got["differences"].values()) < 1e-6, got


def test_losses_of_every_form_equal_one_process(start):
    """Cases of support/programs/losses.py, own_losses.py, own_step_metrics.py and sums_and_classes.py in one synchronous group of two workers."""
    job = start(str(PROGRAMS / "group_losses.py"))
    assert job.wait(500) == 0, job.output[-3000:]
    cases = [json.loads(line.removeprefix("CASE ")) for line in job.output.splitlines() if line.startswith("CASE ")]
    assert len(cases) == (38 if selection.ALL else 14)
    for name, one, group in cases:
        assert equal(one, group), name
