"""Tests worker groups and sharded variables of parameter_server. tests/contract tests what Keras does under them."""

import contextlib
import json

import numpy as np
import pytest
import selection
from programs import server_groups
from rounding import equal
from support_paths import PROGRAMS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

MODELS = [name for name in server_groups.MODELS if name != "adam" or selection.ALL]
PARTS = {  # -> the model, and its part
    "momentum": ("momentum", "small"),
    "shards": ("momentum", "large"),
    "shards_averaged": ("averaged", "large"),
    "shards_as_a_whole": ("as_a_whole", "large"),
    "rows_looked_up": ("momentum", "table"),
    "rows_looked_up_and_averaged": ("averaged", "table"),
    "large_read_in_a_loop": ("averaged", "loop"),
    **({"adam": ("adam", "small"), "shards_read_in_a_loop": ("adam", "loop in shards")} if selection.ALL else {}),
}
IN_SHARDS = ("large", "table", "loop in shards")
LOSSES = (  # Of programs/group_losses.py.
    "a function that returns a mean",
    "a mean over what a mask leaves",
    "a loss of Keras in add_loss",
    "an added loss beside one number for a batch",
    "an added sum",
    "an added mean",
    "variables that gradients overwrite",
    "the sum of 7 losses",
    "an evaluation",
    "one number for a batch with sample weights",
    "a loss that keeps a variable, one number",
    "a loss that keeps a variable, one for each example",
    "the sum of 3 losses",
    "metrics of an own step whose batches are pairs",
    "losses that TensorFlow scales",
    "logs that a step computes from metrics",
    "positions, two tables",
    "positions, one table",
    "positions, sequences of several lengths",
    "positions, the sum of 3 losses",
    "two updates in a step",
    "a loss and a metric that read what call keeps",
    "what call keeps until replicas have added up",
    "masks of a recurrent layer",
    "metrics that a model does not list",
    "metrics that keras does not reset",
    "a metric that predict alone updates",
    "a metric outside of the scope beside one by name",
    "numbers of a batch that predict returns",
    "predictions of other forms than dense tensors",
    "sparse batches with fewer examples than replicas",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory, run_python):
    """A function that returns the folder in which a program has run, and its results."""

    def run(program, *arguments):
        folder = tmp_path_factory.mktemp("worker_groups")
        run_python(folder, str(PROGRAMS / program), *arguments, timeout=400)
        output = (folder / "output.txt").read_text()
        assert (folder / "results.json").exists(), output[-5000:]
        assert "a step also reads all of it" not in output  # Embeddings are looked up by rows alone.
        return folder, json.loads((folder / "results.json").read_text())

    return run


@pytest.fixture(scope="module")
def saved(run):
    """The folder of files that were saved with two ps, and the results of one synchronous group of two tasks."""
    cluster = "nworker_groups: 1 nworkers_per_group: 2 nserver_groups: 1 nservers_per_group: 2 server_worker_separate: true"
    return run("server_groups.py", f"cluster {{ {cluster} }}", *MODELS, "watched")


@pytest.fixture(scope="module")
def sandblaster(saved):
    return saved[1]


@pytest.fixture(scope="module")
def downpour(run, saved):
    cluster = "nworker_groups: 2 nworkers_per_group: 2 nserver_groups: 1 nservers_per_group: 3 server_worker_separate: true"
    return run("server_groups.py", f"cluster {{ {cluster} }}", "watched", f"load:{saved[0]}")[1]


@pytest.fixture(scope="module")
def in_one_task(run, saved):
    return run("group_losses.py", str(saved[0]))[1]


@pytest.mark.parametrize("model", MODELS)
def test_a_group_in_several_processes_equals_one_process(sandblaster, model):
    got, expected = sandblaster[model]["group"], sandblaster[model]["alone"]
    assert got["iterations"] == expected["iterations"]
    for name, values in expected["history"].items():
        assert got["history"][name] == pytest.approx(values, rel=1e-4, abs=1e-6), name
    np.testing.assert_allclose(got["prediction"], expected["prediction"], rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("part", PARTS)
def test_weights_of_a_group_in_several_processes_equal_those_of_one_process(sandblaster, part):
    model, layers = PARTS[part]
    got, expected = sandblaster[model]["group"], sandblaster[model]["alone"]
    assert got["weights"][layers] == pytest.approx(expected["weights"][layers], rel=1e-4)
    assert got["changes"][layers] == pytest.approx(expected["changes"][layers], rel=1e-4)


def test_large_variables_are_sharded_and_ps_carry_nearly_equal_loads(sandblaster):
    for model in MODELS:
        for part, kinds in sandblaster[model]["group"]["kinds"].items():
            assert ("ShardedVariable" in kinds) == (part in IN_SHARDS), (model, part)
    first, second = sandblaster["bytes"]
    assert abs(first - second) < 0.01 * (first + second)


def test_callbacks_of_a_single_group_see_exactly_the_steps_so_far(sandblaster):
    got = sandblaster["watched"]
    epochs = len(got["loss"])
    assert got["seen"] == [10.0 * step for step in range(1, 31)] * epochs
    assert got["done"] == list(range(1, 30 * epochs + 1))


def test_callbacks_of_asynchronous_groups_see_the_steps_of_all_groups(downpour):
    got = downpour["watched"]
    assert len(got["seen"]) == 30 * len(got["loss"])
    for epoch in range(len(got["loss"])):
        seen = got["seen"][30 * epoch : 30 * (epoch + 1)]
        # A step adds the metrics of its group. At most the steps that the other group had in flight are missing.
        assert all(10.0 * (step - 4) <= count <= 10.0 * (step + 4) for step, count in enumerate(seen, start=1)), seen
    # The bar counts steps that are done. At most two more of each group are in flight.
    assert all(step <= done <= step + 4 for step, done in enumerate(got["done"], start=1))


@pytest.mark.parametrize("cluster", ["sandblaster", "downpour"])
def test_a_learning_rate_reaches_every_worker(request, cluster):
    _, first, second, third, *_ = request.getfixturevalue(cluster)["watched"]["weights"]
    assert all(one != other for one, other in zip(first, second, strict=True))
    assert second == third


@pytest.mark.parametrize("cluster", ["sandblaster", "downpour"])
def test_early_stopping_restores_the_best_weights(request, cluster):
    got = request.getfixturevalue(cluster)["watched"]
    assert len(got["held"]) < 9
    assert got["after"] == pytest.approx(min(got["held"]), rel=1e-4)


def test_asynchronous_groups_learn(downpour):
    loss = downpour["watched"]["loss"]
    assert loss[2] < loss[1] < loss[0] and loss[2] < np.log(3) / 2


@pytest.mark.parametrize("servers", [3, 1, 0])
def test_files_saved_with_two_ps_load_with_three_with_one_and_without_a_cluster(request, saved, servers):
    if servers:
        got = request.getfixturevalue("downpour" if servers == 3 else "in_one_task")["loaded"]
    else:
        got = server_groups.load(contextlib.nullcontext, saved[0])
    assert got["shards"] == max(1, servers)
    assert got["steps"] == [20, 20]
    assert max(got["differences"].values()) < 1e-6, got


@pytest.mark.parametrize("part", LOSSES)
def test_losses_of_every_form_equal_one_process_in_a_group_inside_one_task(in_one_task, part):
    assert in_one_task["losses"].keys() == set(LOSSES)
    found = in_one_task["losses"][part]
    assert equal(found["alone"], found["group"])


@pytest.mark.release
def test_all_losses_of_data_parallel_strategies_equal_one_process(run, saved):
    """Cases of support/programs/losses.py, own_losses.py, own_step_metrics.py and sums_and_classes.py."""
    losses = run("group_losses.py", str(saved[0]), "all")[1]["losses"]
    assert len(losses) > 10 and [name for name, found in losses.items() if not equal(found["alone"], found["group"])] == []
