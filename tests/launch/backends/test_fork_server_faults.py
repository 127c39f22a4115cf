"""The parent of all tasks: on a system that cannot tell it of its owner's end, and under a plain program when it fails."""

import os
import time

import pytest
from support_paths import PROGRAMS

from tfdist.launch.backends.local import fork_server

pytestmark = pytest.mark.cluster

QUICK = str(PROGRAMS / "quick_launcher.py")

WITHOUT = {
    "the kernel has none": "import errno, os\ndef none(*_): raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))\n"
    "os.pidfd_open = none\n",
    "Python has none": "import os\ndel os.pidfd_open\n",
}


@pytest.mark.parametrize("without", WITHOUT)
def test_without_descriptors_of_processes_a_job_runs_and_ends_with_its_launcher(start, script, tmp_path, without):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(WITHOUT[without])
    environment = {"PYTHONPATH": f"{tmp_path / 'site'}:{os.environ.get('PYTHONPATH', '')}"}
    program = script("import time\nprint('runs', flush=True)\nwhile not os.path.exists('end'): time.sleep(0.05)")
    job = start(QUICK, "--tier", "BASIC", program, environment=environment)
    job.wait_for("chief:0 | runs")
    time.sleep(2 * fork_server.OWNER_POLL_SECONDS)  # It has looked for its owner.
    (tmp_path / "end").touch()
    assert job.wait(60) == 0 and "Traceback" not in job.output, job.output
    (tmp_path / "end").unlink()
    job = start(QUICK, "--tier", "BASIC", program, environment=environment)
    job.wait_for("chief:0 | runs")
    job.process.kill()
    assert job.left(within=30) == {}


def test_a_plain_program_does_not_wait_for_servers_whose_parent_has_failed(start, script):
    body = f"""
    import sys
    sys.path.insert(0, {str(PROGRAMS)!r})
    import quick_launcher
    import tfdist
    quick_launcher.make_quick()
    tfdist.strategy({{"cluster": {{"chief": 1, "worker": 2, "ps": 1}}}}, start_timeout=600)
    """
    job = start(script(body), environment={"TFDIST_TEST_FAULT": "1"})
    assert job.wait(120) == 1, job.output
    *_, last = job.output.splitlines()
    assert "StartTimeoutError: gave up on worker:0 (localhost:" in last and " ps:0 (" in last
    assert last.endswith("the parent process of all tasks is gone: RuntimeError: a fault of this test")
    assert job.left(within=10) == {}
