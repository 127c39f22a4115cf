"""Under Hogwild, training continues exactly from its files, and the files load everywhere."""

import json
import subprocess
import sys

import numpy as np
import pytest
from support_paths import PROGRAMS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(500)]

PROGRAM = str(PROGRAMS / "hogwild_saving.py")

SOURCES = ["from_weights", "from_weights_in_parts", "from_file", "from_checkpoint", "from_weights_saved_again"]

PLAIN = """
import json, sys
import keras, tensorflow as tf

keras.utils.set_random_seed(1)
layers = [keras.layers.Dense(7, activation="tanh"), keras.layers.Dropout(0.3), keras.layers.Dense(1)]
model = keras.Sequential([keras.Input((5,)), *layers])
model.compile(keras.optimizers.Adam(0.01), "mse", run_eagerly=True)
model.optimizer.build(model.trainable_variables)
read = []

def note(model):
    variables = [v for v in model.weights + model.optimizer.variables if "seed" not in v.path]
    read.append([v.numpy().tolist() for v in variables])
    for variable in variables:
        variable.assign(tf.zeros_like(variable.value))

model.load_weights("two.weights.h5")
note(model)
tf.train.Checkpoint(model=model).restore(tf.train.latest_checkpoint("checkpoints")).assert_existing_objects_matched()
note(model)
tf.train.Checkpoint(root=model).restore("saved_model/variables/variables").expect_partial()
note(model)
loaded = keras.saving.load_model("two.keras")
note(loaded)
model.fit(tf.ones([8, 5]), tf.ones([8, 1]), verbose=0)
model.save_weights("plain.weights.h5")
json.dump(read, open("plain.json", "w"))
assert not any(name.startswith("tfdist") for name in sys.modules)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory, run_python):
    """Runs the programs: two groups with 2 ps, without tfdist, two groups without ps, one group. Returns their folder."""
    folder = tmp_path_factory.mktemp("saving")

    def run(part):
        run_python(folder, PROGRAM, part, output=f"{part}.txt", timeout=300)
        assert (folder / f"{part}.json").exists(), (folder / f"{part}.txt").read_text()[-5000:]

    run("save")
    plain = subprocess.run([sys.executable, "-c", PLAIN], cwd=folder, capture_output=True, text=True, timeout=300)
    assert plain.returncode == 0, plain.stderr[-5000:]
    run("restore")
    run("one")
    return folder


@pytest.fixture(scope="module")
def read(folder):
    """Returns a function that reads the results of a program."""
    return lambda name: json.loads((folder / f"{name}.json").read_text())


def lists(values):
    return list(values.values()) if isinstance(values, dict) else values


def difference(got, expected):
    pairs = zip(lists(got), lists(expected), strict=True)
    return max(float(np.abs(np.array(mine) - np.array(other)).max()) for mine, other in pairs)


def test_saving_does_not_disturb_training_and_loading_repeats_it(read):
    results = read("save")
    assert difference(results["straight"], results["saved"]) > 0.01
    assert difference(results["again"], results["straight"]) == 0


@pytest.mark.parametrize("source", SOURCES)
def test_another_process_without_ps_restores_everything(folder, read, source):
    assert difference(read("restore")[source]["restored"], read("save")["saved"]) == 0
    with np.load(folder / "saved.npz") as saved, np.load(folder / f"{source}.npz") as restored:
        assert set(restored) == set(saved)
        for name in saved:
            np.testing.assert_array_equal(restored[name], saved[name], err_msg=name)
        own = [name for name in saved if name.startswith("own|optimizer") and name.endswith("|0")]
        assert any((saved[name] != saved[name[:-1] + "1"]).any() for name in own)  # The groups differ.
        assert any(saved[name].any() for name in saved if name.endswith("|momentum"))


def test_two_groups_that_continue_from_a_file_end_as_without_interruption(read):
    assert difference(read("restore")["from_file"]["trained"], read("save")["straight"]) == 0


def test_an_interrupted_fit_of_one_group_ends_as_without_interruption(read):
    (losses, interrupted), (weights, resumed) = read("one")["losses"], read("one")["weights"]
    assert interrupted == losses and len(losses) == 4
    assert difference(resumed, weights) == 0


def test_with_another_number_of_groups_the_outer_momentum_is_restored_and_groups_start_from_the_chief_s_slots(folder, read):
    with np.load(folder / "saved.npz") as saved, np.load(folder / "one.npz") as restored:
        own = [name for name in restored if name.startswith("own|")]
        counts = [int(saved[f"own|optimizer|0|{group}"]) for group in (0, 1)]
        assert own == ["own|optimizer|0|0"] and int(restored[own[0]]) == int(
            np.mean(counts)
        )  # By which Adam corrects its slots.
        outer = [name for name in saved if name.startswith("outer|")]
        assert outer
        for name in outer:
            np.testing.assert_array_equal(restored[name], saved[name])
    assert difference(read("one")["two groups"], read("save")["saved"]) == 0
    assert "saved with 2 worker groups, there are 1 now" in read("one")["log"]


@pytest.mark.parametrize("source", ["bfloat16_weights", "bfloat16_checkpoint"])
def test_a_model_of_bfloat16_variables_that_has_trained_takes_its_state_from_files(folder, read, source):
    assert "bfloat16" in read("one")["bfloat16"]["dtypes"] and read("one")["bfloat16"]["trained"]
    with np.load(folder / "bfloat16.npz") as saved, np.load(folder / f"{source}.npz") as restored:
        assert set(restored) == set(saved) and any(saved[name].any() for name in saved if name.endswith("|momentum"))
        for name in saved:
            np.testing.assert_array_equal(restored[name], saved[name], err_msg=name)


def test_a_group_restores_its_values_by_name_if_the_loaded_model_has_its_variables_in_another_order(read):
    assert read("one")["float8"] == 0


def test_files_load_without_tfdist(read):
    saved = lists(read("save")["saved"])
    for values in read("plain"):
        assert difference(values, saved) == 0
    assert len(read("plain")) == 4


def test_a_file_of_plain_keras_loads(read):
    assert "has no state of worker groups" in read("one")["log"]


def test_weights_that_a_callback_sets_during_an_epoch_reach_all_groups(read):
    assert len(read("restore")["set"]) == 4
    assert max(read("restore")["set"]) < 0.01  # Of 100. A push in flight at that moment adds to it.
