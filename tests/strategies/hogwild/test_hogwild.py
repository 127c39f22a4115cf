"""Hogwild with one worker group trains as a single process. test_contract.py tests the rest of Keras under it."""

import pytest
from support_paths import PROGRAMS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

PROGRAM = str(PROGRAMS / "hogwild.py")


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


def test_one_worker_group_trains_as_one_process(start, read_json):
    jobs = start(PROGRAM, "group.json", "2"), start(PROGRAM, "alone.json")
    for job in jobs:
        assert job.wait(200) == 0, job.output
    group, alone = read_json("group.json"), read_json("alone.json")
    assert group.pop("strategy") == "Hogwild" != alone.pop("strategy")
    assert group["two_optimizers"]["iterations"] == [40, 20]
    assert_near(group, alone)
