"""What Keras promises, under parameter_server on 1 chief, 3 workers and 2 ps: one cluster, all cases of programs/keras_contract.py."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

PROGRAM = Path(__file__).parent / "programs" / "keras_contract.py"
CONFIG = {
    "scaleTier": "CUSTOM",
    "masterType": "standard",
    "workerType": "standard",
    "workerCount": 3,
    "parameterServerType": "standard",
    "parameterServerCount": 2,
}
N = 250
ONCE = {"count": float(N), "ids": N * (N - 1) / 2, "squares": (N - 1) * N * (2 * N - 1) / 6}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("contract")
    (folder / "cluster.json").write_text(json.dumps({"trainingInput": CONFIG}))
    with open(folder / "output.txt", "wb") as output:
        command = [sys.executable, "-m", "tfdist.launch", "--cluster", "cluster.json", str(PROGRAM)]
        subprocess.run(command, cwd=folder, stdout=output, stderr=output, timeout=380)
    assert (folder / "results.json").exists(), (folder / "output.txt").read_text()[-5000:]
    return folder


@pytest.fixture(scope="module")
def results(folder):
    return json.loads((folder / "results.json").read_text())


@pytest.fixture
def result(results, request):
    """The result of the case that the test is named after."""
    got = results[request.node.originalname.removeprefix("test_")]
    assert "error" not in got, got["error"]
    return got


def seen_once(history, epochs, prefix=""):
    return all(history[prefix + name] == [value] * epochs for name, value in ONCE.items())


def test_numpy_arrays_once_per_epoch(result):
    assert seen_once(result, 3)
    assert result["iterations"] == 3 * 8
    assert result["loss"][2] < result["loss"][0]


def test_finite_dataset_once_per_epoch(result):
    assert seen_once(result, 3)
    assert result["iterations"] == 3 * 8


def test_dataset_of_unknown_size_once_per_epoch(result):
    assert seen_once(result, 2)
    assert result["iterations"] == 2 * 8


def test_generator_once(result):
    assert seen_once(result, 1)


def test_py_dataset_once_per_epoch(result):
    assert seen_once(result, 2)


def test_infinite_dataset_with_steps_per_epoch(result):
    assert seen_once(result, 3)  # 10 steps of 25 are one pass
    assert result["iterations"] == 30


def test_steps_per_execution(result):
    assert seen_once(result, 2)
    assert result["iterations"] == 16


def test_validation_split_and_data(result):
    assert result["split"]["count"] == [200.0, 200.0]
    assert result["split"]["val_count"] == [50.0, 50.0]
    assert result["split"]["val_ids"] == [sum(range(200, 250))] * 2
    assert seen_once(result["data"], 2)
    assert result["data"]["val_ids"] == [sum(range(60))] * 2


def test_evaluate_and_predict_equal_one_process(result):
    for name in ("mse", "mae"):
        got, expected = result[name]
        assert got == pytest.approx(expected, rel=1e-5)
    assert result["shape"] == [N, 1] and result["dataset"] == [N, 1]
    assert result["steps"] == [64, 1] and result["on_batch"] == [7, 1]
    assert result["difference"] < 1e-5 and result["order"] < 1e-5


def test_on_batch_functions(result):
    assert result["iterations"] == 20
    assert result["after"] < result["before"]


def test_weights_of_classes_and_samples(result):
    assert result["zero"] == 0.0
    assert result["double"] == pytest.approx(2 * result["plain"], rel=1e-5)


def test_callbacks(result):
    epochs = result["epochs"]
    assert epochs < 20  # EarlyStopping: the learning rate falls to nothing
    assert result["rates"] == pytest.approx([0.5 * 10.0**-epoch for epoch in range(epochs)], rel=1e-4)
    assert result["batches"] == result["iterations"] == 8 * epochs
    assert result["names"] == [["loss", "mae"]]
    assert result["csv_lines"] == epochs + 1


def test_stop_training_in_the_middle_of_an_epoch(result):
    assert result["epochs"] == 1
    assert 4 <= result["steps"] <= 4 + 2 * 3


def test_stock_optimizers(result):
    assert len(result) == 13
    assert set(result.values()) == {16}


def test_clipping_schedule_and_average(result):
    assert result["iterations"] == 40
    assert result["rate"] == pytest.approx(0.1 * 0.5**4, rel=1e-4)
    assert result["loss"][-1] < result["loss"][0]


def test_custom_train_step(result):
    assert result["own"][-1] < 0.5 * result["own"][0]
    assert result["iterations"] == 160


def test_functional_with_several_inputs_and_outputs(result):
    assert {"first_loss", "second_loss", "loss"} <= set(result["names"])
    assert result["shapes"] == {"first": [N, 1], "second": [N, 1]}


def test_normalization_dropout_embedding(result):
    assert result["accuracy"] > 0.9
    assert result["moved"] > 0


def test_saving(result, folder):
    assert result["same"] == [0.0, 0.0]
    assert result["goes_on"] == 24
    # The file is an ordinary Keras file: this process knows nothing of tfdist.
    code = (
        "import keras, numpy as np, sys\n"
        "x = np.arange(250, dtype='float32')\n"
        "x = np.stack([x / 250, np.sin(x), np.cos(x), np.ones(250)], axis=1).astype('float32')\n"
        "model = keras.saving.load_model('saved.keras')\n"
        "np.save('one_process.npy', model.predict(x, verbose=0))\n"
        "assert 'tfdist' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, timeout=120, capture_output=True)
    np.testing.assert_allclose(np.load(folder / "one_process.npy"), np.load(folder / "saved_prediction.npy"), atol=1e-5)


def test_an_error_in_a_step_reaches_the_program_and_the_next_fit_works(result):
    assert "bad : Tensor had" in result["data"]
    assert "on the worker : Tensor had" in result["worker"]
    assert seen_once(result["then"], 1)


def test_what_cannot_work_says_so(result):
    assert "run_eagerly=True cannot work under parameter_server" in result["run_eagerly"]
    assert "jit_compile=True cannot work under parameter_server" in result["jit_compile"]


def test_evaluation_while_steps_are_under_way(result):
    assert result["inside"] == pytest.approx(result["alone"], rel=1e-5)
    assert result["inside"]["count"] == N


def test_after_an_interrupted_fit(result):
    assert result["names"] == [["loss", "mape"]] * 10
    assert seen_once(result["evaluate"], 1)


def test_batches_with_none(result):
    assert seen_once(result, 1)


def test_a_metric_with_several_values(result):
    assert result["shape"] == [2, 2]


def test_what_was_made_outside_the_scope(result, folder):
    assert result["alone"] == 8
    assert "was made outside the strategy's scope and trains in this process alone" in (folder / "output.txt").read_text()
    assert "was made outside the strategy's scope; make it, and call compile, inside" in result["optimizer"]
    assert "the dataset has no batches" in result["empty"]


def test_mixed_precision(result):
    assert result["loss"][-1] < result["loss"][0]


def test_every_case_of_the_program_is_looked_at_here(results):
    assert {f"test_{name}" for name in results} <= globals().keys()
