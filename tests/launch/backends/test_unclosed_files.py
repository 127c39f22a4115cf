"""The end of a program under the launcher: what it leaves open is written, and its exception is shown, as in plain Python."""

import gzip
import subprocess
import sys
import textwrap

import h5py
import numpy as np
import pytest

pytestmark = pytest.mark.slow

LEFT_OPEN = """
    import gzip, sys
    import h5py, numpy as np
    folder = sys.argv[1]
    def helper():
        return folder  # A function refers to all globals: without the garbage collector they stay.
    class Report:
        def __init__(self, path):
            self.file = open(path, "w")
        def __del__(self):
            self.file.write("the last line of " + helper())
    text = open(folder + "/text", "w")
    text.write("accuracy 0.98\\n" * 3)
    packed = gzip.open(folder + "/packed", "wb")
    packed.write(b"accuracy 0.98\\n" * 3)
    numbers = h5py.File(folder + "/numbers", "w")
    numbers["x"] = np.arange(1000)
    report = Report(folder + "/report")
    if "tensorflow" in sys.modules:  # As under the launcher.
        import tensorflow as tf
        def write(writer):
            for number in range(100): writer.write(b"example %d" % number)
            return writer
        records = write(tf.io.TFRecordWriter(folder + "/records"))
        write(tf.io.TFRecordWriter(folder + "/closed")).close()
    print("program has ended", flush=True)
"""

RUN = """
import sys
from tfdist.launch.backends.local import run_program
from tfdist.launch.jobs.job import Program
run_program.RELEASE_SECONDS = run_program.FAILED_RELEASE_SECONDS = float(sys.argv[1])
run_program.run(Program(script=sys.argv[2]))
"""


def run(tmp_path, body, limit=60.0):
    """Runs a program as a task of the launcher does."""
    (tmp_path / "program.py").write_text(textwrap.dedent(body))
    command = [sys.executable, "-c", RUN, str(limit), "program.py"]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.cluster
def test_files_that_a_program_does_not_close_are_complete(start, script, tmp_path):
    program = script(LEFT_OPEN)
    for name in ("plain", "launched"):
        (tmp_path / name).mkdir()
    subprocess.run([sys.executable, program, "plain"], cwd=tmp_path, timeout=120, check=True)
    job = start("-m", "tfdist.launch", "--tier", "BASIC", program, "launched")
    assert job.wait() == 0 and "chief:0 | program has ended" in job.output, job.output
    for name in ("plain", "launched"):
        assert (tmp_path / name / "text").read_text() == "accuracy 0.98\n" * 3
        with gzip.open(tmp_path / name / "packed") as packed:
            assert packed.read() == b"accuracy 0.98\n" * 3
        with h5py.File(tmp_path / name / "numbers") as numbers:
            assert np.array_equal(numbers["x"], np.arange(1000))
        assert (tmp_path / name / "report").read_text() == f"the last line of {name}"
    records, closed = ((tmp_path / "launched" / name).read_bytes() for name in ("records", "closed"))
    assert records == closed and len(records) > 1000


def test_destructors_run_after_threads_and_exit_functions(tmp_path):
    got = run(
        tmp_path,
        """
        import atexit, threading, time
        class Says:
            def __del__(self): print("destructor", flush=True)
        says = Says()
        def thread():
            time.sleep(0.5)
            print("thread", __import__("__main__").says is says)
        def exit_function(): print("exit function", __import__("__main__").says is says)
        atexit.register(exit_function)
        threading.Thread(target=thread).start()
        """,
    )
    assert (got.returncode, got.stdout) == (0, "thread True\nexit function True\ndestructor\n"), got.stderr
    assert got.stderr == ""


def test_files_of_imported_modules_and_of_classes_are_complete(tmp_path):
    store = """
        import gzip, h5py, numpy as np
        def helper(): return packed
        class Store:
            numbers = h5py.File("of_class", "w")  # Nothing destroys a class while its functions are in use.
        Store.numbers["x"] = np.arange(1000)
        numbers = h5py.File("of_module", "w")
        numbers["x"] = np.arange(1000)
        packed = gzip.open("packed", "wb")
        packed.write(b"accuracy 0.98\\n" * 3)
        class Says:
            def __del__(self): print("destructor:", helper() is packed, flush=True)
        says = Says()
        """
    (tmp_path / "store.py").write_text(textwrap.dedent(store))
    got = run(tmp_path, "import store")
    assert (got.returncode, got.stdout, got.stderr) == (0, "destructor: True\n", "")
    for name in ("of_class", "of_module"):
        with h5py.File(tmp_path / name) as numbers:
            assert np.array_equal(numbers["x"], np.arange(1000))
    with gzip.open(tmp_path / "packed") as packed:
        assert packed.read() == b"accuracy 0.98\n" * 3


@pytest.mark.parametrize(("code", "expected"), [("256", 0), ("2**40 + 7", 7), ("-1", 255), ("True", 1)])
def test_an_exit_code_is_that_of_plain_python(tmp_path, code, expected):
    assert run(tmp_path, f"import sys\nsys.exit({code})").returncode == expected


@pytest.mark.parametrize("code", [0, 7])
def test_a_destructor_that_hangs_delays_the_end_only_for_a_limit(tmp_path, code):
    body = f"""
        import sys, time
        def write():
            return file
        class Hangs:
            def __del__(self): time.sleep(600)
        file = open("text", "w")
        file.write("written")
        hangs = Hangs()
        sys.exit({code})
        """
    got = run(tmp_path, body, limit=2.0)
    assert (got.returncode, got.stdout, (tmp_path / "text").read_text()) == (code, "", "written")
    assert got.stderr == "tfdist: what the program has left open is not closed after 2 s; some of it may be lost\n"


def test_a_fork_that_comes_to_the_end_writes_its_files_and_runs_no_destructors(tmp_path):
    got = run(
        tmp_path,
        """
        import os
        def write():
            return file
        class Says:
            def __del__(self): print("destructor of", "parent" if child else "child", flush=True)
        says = Says()
        child = os.fork()
        file = open("parent" if child else "child", "w")
        file.write("written")
        if child: os.waitpid(child, 0)
        """,
    )
    assert (got.returncode, got.stdout, got.stderr) == (0, "destructor of parent\n", "")
    assert (tmp_path / "parent").read_text() == (tmp_path / "child").read_text() == "written"


def test_a_thread_that_still_runs_keeps_what_it_uses(tmp_path):
    got = run(
        tmp_path,
        """
        import threading, time
        class Endless:
            def __del__(self): time.sleep(0.5)  # The thread goes on meanwhile.
        lines = []
        endless = Endless()
        def thread():
            while True: lines.append("line"); time.sleep(0.001)
        threading.Thread(target=thread, daemon=True).start()
        """,
    )
    assert (got.returncode, got.stdout, got.stderr) == (0, "", "")


@pytest.mark.parametrize("fails", [False, True])
def test_an_exception_is_shown_by_the_hook_of_the_program(tmp_path, fails):
    body = f"""
        import atexit, sys
        def hook(kind, error, trace):
            print("hook got", kind.__name__, error, trace.tb_frame.f_code.co_name, trace.tb_next, flush=True)
            if {fails}: raise KeyError("of the hook")
        sys.excepthook = hook
        atexit.register(lambda: print("exit function got", sys.last_value, flush=True))
        raise RuntimeError("boom")
        """
    got = run(tmp_path, body)
    assert (got.returncode, got.stdout) == (1, "hook got RuntimeError boom <module> None\nexit function got boom\n")
    plain = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert (plain.returncode, plain.stdout) == (1, got.stdout)
    if not fails:
        assert [line for line in got.stderr.splitlines() if "run_program" not in line] == plain.stderr.splitlines()
    assert ("Error in sys.excepthook:" in got.stderr and "KeyError: 'of the hook'" in got.stderr) == fails
    assert ("Original exception was:" in got.stderr and "RuntimeError: boom" in got.stderr) == fails


def test_the_traceback_of_a_program_begins_with_its_first_line(tmp_path):
    for body in (
        "def f(): 1 / 0\nf()\n",
        "x = (\n",
        "import asyncio\nraise asyncio.CancelledError('boom')\n",
        "import missing\n",
    ):
        got = run(tmp_path, body)
        plain = subprocess.run(
            [sys.executable, str(tmp_path / "program.py")], capture_output=True, text=True, timeout=120, check=False
        )
        assert (got.returncode, got.stderr) == (1, plain.stderr)
