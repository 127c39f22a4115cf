"""Replicas and worker groups draw random numbers of their own, and states count as in one process.

Also methods with @tf.function: what the check of a step traces must not stay in them.
"""

import json

import keras
import numpy as np
import pytest
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


@pytest.fixture(scope="module")
def results(request, tmp_path_factory, run_python):
    name = request.param
    folder = tmp_path_factory.mktemp("own_numbers")
    (folder / "cluster.conf").write_text(f"cluster {{ {CLUSTERS[name]} }}")
    strategy = "parameter_server" if name == "asynchronous" else name
    launch = ("-m", "tfdist.launch", "--cluster", "cluster.conf", "--strategy", strategy)
    assert run_python(folder, *launch, str(PROGRAMS / "own_numbers.py"), timeout=250) == 0, (folder / "output.txt").read_text()[
        -5000:
    ]
    return json.loads((folder / "own_numbers.json").read_text())


on = lambda *names: pytest.mark.parametrize("results", names, indirect=True)  # noqa: E731


@on(*TOGETHER)
def test_replicas_of_a_step_draw_different_numbers_and_the_first_those_of_one_process(results):
    noise, states = results["two"]
    assert len(np.unique(noise)) == np.size(noise)
    generator = keras.random.SeedGenerator(3)
    expected = [keras.random.normal((1, 1), seed=generator).numpy().item() for _ in range(STEPS)]
    assert [row[0] for row in noise[::2]] == pytest.approx(expected)
    assert all(state == [3, STEPS] for state in states)
    in_function, states = results["in a function"]
    assert [row[0] for row in in_function] == [row[0] for row in noise]
    assert all(state == [3, STEPS] for state in states)


@on(*TOGETHER)
def test_replicas_drop_out_different_units(results):
    sums, states = results["masks"]
    assert len(np.unique(sums)) == 3  # Kept by both replicas, by one, by none.
    assert sums[0] != sums[1]
    assert all(state == [1, 2] for state in states)


@on("asynchronous")
def test_worker_groups_draw_different_numbers_and_count_each_draw(results):
    for case in ("one", "in a function"):
        noise, states = results[case]
        assert len(np.unique(noise)) == np.size(noise), case
        assert states == [[3, STEPS]], case
    assert results["masks"][1] == [[1, 2]]


@on(*CLUSTERS)
def test_a_method_with_tf_function_changes_the_state_of_its_layers_in_each_step(results):
    assert all(state == [5, 3] for state in results["steps"])
    # Steps with a momentum of 0.99 towards means of about 3: three, or of groups that step at the same time the last one.
    least = 3 if results["replicas"] > 1 else 1
    for mean in results["moving mean"]:
        assert 0.65 * 3 * (1 - 0.99**least) < mean < 1.35 * 3 * (1 - 0.99**3)


@on(*TOGETHER)
def test_a_train_step_with_tf_function_trains_as_without(results):
    x = np.random.default_rng(0).normal(3, 2, (24, 4)).astype("float32")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(0.01), "mse")
    model.fit(x, x[:, :1], batch_size=8, verbose=0, shuffle=False)
    assert results["step in a function"] == pytest.approx(model.get_weights()[0].ravel(), rel=1e-4)
