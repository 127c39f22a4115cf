"""Whoever reads the launcher's output may pause, stop or be slow: no job waits for it. The tasks run without TensorFlow."""

import array
import fcntl
import os
import signal
import termios
import time
from types import SimpleNamespace

import pytest
from support_paths import PROGRAMS
from waits import wait_until

from tfdist import Cluster, Task
from tfdist.choice import choose
from tfdist.launch.jobs.events import Exited, Memory
from tfdist.launch.jobs.job import Job, JobFiles, Program
from tfdist.launch.supervision.running_tasks import RunningTasks
from tfdist.launch.terminal.background_writer import BackgroundWriter

pytestmark = pytest.mark.cluster

QUICK = str(PROGRAMS / "quick_launcher.py")


@pytest.fixture
def piped(tmp_path, quick_python):
    """Starts the launcher for one task, with its output in a pipe of the test."""
    started = []

    def run(body, *flags):
        (tmp_path / "program.py").write_text(body)
        command = [QUICK, "--tier", "BASIC", *flags, "program.py"]
        started.append(quick_python.start_piped(command, str(tmp_path), os.environ))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.stdout.close()
        process.wait(60)


MUCH = "import time\nfor n in range(20000): print('x' * 60, n)\nprint('last', flush=True)\nopen('printed', 'w')\n"


def is_full(pipe):
    """Returns whether the 64 KB of a pipe hold so much that the next lines of MUCH do not fit."""
    waiting = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, waiting)
    return waiting[0] > (1 << 16) - 4096


def counted(output):
    """Returns how many lines of MUCH are shown, and how many are said to be left out."""
    lines = output.decode().splitlines()
    shown = sum("xxxxx" in line or line == "chief:0 | last" for line in lines)
    return shown, sum(int(line.split()[1]) for line in lines if "left out here" in line)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_reader_that_stops_reading_stops_neither_the_job_nor_its_end(piped, tmp_path, number):
    launcher = piped(MUCH + "time.sleep(600)")  # 1.5 MB as shown; a pipe holds 64 KB, and the launcher keeps 1 MB.
    wait_until((tmp_path / "printed").exists)
    launcher.send_signal(number)
    assert launcher.wait(25) == 128 + number  # Else after CLOSE_SECONDS.
    (log,) = tmp_path.glob("tfdist_logs/*/chief-0.log")
    assert log.read_text().splitlines()[-1] == "last"


def test_what_a_stopped_reader_missed_is_counted_when_it_reads_again(piped, tmp_path):
    launcher = piped(MUCH + "while not __import__('os').path.exists('go'): time.sleep(0.05)\nprint('end', flush=True)")
    wait_until((tmp_path / "printed").exists)
    (log,) = tmp_path.glob("tfdist_logs/*/chief-0.log")
    wait_until(lambda: log.read_text().endswith("last\n"))  # The launcher has taken all of it.
    output = launcher.stdout.read(1 << 18)  # More than the pipe holds: the launcher has noticed that somebody reads.
    (tmp_path / "go").touch()
    output += launcher.stdout.read()
    assert launcher.wait(60) == 0
    shown, left_out = counted(output)
    assert left_out and shown + left_out == 20001
    assert b"chief:0 | end\n" in output and b"tfdist: done in" in output


def test_a_slow_reader_gets_every_line(piped):
    launcher = piped(MUCH)
    lines, buffered = 0, b""
    while data := os.read(launcher.stdout.fileno(), 1 << 15):
        buffered += data
        lines += data.count(b"chief:0 | x")
        time.sleep(0.01)
    assert launcher.wait(60) == 0
    assert buffered.count(b"chief:0 | x") == 20000 and b"left out" not in buffered


def test_a_slow_reader_gets_every_line_of_many_tasks_that_print_at_once(monkeypatch):
    monkeypatch.setattr(BackgroundWriter, "_has_stalled", lambda writer, seconds=0.0: writer.has_stopped_reader)
    monkeypatch.setattr(BackgroundWriter, "has_stopped_reader", False, raising=False)
    read_end, write_end = os.pipe()
    writer = BackgroundWriter(write_end, limit=1000)
    with open(read_end, "rb") as output, open(write_end, "wb"):
        for number in range(2000):  # 200 KB, and the pipe holds 64.
            writer.write(f"{number:<99}\n")
        writer.has_stopped_reader = True
        writer.write("more\n" * 7)
        assert writer.left_out == 7  # That is for a reader that has stopped.
        got = output.read(200_000)
    assert got.split() == [str(number).encode() for number in range(2000)]


STEPS = """
import json, os, time
path, begin, step = os.environ["TFDIST_REPORT"] + ".progress", time.monotonic(), 0
def write(phase):
    with open(path + ".part", "w") as file: json.dump({"phase": phase, "epoch": 1, "step": step, "batches": step}, file)
    os.replace(path + ".part", path)
while time.monotonic() - begin < 5:
    step += 1
    write("fit")
    print("x" * 60_000)
write("idle")
"""


def test_a_training_that_waits_for_a_slow_reader_is_neither_silent_nor_without_steps(piped):
    launcher = piped(STEPS, "--stall_timeout", "2", "--step_timeout", "2")
    begin = time.monotonic()
    while time.monotonic() - begin < 6:
        os.read(launcher.stdout.fileno(), 4096)
        time.sleep(0.2)
    output = launcher.stdout.read()
    assert launcher.wait(60) == 0, output[-1000:]


def test_what_happens_to_many_tasks_does_not_wait_for_a_slow_reader_one_by_one(tmp_path):
    """The news of a task that had failed was behind what all others had measured."""
    waits = []
    terminal = SimpleNamespace(tick=lambda: None, wait_for_room=lambda timeout: bool(waits.append(timeout)))
    found = [*(Memory(f"worker:{index}", 7) for index in range(50)), Exited("worker:0", 1)]
    runner = SimpleNamespace(poll=lambda timeout, output: [] if waits[1:] else found)
    cluster = Cluster((Task("worker", 0),))
    tasks = RunningTasks(Job(cluster, choose(cluster), Program()), JobFiles(tmp_path), runner, terminal)
    assert [tasks.poll(0.1) for _ in found] == found
    assert waits == [0.1] + [0.0] * 50


def test_a_reader_that_pauses_at_the_end_gets_every_line(piped, tmp_path):
    launcher = piped("for n in range(4000): print('x' * 60, n)\nprint('last', flush=True)\n")
    wait_until(lambda: is_full(launcher.stdout.fileno()))
    time.sleep(3)  # Longer than the task runs, and than a reader may pause while a job runs.
    shown, _ = counted(output := launcher.stdout.read())
    assert launcher.wait(60) == 0
    assert shown == 4001 and b"tfdist: done in" in output


def test_a_non_blocking_output_does_not_silence_the_launcher(tmp_path, quick_python):
    (tmp_path / "program.py").write_text(MUCH)
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)  # As a program does that shares the terminal.
    launcher = quick_python.start([QUICK, "--tier", "BASIC", "program.py"], str(tmp_path), os.environ, write_end)
    os.close(write_end)
    wait_until(lambda: is_full(read_end))
    with open(read_end, "rb") as output:
        text = output.read()
    assert launcher.wait(60) == 0
    shown, left_out = counted(text)
    assert shown + left_out == 20001 and b"tfdist: done in" in text
