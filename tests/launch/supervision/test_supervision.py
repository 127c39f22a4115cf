"""Restarts of the whole job, the watchdog, and signals that are passed on. The tasks run without TensorFlow."""

import json
import os
import re
import signal
import socket
import textwrap

import pytest
from listening import ALL_LISTEN, LISTENS, REPORTS
from reserved import free_port
from support_paths import PROGRAMS
from waits import wait_until

pytestmark = pytest.mark.cluster

QUICK = str(PROGRAMS / "quick_launcher.py")
EXEC = {"TFDIST_TEST_EXEC": "1"}
"""For tests of how the fork server finds its modules, and of stacks, which in its fork begin with those of the launcher."""

COUNTED = """
    import sys, time
    attempt = int(pathlib.Path("attempt").read_text()) + 1 if os.path.exists("attempt") else 1
    pathlib.Path("attempt").write_text(str(attempt))
    print("attempt", attempt, flush=True)
"""


def test_all_tasks_are_started_again_after_a_failure_without_what_they_have_left_behind_and_the_last_attempt_is_reported(
    start, script, tmp_path, read_json
):
    body = (
        COUNTED
        + """
    import subprocess
    with open("parents", "a") as file: print(os.getppid(), file=file)
    path = pathlib.Path(os.environ["TFDIST_REPORT"])
    path.write_text(json.dumps({"steps": attempt}))
    if attempt == 1:
        left = subprocess.Popen(["sleep", "600"], start_new_session=True)
        pathlib.Path("left").write_text(str(left.pid))
        sys.exit(7)
    assert not os.path.exists("/proc/" + pathlib.Path("left").read_text())
    if attempt == 2: os.kill(os.getppid(), 9)  # Then there has to be another.
    """
    )
    job = start(QUICK, "--tier", "BASIC", "--max_restarts", "2", "--summary", "summary.json", script(body))
    assert job.wait(60) == 0, job.output
    assert "chief:0 failed first: it exited with 7; all tasks are started again in 1 s (restart 1 of 2)" in job.output
    assert (
        "the parent process of all tasks is gone: it was killed by signal 9; all tasks are started again in 2 s" in job.output
    )
    first, second, third = (tmp_path / "parents").read_text().split()
    assert first == second != third
    (log,) = tmp_path.glob("tfdist_logs/*/chief-0.log")
    assert log.read_text() == "attempt 1\nattempt 2\nattempt 3\n"
    summary = read_json("summary.json")
    assert (summary["steps"], summary["restarts"]) == (3, 2) and summary["wall_seconds"] > 3  # The two delays are part of it.
    assert f"done in {summary['wall_seconds']:.1f} s, with 2 restarts of all tasks\n" in job.output
    assert "steps     3 since the last restart\n" in job.output
    assert job.left() == {}


@pytest.mark.parametrize(("code", "attempts"), [(2, 1), (3, 2)])
def test_restarts_end_at_their_limit_and_a_bad_description_is_not_tried_again(start, script, tmp_path, code, attempts):
    job = start(QUICK, "--tier", "BASIC", "--max_restarts", "1", script(COUNTED + f"    sys.exit({code})"))
    assert job.wait(60) == code
    assert (tmp_path / "attempt").read_text() == str(attempts)


def test_ctrl_c_ends_a_job_that_waits_for_its_restart(start, script):
    job = start(QUICK, "--tier", "BASIC", "--max_restarts", "9", script(COUNTED + "    sys.exit(3)"))
    job.wait_for("started again in 2 s")
    job.process.send_signal(signal.SIGINT)
    assert job.wait() == 130 and "attempt 3" not in job.output
    assert job.output.splitlines()[-1] == "tfdist: ended by SIGINT"


def test_a_signal_while_a_failed_attempt_ends_is_the_end_of_the_job(start, script):
    body = """
    import signal, sys, time
    if me["index"] == 1:
        while not os.path.exists("ready"): time.sleep(0.05)
        sys.exit(3)
    signal.signal(signal.SIGTERM, lambda *_: print("asked to end", flush=True))
    open("ready", "w").close()
    while True: time.sleep(0.1)
    """
    two = ["--cluster", '{"worker": 2}']
    job = start(QUICK, *two, "--max_restarts", "9", script(body))
    job.wait_for("asked to end")
    job.process.send_signal(signal.SIGTERM)
    assert job.wait() == 143, job.output
    assert "started again" not in job.output and job.output.splitlines()[-1] == "tfdist: ended by SIGTERM"


def test_a_signal_while_the_launcher_closes_a_failed_attempt_is_the_end_of_the_job(start, script):
    launcher = f"""
    import os, runpy, signal
    from tfdist.launch.supervision import running_tasks
    close = running_tasks.RunningTasks.close
    def closes_late(tasks, keep=None):
        os.kill(os.getpid(), signal.SIGTERM)  # It takes seconds if the parent of the tasks has been killed.
        close(tasks, keep)
    running_tasks.RunningTasks.close = closes_late
    runpy.run_path({QUICK!r}, run_name="__main__")
    """
    program = script("    import sys; sys.exit(3)")
    job = start("-c", textwrap.dedent(launcher), "--tier", "BASIC", "--max_restarts", "9", program)
    assert job.wait() == 143, job.output
    assert "started again" not in job.output and job.output.splitlines()[-1] == "tfdist: ended by SIGTERM"


def test_a_job_whose_port_is_taken_before_its_restart_ends_with_one_line(start, script, tmp_path, read_json):
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        port = free_port()
        cluster = json.dumps({"cluster": {"worker": [f"localhost:{port}"]}})
        body = COUNTED + "    while not os.path.exists('go'): time.sleep(0.05)\n    sys.exit(3)"
        flags = ["--cluster", cluster, "--max_restarts", "9", "--summary", "summary.json"]
        job = start(QUICK, *flags, script(body))
        job.wait_for("attempt 1")
        other.bind(("", port))
        other.listen()
        (tmp_path / "go").touch()
        assert job.wait() == 2, job.output
    assert f"port {port} of worker:0 is in use on this machine" in job.output.splitlines()[-1]
    assert (read_json("summary.json")["exit_code"], job.left()) == (2, {})


def test_a_job_that_has_trained_for_the_window_has_all_its_restarts_again(start, script):
    body = COUNTED + "    time.sleep(1.3)\n    print(attempt, flush=True)\n    sys.exit(3 if attempt < 3 else 0)"
    job = start(QUICK, "--tier", "BASIC", "--max_restarts", "1", "--restart_window", "1", script(body))
    assert job.wait(60) == 0, job.output
    assert job.output.count("all tasks are started again (restart 1 of 1)") == 2


def test_the_preparation_of_a_fit_that_fails_in_its_first_step_is_no_training(start, script):
    body = """
    time.sleep(3.3)
    report()
    sys.exit(3 if attempt < 3 else 0)
    """
    flags = ["--max_restarts", "1", "--restart_window", "3"]
    job = start(QUICK, "--tier", "BASIC", *flags, script(REPORTS, COUNTED, body))
    assert job.wait(60) == 3, job.output
    assert job.output.count("all tasks are started again") == 1


def test_a_job_that_gets_farther_with_every_attempt_is_started_again_at_once(start, script):
    program = script(REPORTS, COUNTED, "    report(step=attempt, steps=9)\n    sys.exit(3)")
    job = start(QUICK, "--tier", "BASIC", "--max_restarts", "2", program)
    assert job.wait(60) == 3, job.output
    assert job.output.count("all tasks are started again (restart ") == 2


def test_a_stopped_task_that_the_others_have_not_waited_for_is_killed(start, script):
    """Each of them trains. The program of the first has caught what it got when it lost the second, and has finished."""
    body = """
    import signal, time
    me = json.loads(os.environ["TF_CONFIG"])["task"]
    if me["index"] == 1: os.kill(os.getpid(), signal.SIGSTOP)
    """
    job = start(QUICK, "-n", "2", script(body), environment={"TFDIST_TEST_STOPPED": "1"})
    assert job.wait(60) == 137, job.output
    assert "the others have ended, and worker:1 was stopped for 1 s: it is killed" in job.output
    assert "worker:1 failed first: it was killed by SIGKILL; worker:0 had ended with 0 before" in job.output
    assert job.left() == {}


COUNTS_ATTEMPTS = """
    import signal, sys
    attempts = pathlib.Path(f"attempts-{me['type']}")
    attempts.write_text(f"{attempts.read_text() if attempts.exists() else ''}x")
    if me["type"] == "chief": signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
"""
ENDS_WORKER = """
    if me["type"] != "worker": time.sleep(600)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("restarts", ["0", "1"])
def test_the_only_worker_group_is_waited_for_or_with_max_restarts_all_tasks_begin_again(start, script, tmp_path, restarts):
    cluster = '{"chief": 1, "worker": 1, "ps": 1}'
    flags = ["--task_restarts", "worker=1", "--max_restarts", restarts]
    job = start(QUICK, "--cluster", cluster, *flags, script(COUNTS_ATTEMPTS, LISTENS, ALL_LISTEN, ENDS_WORKER))
    assert job.wait(60) == 137, job.output
    waits = "worker:0 ended early: it was killed by SIGKILL; the training waits for it, and variables that its last step had"
    assert (waits in job.output) == (restarts == "0")
    assert ("failed 2 times" in job.output) == (restarts == "0")
    assert ("all tasks are started again" in job.output) == (restarts == "1")
    assert {name: (tmp_path / f"attempts-{name}").read_text() for name in ("chief", "worker")} == {
        "chief": "x" if restarts == "0" else "xx",
        "worker": "xx",
    }
    assert "worker:0 failed first: it was killed by SIGKILL" in job.output and job.left() == {}


def test_a_silent_training_fails_with_the_python_stacks_of_its_tasks(start, script, tmp_path):
    body = """
    import time
    def waits_for_ever():
        time.sleep(600)
    for n in range(10): print(n, flush=True); time.sleep(0.5)
    waits_for_ever()
    """
    job = start(QUICK, "--tier", "BASIC", "--stall_timeout", "4", script(body), environment=EXEC)
    assert job.wait() == 1
    assert "tfdist: no training task has printed anything for 4 s (--stall_timeout)" in job.output
    (log,) = tmp_path.glob("tfdist_logs/*/chief-0.log")
    assert "\n9\nCurrent thread 0x" in log.read_text() and "in waits_for_ever\n" in log.read_text()
    assert "in waits_for_ever" in job.output.rpartition("the last lines of")[2]
    assert job.left() == {}


def test_user_signals_reach_the_training_task(start, script):
    body = """
    import signal, sys, time
    signal.signal(signal.SIGUSR1, lambda *_: print("saved", flush=True))
    signal.signal(signal.SIGUSR2, lambda *_: sys.exit(5))
    print("waits", flush=True)
    while True: time.sleep(0.1)
    """
    job = start(QUICK, "--tier", "BASIC", script(body))
    job.wait_for("chief:0 | waits")
    job.process.send_signal(signal.SIGUSR1)
    job.wait_for("chief:0 | saved")
    assert "tfdist: SIGUSR1 is passed on to chief:0" in job.output
    job.process.send_signal(signal.SIGUSR2)
    assert job.wait() == 5


def test_a_task_that_hangs_at_its_start_is_named_with_its_python_stack(start, script):
    body = """
    import time
    def hangs():
        time.sleep(600)
    if me["index"] == 1: hangs()
    """
    program = script(body, LISTENS, "time.sleep(600)")
    job = start(QUICK, "-n", "2", "--start_timeout", "8", program, environment=EXEC)
    assert job.wait(60) == 1
    assert re.search(r"gave up after \d+ s \(--start_timeout\): worker:1 \(localhost:", job.output)
    assert "worker:0 (" not in job.output
    assert " in hangs\n" in job.output.rpartition("the last lines of")[2]
    assert job.left() == {}


def test_modules_in_the_current_folder_do_not_take_the_place_of_others(start, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "queue.py").write_text("raise RuntimeError('this is not the library')")
    (tmp_path / "sub/train.py").write_text("import queue\nprint('found', queue.Queue.__name__, flush=True)")
    job = start(QUICK, "--tier", "BASIC", "sub/train.py", environment=EXEC)
    assert job.wait(60) == 0 and "chief:0 | found Queue" in job.output, job.output


def test_tasks_that_train_without_each_other_are_said(start, script):
    job = start(QUICK, "-n", "2", script("print('done')"))
    assert job.wait(60) == 0
    said = (
        "tfdist: the program ended without calling tfdist.strategy(): each of the 2 tasks ran the whole program on its own; "
        "make the model in `with tfdist.strategy().scope():`\n"
    )
    assert job.output.count(said) == 1, job.output


STEPS = """
    import faulthandler, signal, sys, time
    def writes_step(step, phase="fit"):
        values = {"phase": phase, "epoch": 1, "epochs": 2, "step": step, "steps": 9, "batches": step}
        path = os.environ["TFDIST_REPORT"] + ".progress"
        pathlib.Path(path + ".part").write_text(json.dumps(values))
        os.replace(path + ".part", path)
        print("step", step, flush=True)
"""


def test_a_training_that_prints_but_makes_no_step_fails_with_its_python_stack(start, script, tmp_path):
    body = (
        STEPS
        + """
    writes_step(0, "idle")
    time.sleep(3.5)  # Between two calls of fit.
    for n in range(8): writes_step(n); time.sleep(0.5)
    def makes_no_step():
        while True: print("still here", flush=True); time.sleep(0.2)
    makes_no_step()
    """
    )
    job = start(QUICK, "--tier", "BASIC", "--step_timeout", "3", "--state_file", "state.json", script(body))
    assert job.wait() == 1
    assert "tfdist: the training has made no step for 3 s (--step_timeout), at epoch 1/2, step 7/9;" in job.output
    (log,) = tmp_path.glob("tfdist_logs/*/chief-0.log")
    assert "in makes_no_step\n" in log.read_text()
    state = json.loads((tmp_path / "state.json").read_text())
    assert (state["state"], state["progress"]["step"], state["tasks"][0]["task"]) == ("failed", 7, "chief:0")
    assert job.left() == {}


@pytest.mark.parametrize("phase, code", [("fit", 1), ("idle", 0)])
def test_a_program_that_ends_with_0_inside_of_fit_has_failed(start, script, phase, code):
    job = start(QUICK, "--tier", "BASIC", script(f"{STEPS}\n    writes_step(4, {phase!r})\n    os._exit(0)\n"))
    assert job.wait() == code, job.output
    assert ("chief:0 ended with 0 in the middle of `fit`, in epoch 1 of 2: something ended" in job.output) is (code == 1)


def test_py_spy_prints_the_stacks_of_a_task_that_does_not(start, script, tmp_path):
    (tmp_path / "py-spy").write_text("#!/bin/sh\necho stacks of $*\nexec sleep 0.1\n")
    (tmp_path / "py-spy").chmod(0o755)
    body = "import signal, time\nsignal.signal(signal.SIGQUIT, signal.SIG_IGN)\nprint('deaf', flush=True)\ntime.sleep(600)"
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    job = start(QUICK, "--tier", "BASIC", "--stall_timeout", "1", script(body), environment=environment)
    assert job.wait() == 1
    assert f"stacks of dump --pid {job.pid_of('chief:0')}" in job.output.rpartition("the last lines of")[2]
    assert job.left() == {}


def test_a_program_has_the_grace_period_to_save_and_is_asked_first(start, script, tmp_path):
    body = """
    import signal, sys, time
    def save(*_):
        time.sleep(5.5)
        pathlib.Path("saved").write_text(str(os.path.exists("other")))
        sys.exit(143)
    index = me["index"]
    signal.signal(signal.SIGTERM, save if index == 0 else lambda *_: (pathlib.Path("other").touch(), sys.exit(143)))
    print("ready", index, flush=True)
    while True: time.sleep(0.1)
    """
    job = start(QUICK, "-n", "2", "--grace_period", "12", script(body))
    job.wait_for("ready 0")
    job.wait_for("ready 1")
    job.process.send_signal(signal.SIGTERM)
    assert job.wait() == 143
    assert (tmp_path / "saved").read_text() == "False" and (tmp_path / "other").exists()


def test_tensorboard_runs_as_long_as_the_job_and_its_address_is_said(start, script, tmp_path):
    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "tensorboard" / "__init__.py").write_text("")
    (tmp_path / "tensorboard" / "main.py").write_text(
        "import os, sys, time\n"
        "def run_main():\n"
        "    print('TensorBoard 9.9 at http://localhost:6006/ (Press CTRL+C to quit)', *sys.argv, flush=True)\n"
        "    open('tensorboard-pid', 'w').write(str(os.getpid()))\n"
        "    time.sleep(600)\n"
    )
    environment = {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    program = script("import time\nfor n in range(35): print(n, flush=True); time.sleep(0.1)")
    job = start(QUICK, "--tier", "BASIC", "--tensorboard", "curves", program, environment=environment, fresh=True)
    assert job.wait() == 0
    assert "tfdist: TensorBoard is at http://localhost:6006/ until the job ends" in job.output
    (log,) = tmp_path.glob("tfdist_logs/*/tensorboard.log")
    assert f"tensorboard --logdir {tmp_path}/curves" in log.read_text() and job.left() == {}
    killed = start(
        QUICK,
        "--tier",
        "BASIC",
        "--tensorboard",
        "curves",
        script("import time\ntime.sleep(600)"),
        environment=environment,
        fresh=True,
    )
    (tmp_path / "tensorboard-pid").unlink()
    wait_until(lambda: (tmp_path / "tensorboard-pid").exists() and (tmp_path / "pid-chief-0").exists())
    killed.process.kill()
    assert killed.left(within=10) == {}


@pytest.mark.parametrize("level", [None, "0"])
def test_what_tensorflow_prints_at_every_start_is_shown_to_those_who_set_its_level(start, script, level):
    noise = "E0000 00:00:1795237116.095783    3161 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error"
    environment = {"TF_CPP_MIN_LOG_LEVEL": level} if level else {}
    job = start(QUICK, "--tier", "BASIC", script(f"print({noise!r}, 'end', sep='\\n')"), environment=environment)
    assert job.wait() == 0
    assert (noise in job.output) == (level is not None) and "chief:0 | end" in job.output
