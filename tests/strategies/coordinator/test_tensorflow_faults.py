"""TensorFlow's own tests of faults under ParameterServerStrategy (fault_tolerance_test_base.py) pass on parameter_server.

A few of them, unless all tests run: each takes 4 to 20 s.
"""

import pytest
import selection
from support_paths import PROGRAMS
from tensorflow.python.distribute.coordinator.fault_tolerance_test_base import BaseFaultToleranceTest

pytestmark = pytest.mark.cluster

FEW = ("testTwoWorkersPreempted", "testFetchFromPSAfterWorkerFailure", "testJoinRaisesUnavailableErrorAtPsFailure")
ALL = tuple(name for name in vars(BaseFaultToleranceTest) if name.startswith("test"))


@pytest.mark.parametrize("name", ALL if selection.ALL else FEW)
def test_faults(start, name):
    job = start(str(PROGRAMS / "fault_tolerance.py"), f"TestFaults.{name}")
    assert job.wait(200) == 0, job.output
    assert "OK" in job.output
