"""Groups wait for each other, here without end: so what ends such a wait is not the grace time."""

import pytest
from support_paths import PROGRAMS

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize(
    ("does", "workers", "period", "fragments", "delay"),
    [
        # An odd number of pushes: the groups would begin the next epoch with different fragments.
        pytest.param("nothing more", 2, 2, 2, 1, marks=pytest.mark.release),
        ("stops", 2, 2, 1, 1),  # The push that one group waits for is not scheduled any more.
        # It is scheduled after the evaluation, which waits for the group.
        pytest.param("evaluates", 2, 2, 1, 1, marks=pytest.mark.release),
        # One group has trained before, so only its first push has progress.
        pytest.param("fits one batch", 2, 2, 2, 1, marks=pytest.mark.release),
        ("fits two batches", 3, 4, 2, 0),  # Some groups have pushed before, to rounds of which the others do not know.
    ],
)
def test_no_group_waits_for_a_push_that_does_not_come(start, does, workers, period, fragments, delay):
    job = start(str(PROGRAMS / "hogwild_endless_grace.py"), does, *map(str, (workers, period, fragments, delay)))
    assert job.wait(200) == 0, job.output
    assert "FOUND True" in job.output
