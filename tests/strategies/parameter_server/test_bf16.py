"""Tests parameter_server with `--compression bf16`: weights and gradients travel rounded, and nothing else does."""

import json

import numpy as np
import pytest
from support_paths import PROGRAMS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def results(tmp_path_factory, run_python):
    folder = tmp_path_factory.mktemp("bf16")
    tasks = json.dumps({"chief": 1, "worker": 1, "ps": 2})
    command = ["-m", "tfdist.launch", "--cluster", tasks, "--compression", "bf16"]
    assert run_python(folder, *command, str(PROGRAMS / "server_bf16.py"), "--", "results.json", timeout=200) == 0
    output = (folder / "output.txt").read_text()
    assert "strategy  parameter_server" in output and "; parameters and gradients travel as bf16" in output
    return json.loads((folder / "results.json").read_text())


def test_numbers_are_those_of_one_process_that_rounds_at_the_same_places(results):
    for name, here, exact in zip(results["names"], results["here"], results["exact"], strict=True):
        assert here < exact / 20, (name, here, exact)  # A sum in another order may round to the neighbor.


def test_large_tensors_travel_as_bfloat16(results):
    # With the batch, and with the row numbers that an Embedding looks up.
    assert results["sent_as"] == {"worker to ps": ["bfloat16", "int32"], "ps to worker": ["bfloat16"]}


def test_evaluate_and_predict_use_exact_weights(results):
    np.testing.assert_allclose(*results["loss"], rtol=1e-6)
    np.testing.assert_allclose(*results["outputs"], rtol=1e-5, atol=1e-6)
