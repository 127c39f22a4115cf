"""Replicas and worker groups draw random numbers of their own, and states count as in one process.

Also methods with @tf.function: what the check of a step traces must not stay in them.
"""

import json

import keras
import numpy as np
import pytest
import selection
from support_paths import PROGRAMS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

STEPS = 40
SERVERS = "nserver_groups: 1 nservers_per_group: 1 server_worker_separate: true"
CLUSTERS = {
    "mirrored": "nworkers_per_group: 2 nworkers_per_procs: 2",
    "multi_worker_mirrored": "nworkers_per_group: 2",
    "parameter_server": f"nworker_groups: 1 nworkers_per_group: 2 {SERVERS}",
    "asynchronous": f"nworker_groups: 3 nworkers_per_group: 1 {SERVERS}",
}
TOGETHER = ("mirrored", "multi_worker_mirrored", "parameter_server")
FUNCTIONS = ("numbers in a function", "layers in a function")
CASES = {
    "mirrored": ("two", "masks", *FUNCTIONS, "step in a function"),
    # What is in functions is traced as under mirrored.
    "multi_worker_mirrored": ("two", "masks", *((*FUNCTIONS, "step in a function") if selection.ALL else ())),
    "parameter_server": ("two", "masks", *FUNCTIONS, "step in a function"),
    "asynchronous": ("one", "masks", *FUNCTIONS),
}


@pytest.fixture(scope="module")
def results(request, tmp_path_factory, run_python):
    name = request.param
    folder = tmp_path_factory.mktemp("own_numbers")
    (folder / "cluster.conf").write_text(f"cluster {{ {CLUSTERS[name]} }}")
    strategy = "parameter_server" if name == "asynchronous" else name
    launch = ("-m", "tfdist.launch", "--cluster", "cluster.conf", "--strategy", strategy)
    program = (str(PROGRAMS / "own_numbers.py"), "--", *CASES[name])
    assert run_python(folder, *launch, *program, timeout=250) == 0, (folder / "output.txt").read_text()[-5000:]
    return json.loads((folder / "own_numbers.json").read_text())


def having(case):
    """Runs a test on the clusters that have a case."""
    return pytest.mark.parametrize("results", [name for name in CLUSTERS if case in CASES[name]], indirect=True)


def of_one_process():
    generator = keras.random.SeedGenerator(3)
    return pytest.approx([keras.random.normal((1, 1), seed=generator).numpy().item() for _ in range(STEPS)])


@having("two")
def test_replicas_of_a_step_draw_different_numbers_and_the_first_those_of_one_process(results):
    noise, states = results["two"]
    assert len(np.unique(noise)) == np.size(noise)
    assert [row[0] for row in noise[::2]] == of_one_process()
    assert states and all(state == [3, STEPS] for state in states)


@having("numbers in a function")
def test_so_they_do_in_a_method_with_tf_function(results):
    noise, states = results["numbers in a function"]
    assert len(np.unique(noise)) == np.size(noise)
    if results["replicas"] > 1:
        assert [row[0] for row in noise[::2]] == of_one_process()
    assert states and all(state == [3, STEPS] for state in states)


@pytest.mark.parametrize("results", TOGETHER, indirect=True)
def test_replicas_drop_out_different_units(results):
    sums, states = results["masks"]
    assert len(np.unique(sums)) == 3  # Kept by both replicas, by one, by none.
    assert sums[0] != sums[1]
    assert states and all(state == [1, 2] for state in states)


@having("one")
def test_worker_groups_draw_different_numbers_and_count_each_draw(results):
    noise, states = results["one"]
    assert len(np.unique(noise)) == np.size(noise)
    assert states == [[3, STEPS]]
    assert results["masks"][1] == [[1, 2]]


@having("layers in a function")
def test_a_method_with_tf_function_changes_the_state_of_its_layers_in_each_step(results):
    found = results["layers in a function"]
    assert found["steps"] and all(state == [5, 3] for state in found["steps"])
    # Steps with a momentum of 0.99 towards means of about 3: three, or of groups that step at the same time the last one.
    least = 3 if results["replicas"] > 1 else 1
    for mean in found["moving mean"]:
        assert 0.65 * 3 * (1 - 0.99**least) < mean < 1.35 * 3 * (1 - 0.99**3)


@having("step in a function")
def test_a_train_step_with_tf_function_trains_as_without(results):
    x = np.random.default_rng(0).normal(3, 2, (24, 4)).astype("float32")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(0.01), "mse")
    model.fit(x, x[:, :1], batch_size=8, verbose=0, shuffle=False)
    assert results["step in a function"] == pytest.approx(model.get_weights()[0].ravel(), rel=1e-4)
