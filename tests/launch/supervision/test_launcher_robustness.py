"""The launcher where its surroundings misbehave: disks, left-over processes. Its tasks run without TensorFlow."""

import contextlib
import os
import signal
import stat
import subprocess
import sys
from types import SimpleNamespace

import pytest
from listening import ALL_LISTEN, LISTENS
from processes import parent_of, processes_of
from support_paths import PROGRAMS
from waits import wait_until

from tfdist.launch.supervision import log_folder
from tfdist.launch.supervision.supervisor import Supervisor

pytestmark = pytest.mark.cluster

QUICK = str(PROGRAMS / "quick_launcher.py")


@pytest.fixture
def quick(start, script):
    """Starts the launcher for one task; `body` runs in it. Returns the job."""

    def run(body, *flags, **options):
        return start(QUICK, "--tier", "BASIC", *flags, script(body), **options)

    return run


HOGWILD = "cluster { nworker_groups: 2 nserver_groups: 2 server_worker_separate: true sync_freq: 8 }"


def test_what_a_killed_worker_left_behind_cannot_block_the_launcher_and_ends_at_the_restart(start, script, tmp_path):
    (tmp_path / "job.conf").write_text(HOGWILD)
    body = """
    if name == "worker-1" and not os.path.exists("babbler"):
        import subprocess
        babbler = subprocess.Popen(["sh", "-c", "trap '' PIPE; while :; do echo babble; done"])
        pathlib.Path("babbler.new").write_text(str(babbler.pid))
        os.rename("babbler.new", "babbler")
    time.sleep(600)
    """
    job = start(QUICK, "--cluster", "job.conf", script(LISTENS, ALL_LISTEN, body))
    wait_until((tmp_path / "babbler").exists)
    first, babbler = job.pid_of("worker:1"), int((tmp_path / "babbler").read_text())
    os.kill(first, signal.SIGKILL)
    job.wait_for("the task is restarted")
    wait_until(lambda: job.pid_of("worker:1") != first)
    wait_until(lambda: babbler not in processes_of(job.mark))
    job.process.send_signal(signal.SIGINT)
    assert job.wait() == 130
    assert job.left() == {}


def test_a_worker_that_has_not_reached_the_chief_for_long_is_restarted_and_ends_no_job(start, script, tmp_path):
    (tmp_path / "job.conf").write_text(HOGWILD)
    launcher = f"""if True:
    import runpy
    from tfdist.launch.jobs import restarts
    restarts.CHIEF_SECONDS = 0.5
    runpy.run_path({QUICK!r}, run_name="__main__")
    """
    body = """
    if name == "worker-1" and not os.path.exists("left"):
        pathlib.Path("left").touch()
        os._exit(75)
    if name == "worker-1": pathlib.Path("back").touch()
    while not os.path.exists("back"): time.sleep(0.05)
    """
    job = start("-c", launcher, "--cluster", "job.conf", script(LISTENS, ALL_LISTEN, body))
    assert job.wait(60) == 0, job.output
    assert "worker:1 ended early: it exited with 75; the training continues, and the task is restarted" in job.output
    assert job.left() == {}


LEAVES_OTHERS = """
    import subprocess, time
    subprocess.Popen(["sh", "-c", "sleep 600 & sleep 600"], start_new_session=True)
    print("started", flush=True)
    time.sleep(600)
"""


def test_what_tasks_left_behind_ends_although_the_fork_server_is_killed(quick):
    job = quick(LEAVES_OTHERS)
    job.wait_for("started")
    os.kill(parent_of(job.pid_of("chief:0")), signal.SIGKILL)
    assert job.wait() == 1
    assert "the parent process of all tasks is gone: it was killed by signal 9" in job.output
    assert job.left(within=10) == {}


def test_what_tasks_left_behind_ends_although_launcher_and_fork_server_are_killed_at_once(quick):
    job = quick(LEAVES_OTHERS)
    job.wait_for("started")
    for pid in (parent_of(job.pid_of("chief:0")), job.process.pid):
        os.kill(pid, signal.SIGKILL)
    assert job.left(within=10) == {}


def test_a_stopped_parent_of_the_tasks_goes_on_when_the_job_is_to_end_so_that_the_program_can_save(quick, tmp_path):
    job = quick("""
        import signal, time
        def save(*_):
            pathlib.Path("saved").touch()
            sys.exit(143)
        signal.signal(signal.SIGTERM, save)
        print("started", flush=True)
        time.sleep(600)
    """)
    job.wait_for("started")
    os.kill(parent_of(job.pid_of("chief:0")), signal.SIGSTOP)
    job.process.terminate()
    assert job.wait() == 143
    assert (tmp_path / "saved").exists()
    assert job.left() == {}


@pytest.mark.parametrize("is_guard", [False, True])
def test_everything_ends_when_the_launcher_is_killed_although_the_parent_of_the_tasks_is_stopped(quick, is_guard):
    job = quick("import time\nprint('started', flush=True)\ntime.sleep(600)")
    job.wait_for("started")
    parent = parent_of(job.pid_of("chief:0"))
    os.kill(parent_of(parent) if is_guard else parent, signal.SIGSTOP)
    job.process.kill()
    assert job.left(within=10) == {}


def test_secrets_are_in_no_command_line_of_the_job_and_in_no_output(quick, tmp_path):
    job = quick(
        """
        import subprocess, sys, time
        assert os.environ["KEY"] == "geheim 7"
        print("has it", flush=True)
        while not os.path.exists("go"): time.sleep(0.05)
        """,
        "--env",
        "KEY",
        environment={"KEY": "geheim 7", "TFDIST_TEST_EXEC": "1"},
        fresh=True,
    )
    job.wait_for("has it")
    assert len(processes_of(job.mark)) >= 3 and not any("geheim" in command for command in processes_of(job.mark).values())
    (tmp_path / "go").touch()
    assert job.wait() == 0 and "geheim" not in job.output
    assert not any("geheim" in path.read_text() for path in tmp_path.glob("tfdist_logs/*/*.log"))


def test_a_stopped_task_is_named_when_another_fails_because_of_it(start, script, tmp_path):
    body = """
    if name == "worker-0":
        while not os.path.exists("fail"): time.sleep(0.05)
        sys.exit(1)
    time.sleep(600)
    """
    job = start(QUICK, "--cluster", '{"worker": 2}', script(LISTENS, body))
    wait_until((tmp_path / "all-listen").exists)
    os.kill(job.pid_of("worker:1"), signal.SIGSTOP)
    job.wait_for("worker:1 was stopped by SIGSTOP")
    (tmp_path / "fail").touch()
    assert job.wait() == 1
    assert "worker:1 was stopped by SIGSTOP, and worker:0 could not go on without it: it exited with 1" in job.output
    assert job.left() == {}


def test_a_log_folder_that_is_used_again_keeps_the_earlier_logs_and_reports_only_this_job(quick, tmp_path, read_json):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "report.json").write_text(
        '{"steps": 77, "examples": 7.0, "fit_seconds": 1.0, "metrics": {"loss": 7.0}}'
    )
    (tmp_path / "logs" / "notes.txt").write_text("mine")
    flags = ("--log_dir", "logs", "--summary", "summary.json")
    assert quick("print('one')", *flags).wait() == 0
    assert (read_json("summary.json")["steps"], read_json("summary.json")["metrics"]) == (None, {})
    second = quick("import time\nprint('two', flush=True)\ntime.sleep(600)", *flags)
    second.wait_for("chief:0 | two")
    assert not (tmp_path / "summary.json").exists()
    third = quick("print('three')", *flags)
    assert third.wait() == 2
    assert third.output == "tfdist: --log_dir: another launcher writes to logs now; name another folder\n"
    second.process.terminate()
    assert second.wait() == 143
    assert (tmp_path / "logs" / "chief-0.log").read_text() == "two\n"
    (earlier,) = (tmp_path / "logs").glob("earlier-*/chief-0.log")
    assert earlier.read_text() == "one\n" and f"are in {earlier.parent.relative_to(tmp_path)} now" in second.output
    assert (tmp_path / "logs" / "notes.txt").read_text() == "mine"


def test_a_full_log_folder_is_said_and_loses_no_number_of_the_summary(quick, tmp_path, read_json):
    (tmp_path / "small").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(tmp_path / "small")]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root can make a small file system")
    try:
        body = """
            path = os.environ["TFDIST_REPORT"]
            print("x" * 100_000)
            pathlib.Path(path).write_text(json.dumps({"steps": 5, "examples": 10.0, "fit_seconds": 1.0, "metrics": {"loss": 2.0}}))
        """
        job = quick(body, "--log_dir", "small", "--summary", "summary.json")
        assert job.wait() == 0
        assert "chief-0.log: No space left on device; the output of chief:0 is not written there from here on" in job.output
        assert (read_json("summary.json")["steps"], read_json("summary.json")["metrics"]) == (5, {"loss": 2.0})
        assert quick(body, "--log_dir", "small").wait() == 0  # It is full at the start.
    finally:
        subprocess.run(["umount", str(tmp_path / "small")], check=True)


def test_folders_of_killed_launchers_are_removed_by_the_next_one(tmp_path, monkeypatch):
    monkeypatch.setattr(log_folder, "MEMORY", tmp_path)
    live = log_folder.LogFolder(str(tmp_path / "one"), print)
    (tmp_path / f"tfdist-report-{os.uname().nodename}-killed").mkdir()
    live.report_dir.rmdir()  # As systemd does when the last session of the user ends.
    live.renew_report_dir()
    other = log_folder.LogFolder(str(tmp_path / "two"), print)
    left = set(tmp_path.glob("tfdist-report-*"))
    live.close()
    other.close()
    assert left == {live.report_dir, other.report_dir}
    assert not set(tmp_path.glob("tfdist-report-*"))


def test_the_end_of_a_job_waits_for_no_task_that_has_ended():
    """Such a wait took up to 0.1 s, three times before all tasks were started again."""
    waits = []
    job = SimpleNamespace(_signals=[], _tasks=SimpleNamespace(running={"worker:1"}), _loop=lambda _, limit: waits.append(limit))
    for names in ({"worker:0"}, {"worker:0", "worker:1"}):
        Supervisor._await_exits(job, names, 5.0)
    assert waits == [5.0]


def open_in(folder):
    """Returns the files and folders below a folder that this process has open."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # That of the list, and those of other threads.
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return sorted(path for path in found if path.startswith(str(folder)))


def test_another_attempt_leaves_no_folder_and_no_descriptor_of_the_one_before(tmp_path, monkeypatch):
    monkeypatch.setattr(log_folder, "MEMORY", tmp_path)
    folder = log_folder.LogFolder(str(tmp_path / "logs"), print)
    during = len(open_in(tmp_path))
    for _ in range(3):
        assert folder.new_report_dir() == next(tmp_path.glob("tfdist-report-*"))
        assert len(open_in(tmp_path)) == during
    folder.close()
    assert during > 0 and open_in(tmp_path) == []


def test_launchers_with_one_process_id_that_start_in_the_same_second_have_log_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(log_folder.time, "strftime", lambda form: "20261122-140312")
    folders = [log_folder.LogFolder(None, print) for _ in range(2)]  # As in containers, where each launcher is process 1.
    assert len({folder.path for folder in folders}) == 2
    for folder in folders:
        folder.close()


def test_a_new_log_folder_is_for_its_owner_alone_and_a_given_one_keeps_its_mode(tmp_path):
    (tmp_path / "given").mkdir(mode=0o755)
    for name, mode in {"given": 0o755, "new": 0o700}.items():
        log_folder.LogFolder(str(tmp_path / name), print).close()
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == mode


@pytest.mark.parametrize("folder", ["/proc/self", "/dev/null", "/proc/self/no"])
def test_a_log_folder_that_cannot_be_written_is_one_line_and_exit_code_2(quick, folder):
    job = quick("print('one')", "--log_dir", folder)
    assert job.wait() == 2
    assert job.output.startswith("tfdist: --log_dir: ") and job.output.count("\n") == 1, job.output


def test_what_a_task_prints_is_shown_line_by_line(quick, tmp_path):
    body = "import time\nprint('line 1')\nwhile not os.path.exists('go'): time.sleep(0.05)"
    job = quick(body, environment={"PYTHONUNBUFFERED": ""})
    job.wait_for("chief:0 | line 1")
    (tmp_path / "go").touch()
    assert job.wait() == 0


def test_tasks_run_with_the_options_of_the_launchers_python(start, script):
    program = script("import sys\nprint('flags', sys.flags.optimize, sys.warnoptions, sys._xoptions)")
    words = ["-OO", "-Wignore", "-Xutf8", "-Xint_max_str_digits=999", QUICK, "--tier", "BASIC", program]
    job = start(*words, environment={"TFDIST_TEST_EXEC": "1"}, fresh=True)
    assert job.wait() == 0, job.output
    assert "flags 2 ['ignore'] {'utf8': True, 'int_max_str_digits': '999'}" in job.output


def test_a_program_that_closes_its_output_at_its_end_has_succeeded(quick):
    body = "import sys\nsys.stdout = open('log', 'w')\nprint('done')\nsys.stdout.close()"
    assert quick(body, "--max_restarts", "1").wait() == 0


EARLY = """
import os, runpy, signal, sys
from tfdist.launch.supervision import attached
attached._wait = lambda seconds: os.kill(os.getpid(), signal.SIGTERM)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_signal_right_before_the_pause_between_two_attempts_ends_the_job_with_its_summary(start, script, tmp_path, read_json):
    (tmp_path / "early.py").write_text(EARLY)
    command = [str(tmp_path / "early.py"), QUICK, "--tier", "BASIC", "--max_restarts", "2", "--summary", "summary.json"]
    job = start(*command, script("import sys\nsys.exit(3)"))
    assert job.wait() == 128 + signal.SIGTERM
    summary = read_json("summary.json")
    assert (summary["exit_code"], summary["failure"]) == (128 + signal.SIGTERM, "ended by SIGTERM")


def test_what_a_program_gives_to_exit_is_shown(quick):
    job = quick("import sys\nsys.exit(ValueError('no such data'))")
    assert job.wait() == 1 and "chief:0 | no such data" in job.output


def test_a_job_that_nohup_starts_outlives_its_terminal(script, tmp_path):
    body = "import time\nprint('runs', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.05)"
    with open(tmp_path / "output", "wb") as output:
        command = ["nohup", sys.executable, QUICK, "--tier", "BASIC", script(body)]
        job = subprocess.Popen(command, cwd=tmp_path, stdout=output, stderr=output, start_new_session=True)
    try:
        wait_until(lambda: b"runs" in (tmp_path / "output").read_bytes())
        job.send_signal(signal.SIGHUP)
        (tmp_path / "go").touch()
        assert job.wait(60) == 0, (tmp_path / "output").read_text()
    finally:
        job.kill()
        job.wait(10)


def test_a_task_that_cannot_be_started_fails_the_job_with_the_reason(quick):
    # The launcher needs one more file for the task than it may open.
    job = quick("print('one')", environment={"TFDIST_TEST_FILES": "1"})
    assert job.wait() == 1
    assert "chief:0 failed first: it could not be started: [Errno 24] Too many open files" in job.output
    assert job.left() == {}


def test_a_launcher_that_may_open_no_files_for_its_tasks_says_so_in_one_line(quick):
    job = quick("print('one')", environment={"TFDIST_TEST_FILES": "0"})
    assert job.wait() == 2
    assert job.output.startswith("tfdist: the tasks cannot be started: [Errno 24] Too many open files")
    assert len(job.output.splitlines()) == 1
    assert job.left() == {}


def test_a_launcher_without_threads_says_so_in_one_line_and_with_one_it_finds_its_tasks(quick, start, script):
    job = quick("print('one')", environment={"TFDIST_TEST_THREADS": "0"})
    assert job.wait() == 2
    assert job.output == "tfdist: the tasks cannot be started: can't start new thread\n"
    job = start(
        QUICK, "-n", "2", script(f"import time\ntime.sleep(1)\n{LISTENS}{ALL_LISTEN}"), environment={"TFDIST_TEST_THREADS": "1"}
    )
    assert job.wait() == 0, job.output
    assert job.left() == {}


def test_a_task_that_crashes_ends_its_log_with_its_python_stack(quick, tmp_path):
    job = quick("import ctypes\ndef crash():\n    ctypes.string_at(0)\ncrash()\n")
    assert job.wait() == 128 + signal.SIGSEGV
    assert "chief:0 failed first: it was killed by SIGSEGV" in job.output
    (log,) = tmp_path.glob("tfdist_logs/*/chief-0.log")
    assert "Fatal Python error: Segmentation fault" in log.read_text() and " in crash\n" in log.read_text()
    assert job.left() == {}


def test_the_fork_server_says_why_it_failed(quick):
    job = quick("print('one')", environment={"TFDIST_TEST_FAULT": "1"})
    assert job.wait() == 1
    assert "the parent process of all tasks is gone: RuntimeError: a fault of this test" in job.output
    assert job.left() == {}
