"""TensorFlow's own tests of faults under ParameterServerStrategy (fault_tolerance_test_base.py) pass on parameter_server.

A few of them, on one cluster, unless all tests run: each takes 4 to 20 s.
"""

import pytest
from support_paths import PROGRAMS
from tensorflow.python.distribute.coordinator.fault_tolerance_test_base import BaseFaultToleranceTest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(250)]

FEW = (  # In this order. A step of the second one goes on after it, and the last one kills a ps.
    "testTwoWorkersPreempted",
    "testFetchFromPSAfterWorkerFailure",
    "testJoinRaisesUnavailableErrorAtPsFailure",
)
OTHERS = tuple(name for name in vars(BaseFaultToleranceTest) if name.startswith("test") and name not in FEW)


@pytest.fixture(scope="module")
def output(tmp_path_factory, run_python):
    """What the program writes that runs a few tests on one cluster."""
    folder = tmp_path_factory.mktemp("faults")
    run_python(folder, str(PROGRAMS / "fault_tolerance.py"), *FEW, timeout=200)
    return (folder / "output.txt").read_text()


@pytest.mark.parametrize("name", FEW)
def test_faults(output, name):
    assert f"{name} has passed" in output, output


@pytest.mark.release
@pytest.mark.parametrize("name", OTHERS)
def test_other_faults(start, name):
    job = start(str(PROGRAMS / "fault_tolerance.py"), name)
    assert job.wait(200) == 0, job.output
    assert "OK" in job.output
