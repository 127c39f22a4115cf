"""Jobs in the background: status, logs and cancel from another process, after the terminal, or the supervisor, is gone."""

import concurrent.futures
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from types import SimpleNamespace

import pytest
from processes import MARK, end_processes, processes_of
from support_paths import PROGRAMS
from waits import wait_until

from tfdist.launch.backends.interface import BackendError
from tfdist.launch.background import background_jobs
from tfdist.launch.jobs.job_status import JobStatus, State

pytestmark = pytest.mark.cluster

QUICK = str(PROGRAMS / "quick_launcher.py")
WAITING = """
import pathlib, sys, time
from tfdist.launch.commands import run
from tfdist.launch.supervision import attached
def wait(*_):
    pathlib.Path("waits").touch()
    time.sleep(600)
attached.AttachedRun._started = wait  # As Ray does where there is no room.
sys.exit(run(["run", *sys.argv[1:]]))
"""
"""A launcher that does not get to start its tasks."""

COUNTS = "import time\nfor n in range(10000): print('count', n, flush=True); time.sleep(0.05)\n"


@pytest.fixture
def variables(tmp_path):
    """The environment of the commands of a test; ends what they leave running."""
    mark = uuid.uuid4().hex
    yield os.environ | {MARK: mark, "TFDIST_STATE_DIR": str(tmp_path / "state"), "PYTHONUNBUFFERED": "1"}
    end_processes(mark)


@pytest.fixture
def tfdist(tmp_path, variables, quick_python):
    def run(*words, command=("-m", "tfdist"), timeout=60, **more):
        return quick_python.run([*command, *words], str(tmp_path), variables | more, timeout)

    return run


@pytest.fixture
def detach(tfdist, tmp_path):
    """Starts a program in the background; returns its handle."""

    def start(body, *flags, arguments=(), **more):
        name = f"program{len(list(tmp_path.glob('program*')))}.py"
        (tmp_path / name).write_text(body)
        got = tfdist("--tier", "BASIC", "--detach", *flags, name, *arguments, command=(QUICK,), **more)
        assert got.returncode == 0, got.stderr
        assert re.fullmatch(r"local://\d{8}-\d{6}-[0-9a-f]{6}\n", got.stdout), got.stdout
        return got.stdout.strip()

    return start


def test_a_job_goes_on_when_its_terminal_is_gone_and_is_ended_by_its_handle(tfdist, variables, tmp_path):
    (tmp_path / "program.py").write_text(COUNTS)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        command = [sys.executable, QUICK, "--tier", "BASIC", "--detach", "program.py"]
        os.execve(sys.executable, command, variables)
    shown = b""
    while b"\n" not in shown:
        shown += os.read(terminal, 1024)
    os.waitpid(pid, 0)
    os.close(terminal)
    handle = shown.decode().strip()
    wait_until(lambda: "count 20" in tfdist("logs", handle).stdout)
    status = tfdist("status", handle)
    assert (status.returncode, status.stdout.splitlines()[0]) == (0, f"{handle}  running")
    (of_chief,) = re.findall(r"chief:0  running  localhost  process (\d+)", status.stdout)
    assert int(of_chief) in processes_of(variables[MARK])
    assert tfdist("status").stdout.startswith(f"{handle}  running")
    chart, drawing = tfdist("status", handle, "--mermaid").stdout, tfdist("status", handle, "--svg", "job.svg")
    assert '["chief:0<br/>running"]:::running' in chart and "classDef running fill:#c9eec0" in chart
    assert drawing.returncode == 0 and "#c9eec0" in (tmp_path / "job.svg").read_text()
    cancelled = tfdist("cancel", handle)
    assert (cancelled.returncode, cancelled.stdout) == (0, f"{handle}  cancelled\n")
    assert processes_of(variables[MARK]) == {}
    status = tfdist("status", handle, "--json")
    state = json.loads(status.stdout)
    assert (status.returncode, state["state"], state["exit_code"], state["reason"]) == (1, "cancelled", 143, "ended by SIGTERM")
    assert [(task["pid"], task["state"]) for task in state["tasks"]] == [(None, "cancelled")]
    assert tfdist("cancel", handle).stdout == f"{handle} has ended already: cancelled\n"


def test_a_job_in_the_background_of_a_batch_script_is_warned_of(tfdist, tmp_path):
    (tmp_path / "program.py").write_text("pass")
    in_script = {"SLURM_JOB_ID": "7", "SLURM_TASK_PID": "8"}
    got = tfdist("--tier", "BASIC", "--detach", "program.py", command=(QUICK,), **in_script)
    assert (got.returncode, got.stdout[:8]) == (0, "local://")
    assert (
        "tfdist: --detach: when the script or step of Slurm in which this command runs has ended, Slurm ends the " in got.stderr
    )


def test_following_ends_with_the_job_and_misses_no_line_and_two_jobs_do_not_meet(detach, tfdist):
    other = detach(COUNTS)
    handle = detach("import time\nfor n in range(300): print('line', n, flush=True); time.sleep(0.005)\nprint('end', end='')")
    one = tfdist("logs", "-f", handle, "chief:0")
    assert (one.returncode, one.stdout.splitlines()) == (0, [*(f"line {n}" for n in range(300)), "end"])
    everything = tfdist("logs", "--follow", handle).stdout
    assert "chief:0 | line 299\n" in everything and "tfdist: done in" in everything
    status = tfdist("status", handle)
    assert status.returncode == 0 and "succeeded" in status.stdout and "exit code 0" in status.stdout
    assert [row.split()[1] for row in tfdist("status").stdout.splitlines()] == ["running", "succeeded"]
    assert tfdist("cancel", other).returncode == 0


def test_following_a_task_that_has_not_started_waits_for_it(detach, tfdist, tmp_path):
    handle = detach(COUNTS)
    log = tmp_path / "late.log"
    (about,) = (tmp_path / "state").rglob("job.json")
    about.write_text(json.dumps({**json.loads(about.read_text()), "logs": {"chief:0": str(log)}}))
    assert tfdist("logs", handle, "chief:0").stdout == ""
    with concurrent.futures.ThreadPoolExecutor() as threads:
        following = threads.submit(tfdist, "logs", "-f", handle, "chief:0")
        time.sleep(1.5)
        log.write_text("first\n")
        assert tfdist("cancel", handle).returncode == 0
        got = following.result()
    assert (got.returncode, got.stdout) == (0, "first\n"), got.stderr


def test_following_goes_on_after_a_log_was_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(background_jobs, "POLL_SECONDS", 0.0)
    log, state, got = tmp_path / "log", [State.RUNNING], []
    log.write_text("1\n2\n3\n")
    folder = SimpleNamespace(path=tmp_path, status=lambda: JobStatus(state[0]))
    for line in background_jobs._lines(log, folder, follow=True):
        got.append(line)
        if line == "3":
            os.truncate(log, 0)  # As `copytruncate` does.
            log.write_text("4\n")
            state[0] = State.SUCCEEDED
    assert got == ["1", "2", "3", "4"]


def test_following_a_task_that_has_not_started_ends_when_the_folder_of_the_job_is_removed(tmp_path, monkeypatch):
    def sleep(seconds):
        raise AssertionError("it waits")

    monkeypatch.setattr(background_jobs, "time", SimpleNamespace(sleep=sleep))
    folder = SimpleNamespace(path=tmp_path / "gone", status=lambda: JobStatus(State.STARTING))
    with pytest.raises(BackendError, match="gone was removed, and nothing else tells when the job ends"):
        next(background_jobs._lines(tmp_path / "worker-1.log", folder, follow=True))


def test_following_ends_when_the_folder_of_the_job_is_removed(detach, tfdist, tmp_path, variables, quick_python):
    handle = detach(COUNTS)
    wait_until(lambda: "count 5" in tfdist("logs", handle).stdout)
    (state,) = (tmp_path / "state").rglob("state.json")
    supervisor = json.loads(state.read_text())["supervisor"]["pid"]
    follower = quick_python.start_piped(["-m", "tfdist", "logs", "-f", handle], str(tmp_path), variables)
    assert any(b"count 5" in line for line in iter(follower.stdout.readline, b""))
    shutil.rmtree(state.parent)
    output, _ = follower.communicate(timeout=60)
    os.kill(supervisor, signal.SIGTERM)
    assert follower.returncode == 2 and "was removed, and nothing else tells" in output


def test_a_job_that_fails_says_why_and_its_folder_is_private_and_holds_no_secret(detach, tfdist, tmp_path):
    body = "import os, sys\nassert os.environ['KEY'] == sys.argv[2] == 'geheim 7'\nsys.exit(3)"
    handle = detach(body, "--env", "KEY", arguments=("--token", "geheim 7"), KEY="geheim 7")
    wait_until(lambda: json.loads(tfdist("status", handle, "--json").stdout)["state"] == "failed")
    status = tfdist("status", handle)
    assert status.returncode == 1
    assert status.stdout.startswith(f"{handle}  failed: chief:0 failed first: it exited with 3\n  chief:0  failed")
    folders = [path for path in (tmp_path / "state").rglob("*") if path.is_dir()]
    assert {path.stat().st_mode & 0o777 for path in folders} == {0o700}
    files = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert files and {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert not any("geheim" in path.read_text() for path in files)


def test_a_killed_supervisor_is_told_from_a_living_one_and_leaves_no_process(detach, tfdist, variables, tmp_path):
    handle = detach(COUNTS)
    (state,) = (tmp_path / "state").rglob("state.json")
    wait_until(lambda: json.loads(state.read_text())["state"] == "running")
    os.kill(json.loads(state.read_text())["supervisor"]["pid"], signal.SIGKILL)
    wait_until(lambda: processes_of(variables[MARK]) == {})
    status = tfdist("status", handle)
    assert status.returncode == 1 and "lost: its supervisor (process" in status.stdout
    assert tfdist("logs", "-f", handle).returncode == 0  # It does not wait for ever.
    assert tfdist("cancel", handle).stdout == f"{handle} has ended already: lost\n"


def test_a_job_that_cannot_be_started_is_one_line_and_leaves_no_folder(detach, tfdist, tmp_path):
    (tmp_path / "program.py").write_text("")
    command = {"command": (QUICK,)}
    for flags, message in (
        (("--cluster", '{"cluster": {"worker": ["localhost:1", "localhost:1"]}}'), "same address"),
        (("--tier", "BASIC", "--log_dir", "/proc/self"), "--log_dir: /proc/self cannot be written"),
        (("--tier", "BASIC", "--env", "NO_SUCH_VARIABLE"), "--env NO_SUCH_VARIABLE: this variable has no value here"),
    ):
        got = tfdist(*flags, "--detach", "program.py", **command)
        assert (got.returncode, got.stdout, got.stderr.count("\n")) == (2, "", 1), got.stderr
        assert message in got.stderr
    assert list((tmp_path / "state").rglob("job.json")) == []


def test_a_parent_that_ignores_the_end_of_its_children_hides_no_error(tfdist, tmp_path):
    (tmp_path / "program.py").write_text("")
    code = f"""if True:
    import os, signal, sys
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    os.execv(sys.executable, [sys.executable, {QUICK!r}, *sys.argv[1:]])
    """
    got = tfdist("--tier", "BASIC", "--log_dir", "/proc/self", "--detach", "program.py", command=("-c", code))
    assert got.returncode == 2 and got.stderr.count("\n") == 1, got.stderr
    assert "--log_dir: /proc/self cannot be written" in got.stderr


def test_a_job_that_waits_for_its_start_can_be_cancelled_and_ctrl_c_leaves_nothing(tfdist, variables, tmp_path):
    (tmp_path / "program.py").write_text("")
    command = [sys.executable, "-c", WAITING, "--tier", "BASIC", "--detach", "program.py"]
    launcher = subprocess.Popen(command, cwd=tmp_path, env=variables, start_new_session=True)
    wait_until((tmp_path / "waits").exists)
    (state,) = (tmp_path / "state").rglob("state.json")
    supervisor = json.loads(state.read_text())["supervisor"]["pid"]
    assert supervisor != launcher.pid and supervisor in processes_of(variables[MARK])
    assert tfdist("status").stdout.startswith(f"local://{state.parent.name}  starting")
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(60) == 130
    assert processes_of(variables[MARK]) == {} and not state.parent.exists()
    (tmp_path / "waits").unlink()
    launcher = subprocess.Popen(command, cwd=tmp_path, env=variables, start_new_session=True, stderr=subprocess.PIPE)
    wait_until((tmp_path / "waits").exists)
    (state,) = (tmp_path / "state").rglob("state.json")
    handle = f"local://{state.parent.name}"
    assert tfdist("cancel", handle).stdout == f"{handle}  cancelled\n"
    _, errors = launcher.communicate(timeout=60)
    assert (launcher.returncode, errors.decode()) == (143, f"tfdist: {handle} was ended before its tasks ran\n")
    assert tfdist("status").stdout.startswith(f"{handle}  cancelled")


def test_a_job_that_waits_long_for_its_start_has_a_handle_and_goes_on(tfdist, variables, tmp_path):
    (tmp_path / "program.py").write_text("print('one')")
    late = """
    import pathlib, time
    from tfdist.launch.background import detach
    from tfdist.launch.supervision import attached
    detach.HANDLE_SECONDS = 0.5
    started = attached.AttachedRun._started
    def wait(*arguments):
        while not pathlib.Path("go").exists(): time.sleep(0.1)
        return started(*arguments)  # As Ray does where there was no room.
    attached.AttachedRun._started = wait
    """
    launcher = f"{textwrap.dedent(late)}\nimport runpy\nrunpy.run_path({QUICK!r}, run_name='__main__')"
    got = tfdist("--tier", "BASIC", "--detach", "program.py", command=("-c", launcher))
    assert (got.returncode, got.stderr.count("\n")) == (0, 1), got.stderr
    assert "its tasks are not being started yet" in got.stderr
    handle = got.stdout.strip()
    assert tfdist("status", handle).stdout == f"{handle}  starting\n"
    (tmp_path / "go").touch()
    assert "chief:0 | one\n" in tfdist("logs", "-f", handle).stdout
    assert tfdist("status", handle).stdout.startswith(f"{handle}  succeeded")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_state_file_says_that_a_signal_ended_the_job_before_its_start(variables, tmp_path, number):
    (tmp_path / "program.py").write_text("")
    command = [sys.executable, "-c", WAITING, "--tier", "BASIC", "--state_file", "state.json", "program.py"]
    launcher = subprocess.Popen(command, cwd=tmp_path, env=variables, start_new_session=True)
    wait_until((tmp_path / "waits").exists)
    launcher.send_signal(number)
    assert launcher.wait(60) == 128 + number
    state = json.loads((tmp_path / "state.json").read_text())
    assert (state["state"], state["reason"]) == ("cancelled", f"ended by {number.name}")
    assert state["exit_code"] == 128 + number


def test_a_job_that_is_started_without_standard_streams_has_its_output(tfdist, variables, tmp_path):
    (tmp_path / "program.py").write_text("print('one')")
    command = f"{sys.executable} {QUICK} --tier BASIC --detach program.py <&- >&- 2>&-"
    assert subprocess.run(command, shell=True, cwd=tmp_path, env=variables, timeout=60).returncode == 0
    (about,) = (tmp_path / "state").rglob("job.json")
    got = tfdist("logs", "-f", f"local://{about.parent.name}")
    assert got.returncode == 0 and "chief:0 | one\n" in got.stdout and "tfdist: done in" in got.stdout


def test_a_state_file_says_why_a_job_cannot_be_started(tfdist, tmp_path):
    (tmp_path / "program.py").write_text("")
    flags = ("--tier", "BASIC", "--state_file", "state.json", "--log_dir", "/proc/self")
    got = tfdist(*flags, "program.py", command=(QUICK,))
    state = json.loads((tmp_path / "state.json").read_text())
    assert (got.returncode, state["state"], state["exit_code"]) == (2, "failed", 2)
    assert state["reason"].startswith("--log_dir: /proc/self cannot be written") and state["reason"] in got.stderr


def test_the_logs_of_a_job_are_found_after_a_later_one_has_used_its_log_folder(detach, tfdist, tmp_path):
    def run(text):
        handle = detach(f"print({text!r})", "--log_dir", "logs")
        assert tfdist("logs", "-f", handle).returncode == 0  # It has ended.
        return handle

    handles = {text: run(text) for text in ("one", "two", "three")}
    for text, handle in handles.items():
        assert tfdist("logs", handle, "chief:0").stdout == f"{text}\n"
    for folder in (tmp_path / "logs").glob("earlier-*"):
        shutil.rmtree(folder)
    gone = tfdist("logs", handles["one"], "chief:0")
    assert (gone.returncode, gone.stdout, gone.stderr.count("\n")) == (2, "", 1)
    assert "holds the logs of another job now" in gone.stderr
    assert tfdist("logs", handles["three"], "chief:0").stdout == "three\n"


@pytest.fixture
def small(tmp_path):
    """A file system of 256 KB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root can make a small file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(path):
    """Appends to a file until its disk is full."""
    with open(path, "ab", buffering=0) as file:
        for size in (4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                pass


WAITS_FOR_GO = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)\n"


def test_a_full_state_folder_neither_ends_a_job_in_the_background_nor_hides_its_end(detach, tfdist, tmp_path, small, read_json):
    handle = detach(WAITS_FOR_GO, "--summary", "summary.json", TFDIST_STATE_DIR=str(small))
    (state,) = small.rglob("state.json")
    wait_until(lambda: json.loads(state.read_text())["state"] == "running")
    fill(state.parent / "output.log")
    (tmp_path / "go").touch()
    wait_until((tmp_path / "summary.json").exists)
    wait_until(lambda: (tmp_path / "summary.json").read_text().endswith("}\n"))
    assert read_json("summary.json")["exit_code"] == 0
    wait_until(lambda: json.loads(state.read_text())["state"] == "succeeded")
    shown = tfdist("status", handle, TFDIST_STATE_DIR=str(small))
    assert shown.returncode == 0 and "succeeded" in shown.stdout


def test_a_full_disk_with_state_file_and_output_does_not_end_a_job(variables, tmp_path, small, read_json):
    (tmp_path / "program.py").write_text(WAITS_FOR_GO)
    flags = ("--tier", "BASIC", "--state_file", "small/state.json", "--summary", "summary.json")
    with open(small / "output", "ab") as output:
        command = [sys.executable, QUICK, *flags, "program.py"]
        launcher = subprocess.Popen(command, cwd=tmp_path, env=variables, stdout=output, stderr=output, start_new_session=True)
    wait_until((small / "state.json").exists)
    wait_until(lambda: json.loads((small / "state.json").read_text())["state"] == "running")
    fill(small / "output")
    (tmp_path / "go").touch()
    assert launcher.wait(60) == 0
    assert read_json("summary.json")["exit_code"] == 0
