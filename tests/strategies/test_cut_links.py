"""Links between hosts. A worker that does not reach a ps is left out until it does, and one comes back under another address; a
link is cut and never healed, and the training ends after the documented time, and names the task behind it; hogwild sends fewer
bytes over slow links."""

import json
import re
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


def test_workers_come_back_after_a_cut_and_under_a_new_address_and_a_ps_behind_a_cut_link_ends_the_training(start):
    job = start(str(PROGRAMS / "cut_ps.py"))
    assert job.wait(200) == 0, job.output
    found = json.loads(job.output.partition("FOUND ")[2].splitlines()[0])
    assert found["link"] == [True] * 3 and "worker:0 has joined the training: 2 of 2" in found["said"], found
    assert found["exits"] == {"chief:0": 1, "worker:0": 75, "worker:1": 75, "ps:0": 75}, found
    assert found["joined"] and "worker:1 has joined the training: 2 of 2 worker groups train" in found["said"]
    assert "no answer from ps:0 (ps-0:2222) for 4 s; training cannot go on" in found["said"]


def test_hogwild_measures_a_slow_network_and_sends_int8(start):
    job = start(str(PROGRAMS / "slow_network.py"))
    assert job.wait(150) == 0, job.output
    (line,) = [line for line in job.output.splitlines() if "hogwild: the network carries" in line]
    assert re.search(
        r"carries [1-5]\d(\.\d+)? Mbit/s from ps:0 to worker:[01], so parameters travel as int8 \(--compression\)", line
    )
    assert "TRAINED as int8, learns: True" in job.output
