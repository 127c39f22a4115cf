"""A link that is cut and never healed: the training ends after the documented time, and names the task behind it."""

import json
import subprocess
import sys

import pytest
from support_paths import PROGRAMS

sys.path.insert(0, str(PROGRAMS.parents[2] / "benchmarks"))
import networks

pytestmark = pytest.mark.cluster


@pytest.fixture(autouse=True)
def namespaces():
    """Skips where no network namespaces can be made."""
    if sentence := networks.missing():
        pytest.skip(sentence)
    if subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode:
        pytest.skip("this container may not make network namespaces (CAP_SYS_ADMIN)")


def test_a_ps_behind_a_cut_link_ends_the_training_and_is_named(start):
    job = start(str(PROGRAMS / "cut_ps.py"))
    assert job.wait(200) == 0, job.output
    found = json.loads(job.output.partition("FOUND ")[2].splitlines()[0])
    assert found["exits"] == {"chief:0": 1, "worker:0": 75, "worker:1": 75, "ps:0": 75}, found
    assert 4 <= found["seconds"] < 30
    assert f"no answer from ps:0 ({found['address']}:2222) for 4 s; training cannot go on" in found["said"]
