"""Hogwild with one worker group trains as a single process. test_contract.py tests the rest of Keras under it."""

import pytest
from support_paths import PROGRAMS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

PROGRAM = str(PROGRAMS / "hogwild.py")
ONE_GROUP = (
    "cluster { nworker_groups: 1 nworkers_per_group: 1 nserver_groups: 1 nservers_per_group: 2 server_worker_separate: true }"
)


def assert_near(got, expected, where="results"):
    """Asserts that all numbers in two nested structures are equal up to the order of float32 sums."""
    if isinstance(expected, dict):
        assert got.keys() == expected.keys(), where
        for name, value in expected.items():
            assert_near(got[name], value, f"{where} {name}")
    elif isinstance(expected, list):
        assert len(got) == len(expected), where
        for number, pair in enumerate(zip(got, expected, strict=True)):
            assert_near(*pair, f"{where} {number}")
    else:
        assert got == pytest.approx(expected, rel=1e-3, abs=1e-4), where


def test_one_worker_group_trains_as_one_process(start, tmp_path, read_json):
    (tmp_path / "job.conf").write_text(ONE_GROUP)
    options = ["--strategy", "hogwild", "--sync_period", "4"]
    job = start("-m", "tfdist.launch", "--cluster", "job.conf", *options, PROGRAM, "--", "group.json")
    reference = start(PROGRAM, "alone.json")
    assert reference.wait(200) == 0, reference.output
    assert job.wait(200) == 0, job.output
    assert "hogwild" in job.output
    group, alone = read_json("group.json"), read_json("alone.json")
    assert group["two_optimizers"]["iterations"] == [40, 20]
    assert_near(group, alone)
