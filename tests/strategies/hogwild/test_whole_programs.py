"""Programs that train under hogwild: several models one after the other, and batches of many bytes."""

import pytest
from support_paths import PROGRAMS

pytestmark = pytest.mark.cluster


def test_a_weight_that_outlives_its_model_keeps_its_value_and_nothing_is_collected_for_others(start):
    job = start(str(PROGRAMS / "hogwild_dropped.py"))
    assert job.wait(280) == 0 and "fine" in job.output, job.output[-3000:]


def test_a_period_that_takes_several_calls_because_of_its_bytes_trains_as_with_one_call(start):
    job = start(str(PROGRAMS / "hogwild_large.py"))
    assert job.wait(280) == 0 and "fine" in job.output, job.output[-3000:]
