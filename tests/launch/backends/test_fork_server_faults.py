"""The parent of all tasks: on a system that cannot tell it of its owner's end, and under a plain program when it fails."""

import json
import os
import signal
import socket
import subprocess
import sys
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


STUCK = """
import json, os, signal, socket, time
from tfdist.launch.backends.local import fork_server
fork_server.GRACE_SECONDS = 0.1
fork_server.kill_group = fork_server.kill_process = fork_server.end_children = lambda *_, **__: None
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server = fork_server.ForkServer(theirs, os.getpid(), [], 0.0, {})
pid = os.fork()
if pid == 0:
    signal.pause()
server._running[pid] = fork_server._Process("worker:0")
server._end_all()
os.kill(pid, signal.SIGKILL)  # It ends at last, when the next job runs.
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
server._reap()
theirs.close()
print(ours.recv(1000).decode())
"""


def test_the_late_end_of_a_process_that_could_not_be_killed_is_not_taken_for_that_of_a_task_of_the_next_job():
    got = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=30)
    assert (got.stdout, got.stderr) == ("\n", "")


def test_why_a_process_was_killed_is_said_also_if_the_launcher_had_killed_an_earlier_one_of_its_number(monkeypatch):
    monkeypatch.setattr(fork_server, "_changes", lambda: iter([(4711, signal.SIGKILL)]))
    monkeypatch.setattr(fork_server, "kill_group", lambda pid, number: None)
    monkeypatch.setattr(fork_server.memory_kills, "explanation", lambda *_: "because memory ran out")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        server = fork_server.ForkServer(theirs, os.getpid(), [], 0.0, {})
        for number, note in ((signal.SIGKILL, ""), (signal.SIGCONT, "because memory ran out")):
            server._running[4711] = fork_server._Process("worker:0")
            server._signal_task(4711, number)
            server._reap()
            assert json.loads(ours.recv(1000))["note"] == note


def test_tasks_that_are_all_started_again_share_what_their_strategy_imports():
    code = """
import importlib, sys
from tfdist.launch.backends.local.fork_server import PRELOAD
from tfdist.strategies import MODULES
for name in PRELOAD:
    importlib.import_module(name)
before = {*sys.modules}
importlib.import_module(MODULES["multi_worker_mirrored"])
from tfdist.strategies.checkpoint import atomic_saving, job_backup
print([name for name in sys.modules if name not in before])
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
