"""Programs that tests start in forks of a process with TensorFlow run as Python itself runs them."""

import signal

import pytest

pytestmark = pytest.mark.cluster

FACTS = """
import atexit, os, signal, sys, tempfile
atexit.register(lambda: print("at the end", len(threads)))
threads = [1]
print(__name__, __file__ if "__file__" in globals() else None, __package__, sys.argv, sys.path)
print(os.getcwd(), os.environ["A"], "TF_CONFIG" in os.environ, tempfile.gettempdir(), sys.stdin.read(), os.getsid(0) == os.getpid())
print(signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGCHLD))
print(sorted(os.listdir("/proc/self/fd"))[:3], sys.modules["__main__"].__dict__ is globals())
"""
ENDS = {
    "nothing": "",
    "a code": "sys.exit(3)",
    "a text": "sys.exit('the end')",
    "no code": "sys.exit(None)",
    "an exception": "def fail(): raise ValueError('wrong')\nfail()",
    "a signal": "os.kill(os.getpid(), signal.SIGKILL)",
    "an interrupt": "os.kill(os.getpid(), signal.SIGINT)",
}


@pytest.mark.parametrize(
    ("command", "end"),
    [
        *((["program.py"], end) for end in ENDS),
        *((command, end) for command in (["-m", "program"], ["-c", None]) for end in ("nothing", "an exception")),
    ],
    ids=str,
)
def test_a_fork_of_the_warm_process_is_like_a_fresh_one(start, tmp_path, command, end):
    (tmp_path / "program.py").write_text(FACTS + ENDS[end])
    words = [word or FACTS + ENDS[end] for word in command]
    environment = {"A": "b c", "TMPDIR": str(tmp_path)}
    warm = start(*words, "x", "-y", environment=environment)
    fresh = start(*words, "x", "-y", environment=environment, fresh=True)
    assert warm.wait(60) == fresh.wait(60)
    assert warm.output == fresh.output
    assert warm.left() == fresh.left() == {}


def test_the_processes_of_a_warm_program_are_found_and_end(start):
    code = "import subprocess, sys, time; subprocess.Popen(['sleep', '60']); print('up'); time.sleep(60)"
    job = start("-c", code)
    job.wait_for("up")
    assert len(job.left()) >= 2
    assert job.process.poll() is None
    job.process.send_signal(signal.SIGTERM)
    assert job.wait() == -signal.SIGTERM
    assert list(job.left().values()) == ["sleep 60 "]
