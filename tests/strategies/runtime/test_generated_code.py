"""A program that is killed leaves no files of the code that AutoGraph generates, and that code can still be shown."""

import pytest

pytestmark = pytest.mark.cluster

FUNCTIONS = """
import tensorflow as tf

def doubled(x):
    if tf.reduce_sum(x) > 0:
        x = 2 * x
    return x

def fails(x):
    if tf.reduce_sum(x) > 0:
        raise ValueError("on purpose")
    return x
"""

PROGRAM = """
import inspect, os, re, signal, sys, tempfile
import tensorflow as tf
import tfdist

tempfile.tempdir = os.getcwd() + "/temporary"
os.mkdir(tempfile.tempdir)

def shown(functions):
    generated = tf.autograph.to_graph(functions.doubled)
    text = inspect.getsource(generated)
    text += str([tf.function(generated)(tf.constant(value)).numpy() for value in ([1.0, 2.0], [1.0, -2.0])])
    try:
        tf.function(functions.fails)(tf.constant([1.0]))
    except ValueError as error:
        text += str(error)
    text = re.sub("__autograph_generated_file[a-z0-9_]+", "MODULE", text).replace(tempfile.tempdir + "/", "")
    return re.sub("line [0-9]+", "line", text.replace("again.py", "functions.py"))

import functions
without, left = shown(functions), len(os.listdir(tempfile.tempdir))
tfdist.strategy()
import again
with_tfdist = shown(again)
assert with_tfdist == without, (with_tfdist, without)
assert "ag__.if_stmt" in without and "raise ValueError" in without, without
print("left:", left, len(os.listdir(tempfile.tempdir)), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_program_leaves_no_generated_files_and_its_code_and_errors_are_shown_as_without_tfdist(tmp_path, run_python):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    (tmp_path / "again.py").write_text("\n" + FUNCTIONS)  # On other lines: what looks the same is not converted again.
    run_python(tmp_path, "program.py", timeout=100)
    text = (tmp_path / "output.txt").read_text()
    left = text.partition("left: ")[2].split()
    assert left[0] == left[1] != "0", text
