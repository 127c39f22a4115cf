"""Values that are not trained, under hogwild, on a real cluster."""

import json

import numpy as np
import pytest
from support_paths import PROGRAMS

from tfdist.strategies.hogwild.synchronization.push_pull import SEED_STRIDE

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def results(tmp_path_factory, run_python):
    folder = tmp_path_factory.mktemp("values")
    code = run_python(folder, str(PROGRAMS / "hogwild_values.py"), timeout=200)
    assert code == 0, (folder / "output.txt").read_text()[-5000:]
    return json.loads((folder / "results.json").read_text())


def test_moving_averages_do_not_overshoot(results):
    least, greatest = zip(*results["averages_and_scales"][0], strict=True)
    assert min(least) > 0.02 and list(greatest) == sorted(greatest, reverse=True) and greatest[-1] < 0.1


def test_scales_of_float8_are_positive_and_small(results):
    """The scale of an amount is the largest of it divided by 448, or of a gradient by 57344."""
    scales = results["averages_and_scales"][1]
    assert len(scales) == 3 and all(0 < scale < 0.05 for scale in scales)


def test_what_a_callback_assigns_before_a_save_is_in_the_file_and_in_the_model(results):
    assert results["assigned"][0] == [0.5, 0.5]


def test_a_save_within_an_epoch_counts_the_updates_that_its_weights_have(results):
    of_optimizer, of_groups = results["assigned"][1]
    assert of_optimizer == of_groups


def test_parts_of_a_weight_that_a_callback_assigns_reach_the_groups(results):
    assert results["assigned"][2] == [[1.0, 2.0, 9.0, 5.0, 0.0, 7.0]] * 2


def test_a_step_builds_an_optimizer_of_the_models_own(results):
    assert results["built_by_the_step"] == [8, [True, True]]


def test_a_function_takes_variables_as_arguments(results):
    assert results["variables_as_arguments"] == [6.0, 14.0, 20.0, 14.0, 2]


def test_a_variable_that_a_callback_assigns_costs_no_progress(results):
    loss, kernel, weight, _, _ = results["assigned_after_each_batch"]
    assert loss < 0.01 and kernel == pytest.approx([1.0] * 4, abs=0.05) and weight == 640


def test_a_callback_reads_and_halves_what_the_groups_have_of_optimizer_slots_within_an_epoch(results):
    before, after = results["slots_scaled"]
    assert before > 0.01 and after == pytest.approx(before / 2)


def test_what_a_callback_adds_to_the_counter_of_updates_with_assign_too_counts_beside_the_steps_in_flight(results):
    assert results["assigned_after_each_batch"][3] == 640 + 4 * 1000


def test_groups_draw_different_numbers_with_a_generator_of_tensorflow(results):
    first, second = results["assigned_after_each_batch"][4]
    assert (first, second) == (0, SEED_STRIDE)  # The first group draws those of one process.


def test_a_model_exports_after_fit_and_keeps_its_constraints(results):
    kernel, difference = results["exported"]
    assert min(kernel) >= 0 and max(kernel[1::2]) < 0.05 and min(kernel[::2]) > 0.5
    assert difference < 1e-5


def test_groups_train_a_layer_from_a_saved_model(results):
    kernel, differences = results["loaded"]
    assert kernel == pytest.approx([1.0] * 4, abs=0.05) and max(differences) < 1e-5


def test_adam_corrects_the_bias_of_slots_by_the_updates_that_come_with_them(results):
    """Not by a share of them for each group."""
    moved, counts, again = results["counts_of_slots"]
    corrected = 0.9 / (1 - 0.9**1001), 0.999 / (1 - 0.999**1001)
    assert moved == pytest.approx(0.1 * corrected[0] / corrected[1] ** 0.5, rel=1e-4)
    assert counts == [1002, 1002, 5002, 5002]
    assert again == pytest.approx(0, abs=1e-6)


def test_models_that_the_step_of_another_one_trains_and_averages_are_synchronized(results):
    """They are in a closure, not in the model. So is the optimizer, whose slots each group has for itself."""
    kernels, differences, kinds = results["of_other_models"]
    assert np.array(kernels) == pytest.approx(np.outer([1.0, 1.0, -1.0, -1.0], np.ones(4)), abs=0.05)
    assert max(differences) < 1e-5 and kinds == ["own"]
