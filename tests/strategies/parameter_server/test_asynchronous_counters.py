"""Tests that asynchronous worker groups of parameter_server count each step once and each gradient once."""

import json
from types import SimpleNamespace

import keras
import pytest
from support_paths import PROGRAMS

from tfdist.strategies.keras_hooks import optimizer
from tfdist.strategies.parameter_server import constraints
from tfdist.strategies.parameter_server.asynchronous_counters import TakenSums, _stand_ins_of_sums
from tfdist.strategies.parameter_server.constraints import warn_of_lost_updates

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def results(tmp_path_factory, run_python):
    folder = tmp_path_factory.mktemp("counters")
    assert run_python(folder, str(PROGRAMS / "asynchronous_counters.py"), timeout=500) == 0, (
        folder / "output.txt"
    ).read_text()[-3000:]
    warnings = [line for line in (folder / "output.txt").read_text().splitlines() if "a step assigns" in line]
    assert all("/most a value that it computes from the old one" in line for line in warnings)  # A maximum.
    assert len(warnings) == 2  # Of two models.
    return json.loads((folder / "results.json").read_text())


@pytest.mark.parametrize(
    ("case", "total"),
    [("small", 100), ("several steps per execution", 200), ("sharded", 100), ("rows", 50)],
)
def test_no_accumulated_gradient_is_lost_or_counts_twice(results, case, total):
    """Also with a schedule of one's own for the learning rate."""
    assert results[case] == [total, total]


@pytest.mark.parametrize(("case", "total"), [("constrained", 100), ("constrained and sharded", 100)])
def test_the_constraint_of_a_weight_loses_no_update_of_another_group(results, case, total):
    assert results[case] == [total, total]


@pytest.mark.skipif(not hasattr(keras.optimizers, "Muon"), reason="this version of Keras has no Muon")
def test_the_weight_decay_of_muon_loses_no_update_of_another_group(results):
    assert results["decayed"] == pytest.approx([-0.2, -0.2], rel=0.1)


def test_each_update_of_nadam_takes_its_own_momentum_factor_once(results):
    product, expected, updates = results["nadam"]
    assert product == pytest.approx(expected, rel=1e-4) and updates == 100


@pytest.mark.parametrize("groups", [1, 2])
def test_a_layer_that_assigns_its_whole_kernel_is_named_if_several_groups_train_it(caplog, groups):
    layer = keras.layers.SpectralNormalization(keras.layers.Dense(2), name="spectral")
    model = keras.Sequential([keras.Input((2,)), layer], name="model")
    with caplog.at_level("WARNING", logger="tfdist"):
        warn_of_lost_updates(model, SimpleNamespace(has_several_groups=groups > 1))
    assert ("the training of model loses updates: model/spectral, a SpectralNormalization, assigns" in caplog.text) == (
        groups > 1
    )


@pytest.mark.parametrize("case", ["assigned", "assigned in a loop"])
def test_what_a_step_assigns_from_the_old_value_loses_nothing_of_another_group(results, case):
    found = results[case]
    assert [found[name] for name in ("count", "twice", "own", "table", "last")] == [[96], [288], [96], [96], [3]]
    assert [found["average"], found["follows"]] == pytest.approx([8 * (1 - 0.9**96)] * 2, rel=1e-3)


@pytest.mark.parametrize("case", ["assigned", "assigned in a loop"])
def test_rows_that_steps_write_are_those_of_all_shards(results, case):
    assert results[case]["rows"] == 384  # Two for each of the 2 replicas.


def test_the_moving_averages_of_batch_normalization_take_every_step(results):
    assert results["averaged"] == pytest.approx([10 * (1 - 0.995**100)] * 4, rel=0.02)


def test_a_stateful_layer_is_refused_if_groups_would_overwrite_its_state(results):
    assert len(results["stateful"]) == 3
    for error in results["stateful"]:
        assert "layer memory is stateful" in error and "2 worker groups" in error and "one worker group" in error


def test_what_was_made_before_the_strategy_is_refused_by_name(results):
    data, table = results["lost"]
    assert "this dataset was made before tfdist.strategy()" in data
    assert "a step uses a variable, table or other object that was made before tfdist.strategy()" in table


@pytest.mark.parametrize("case", ["assigned", "assigned in a loop"])
def test_averages_of_an_optimizer_of_the_models_own_begin_with_the_weights(results, case):
    assert results[case]["overwritten"] == [1.0]


def test_a_callback_that_assigns_what_it_reads_of_a_weight_loses_no_update(results):
    assert results["clipped"] == [[60.0, 60.0]] * 4


def test_the_loss_scale_grows_after_its_number_of_steps(results):
    assert results["loss scale"] == [2.0**4, 0]


@pytest.mark.parametrize("patched", [constraints, optimizer])
def test_an_update_takes_its_variables_from_a_generator(patched):
    """As Keras does."""
    patched.install()
    weight = keras.Variable([1.0, 1.0])
    keras.optimizers.SGD(0.5).apply([keras.ops.ones(2)], (each for each in [weight]))
    assert weight.numpy().tolist() == [0.5, 0.5]


def test_accumulators_of_variables_that_are_overwritten_are_assigned_as_they_are():
    """Keras keeps a maximum in them, as in float8 training."""
    kernel, scale = SimpleNamespace(overwrite_with_gradient=False), SimpleNamespace(overwrite_with_gradient=True)
    sums, largest = object(), object()
    optimizer = SimpleNamespace(_accumulated_gradients=[sums, largest, None], _trainable_variables=[kernel, scale, kernel])
    first, second, third = _stand_ins_of_sums(optimizer)
    assert isinstance(first, TakenSums) and first.accumulator is sums and second is largest and third is None
