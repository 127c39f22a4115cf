"""What a signal reaches besides the process of a task: the processes that read its data must live until it has saved."""

import json
import os
import signal
import subprocess
import sys

import pytest
from listening import LISTENS
from support_paths import PROGRAMS
from waits import wait_until

pytestmark = pytest.mark.cluster

QUICK = str(PROGRAMS / "quick_launcher.py")

DATA_PROCESSES = """
    import time
    import keras, numpy as np, tfdist

    class Batches(keras.utils.PyDataset):
        def __init__(self):
            super().__init__(workers=2, use_multiprocessing=True, max_queue_size=2)
        def __len__(self):
            return 3000
        def __getitem__(self, index):
            time.sleep(0.1)
            return np.ones((8, 4), "f"), np.ones((8, 1), "f")

    class Prints(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            print("batch", batch, flush=True)

    with tfdist.strategy().scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(Batches(), verbose=0, callbacks=[Prints()])
"""


def test_a_fit_whose_data_comes_from_processes_goes_on_after_sigusr1_and_saves_before_it_ends_by_sigterm(start, script):
    flags = ["--tier", "BASIC", "--backup_dir", "backup", "--grace_period", "60"]
    job = start("-m", "tfdist.launch", *flags, script(DATA_PROCESSES))
    job.wait_for("| batch 8\n")
    job.process.send_signal(signal.SIGUSR1)
    job.wait_for("| tfdist: SIGUSR1: the backup is saved")
    for _ in range(10):  # What was read before has long been used up.
        job.wait_for("| batch ", after=job.output.splitlines()[-1])
    job.process.send_signal(signal.SIGTERM)
    assert job.wait(100) == 143, job.output
    assert "| tfdist: SIGTERM: the backup is saved, and the program ends" in job.output
    assert job.left() == {}


CHILD = """
import pathlib, signal, sys, time
def receive(number, frame):
    pathlib.Path("child-got").write_text(str(number))
    sys.exit()
for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM): signal.signal(number, receive)
pathlib.Path("child-ready").touch()
time.sleep(600)
"""

PARENT = f"""
    import subprocess
    if name == "worker-1":
        def end(*_):
            time.sleep(1)
            print("the child has got", os.path.exists("child-got"), flush=True)
            sys.exit(143)
        signal.signal(signal.SIGTERM, end)
        subprocess.Popen([sys.executable, "-c", {CHILD!r}])
    while not os.path.exists("end"): time.sleep(0.05)
"""


def test_what_a_worker_that_leaves_has_started_gets_sigterm_after_it(start, script, tmp_path):
    flags = ["--cluster", '{"chief": 1, "worker": 2, "ps": 1}', "--max_workers", "2", "--log_dir", "logs"]
    job = start(QUICK, *flags, script(LISTENS, PARENT))
    wait_until((tmp_path / "child-ready").exists)
    subprocess.run([sys.executable, "-m", "tfdist", "scale", "logs", "worker=1"], cwd=tmp_path, check=True)
    job.wait_for("worker:1 | the child has got ")
    assert "the child has got False" in job.output
    wait_until((tmp_path / "child-got").exists)
    assert (tmp_path / "child-got").read_text() == str(int(signal.SIGTERM))
    (tmp_path / "end").touch()
    assert job.wait(60) == 0, job.output
    assert job.left() == {}


SAVES = """
    def save(*_):
        time.sleep(1.5)  # Longer than the others wait for a sign.
        for name in ("worker-0", "worker-1", "ps-0"):
            with open(f"pid-{name}") as file: os.kill(int(file.read()), 0)
        print("saved with the others", flush=True)
        sys.exit(143)
    if me["type"] == "chief": signal.signal(signal.SIGTERM, save)
    print("ready", flush=True)
    while True: time.sleep(0.05)
"""


def test_when_all_processes_get_sigterm_as_at_a_shutdown_the_chief_saves_before_the_others_end(start, script, tmp_path):
    flags = ["--cluster", '{"chief": 1, "worker": 2, "ps": 1}', "--grace_period", "60", "--state_file", "state.json"]
    job = start(QUICK, *flags, script(LISTENS, SAVES))
    job.wait_for("chief:0  | ready")
    wait_until(
        lambda: [each["state"] for each in json.loads((tmp_path / "state.json").read_text())["tasks"]] == ["running"] * 4
    )
    os.kill(job.pid_of("worker:1"), signal.SIGTERM)  # One alone.
    job.wait_for("worker:1 ended early: it was killed by SIGTERM")
    job.wait_for("worker:1 | ready", after="ended early")
    for pid in job.left():
        os.kill(pid, signal.SIGTERM)
    assert job.wait(100) == 143, job.output
    assert "chief:0  | saved with the others" in job.output and "ended by SIGTERM" in job.output
    assert job.left() == {}


def test_user_signals_reach_only_the_program_and_ctrl_c_what_it_has_started_too(start, script, tmp_path):
    body = f"""
    import signal, subprocess, sys, time
    child = subprocess.Popen([sys.executable, "-c", {CHILD!r}])
    def receive(number, frame):
        time.sleep(0.5)
        print("alive", child.poll() is None, flush=True)
    signal.signal(signal.SIGUSR1, receive)
    signal.signal(signal.SIGUSR2, receive)
    while not os.path.exists("child-ready"): time.sleep(0.05)
    try:
        print("ready", flush=True)
        while True: time.sleep(0.1)
    except KeyboardInterrupt:
        print("the child ended with", child.wait(), flush=True)
    """
    job = start(QUICK, "--tier", "BASIC", "--grace_period", "60", script(body))
    job.wait_for("| ready")
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        job.process.send_signal(number)
        job.wait_for(f"{number.name} is passed on")
        job.wait_for("| alive ", after=f"{number.name} is passed on")
    job.process.send_signal(signal.SIGINT)
    assert job.wait(100) == 130, job.output
    assert "alive False" not in job.output and f"the child ended with {-signal.SIGINT}" in job.output and job.left() == {}
    assert os.path.exists(tmp_path / "child-ready") and not os.path.exists(tmp_path / "child-got")


def test_a_signal_for_the_program_that_comes_before_a_restart_of_the_job_ends_nothing(start, script, tmp_path):
    body = """
    import sys
    with open("attempts", "a") as file: file.write("x")
    sys.exit(3 if os.path.getsize("attempts") < 3 else 0)
    """
    job = start(QUICK, "--tier", "BASIC", "--max_restarts", "2", script(body))
    job.wait_for("started again in 2 s")
    job.process.send_signal(signal.SIGUSR1)
    assert job.wait() == 0, job.output
    assert (tmp_path / "attempts").read_text() == "xxx" and job.left() == {}


def test_a_signal_for_a_backup_that_comes_outside_of_fit_ends_nothing(start, script, tmp_path):
    """As in a program that starts again, or between two calls."""
    body = """
    import time
    print("starts", flush=True)
    while not os.path.exists("go"): time.sleep(0.05)
    """
    job = start(QUICK, "--tier", "BASIC", "--backup_dir", "backup", script(body))
    job.wait_for("| starts")
    job.process.send_signal(signal.SIGUSR1)
    job.wait_for("| tfdist: SIGUSR1 outside of fit: there is nothing new to save")
    (tmp_path / "go").touch()
    assert job.wait() == 0, job.output


def test_a_program_that_saves_after_sigterm_is_not_disturbed_by_another_one(start, script, tmp_path):
    """As from a `tfdist cancel` that was given up and begun again."""
    body = """
    import signal, sys, time
    def save(*_):
        print("saves", flush=True)
        time.sleep(2)
        pathlib.Path("saved").write_text(str(os.path.exists("other")))
        sys.exit(143)
    signal.signal(signal.SIGTERM, save if me["index"] == 0 else lambda *_: (pathlib.Path("other").touch(), sys.exit(143)))
    print("ready", me["index"], flush=True)
    while True: time.sleep(0.1)
    """
    job = start(QUICK, "-n", "2", "--grace_period", "20", script(body))
    job.wait_for("ready 0")
    job.wait_for("ready 1")
    job.process.send_signal(signal.SIGTERM)
    job.wait_for("saves")
    job.process.send_signal(signal.SIGTERM)
    assert job.wait() == 143, job.output
    assert job.output.count("saves") == 1 and (tmp_path / "saved").read_text() == "False"
    assert (tmp_path / "other").exists() and job.left() == {}
