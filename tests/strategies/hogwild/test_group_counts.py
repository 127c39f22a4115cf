"""What the replicas of a worker group count together is what one process counts."""

import json

import pytest
from support_paths import PROGRAMS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def test_examples_that_a_layer_counts_count_once_in_a_group_of_two(tmp_path, run_python):
    run_python(tmp_path, str(PROGRAMS / "group_counts.py"), timeout=250)
    output = (tmp_path / "output.txt").read_text()
    assert (tmp_path / "results.json").exists(), output[-5000:]
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["group"] == pytest.approx(found["alone"], rel=1e-5)
    assert found["group"][0] == 13 and found["group"][1] == -13
    assert "differs from that in one process" not in output
