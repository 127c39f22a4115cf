"""Jobs that fail or are ended: the first task to fail is named, every process ends, nothing is left behind.

Where it does not matter what TensorFlow does at the end of a task, the tasks only listen at their addresses.
"""

import os
import pty
import re
import select
import signal
import sys
import time

import pytest
from listening import ALL_LISTEN, LISTENS
from support_paths import PROGRAMS

from tfdist.strategies.runtime.server import EXIT_CHIEF_FAILED

pytestmark = pytest.mark.cluster

QUICK = str(PROGRAMS / "quick_launcher.py")
SERVED = '{"chief": 1, "worker": 1, "ps": 1}'

TRAINS_FOREVER = """
    import tfdist
    with tfdist.strategy().scope():
        import keras, numpy as np
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    print("chief is ready", flush=True)
    class Report(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1: print("training runs", flush=True)
    model.fit(np.ones((64, 4)), np.ones((64, 1)), epochs=1000000, verbose=0, callbacks=[Report()])
"""


LISTENS_FOREVER = f"""{LISTENS}{ALL_LISTEN}
if me["type"] == "chief":
    print("training runs", flush=True)
time.sleep(600)
"""
PROGRAM_OF = {"tensorflow": TRAINS_FOREVER, "sockets": LISTENS_FOREVER}
LAUNCHER_OF = {"tensorflow": ("-m", "tfdist.launch"), "sockets": (QUICK,)}


@pytest.fixture
def training_job(start, script):
    """Starts a job that trains, or that seems to, and waits until it does."""

    def run(kind):
        job = start(*LAUNCHER_OF[kind], "--cluster", SERVED, script(PROGRAM_OF[kind]))
        job.wait_for("training runs")
        return job

    return run


# A ps takes the chief along, which then fails, too.
@pytest.mark.parametrize(("task", "kind"), [("chief:0", "sockets"), ("ps:0", "tensorflow")], ids=str)
def test_killing_a_task_ends_the_job_and_names_that_task(training_job, task, kind):
    job = training_job(kind)
    os.kill(job.pid_of(task), signal.SIGKILL)
    assert job.wait() == 128 + signal.SIGKILL
    assert f"tfdist: {task} failed first: it was killed by SIGKILL" in job.output
    assert job.left() == {}


COUNTS_STEPS = """
    import os
    import tfdist
    strategy = tfdist.strategy()
    with strategy.scope():
        import keras, numpy as np
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    class Report(keras.callbacks.Callback):
        steps, seen = 0, None
        def on_train_batch_end(self, batch, logs=None):
            self.steps += 1
            live = sorted(strategy.membership.live)
            if self.seen != live:
                self.seen = live
                print(" ".join(["training:", *map(str, live)]) + chr(10), end="", flush=True)  # In one write: others write, too.
        def on_epoch_end(self, epoch, logs=None):
            examples.add(int(self.model._loss_tracker.count.numpy()))
            if os.path.exists("end"): self.model.stop_training = True
    examples = set()
    report = Report()
    history = model.fit(np.ones((512, 4)), np.ones((512, 1)), batch_size=8, epochs=1000000, verbose=0, callbacks=[report])
    print("steps", report.steps - 64 * len(history.epoch), "updates", int(model.optimizer.iterations) - report.steps, flush=True)
    print("examples of each epoch:", *sorted(examples), flush=True)
"""


def test_a_killed_worker_of_parameter_server_is_restarted_alone_and_gets_work_again(
    start, script, small_cluster, tmp_path, read_json
):
    job = start("-m", "tfdist.launch", "--cluster", small_cluster, "--summary", "summary.json", script(COUNTS_STEPS))
    job.wait_for("training: 0 1")
    pids = {task: job.pid_of(task) for task in ("chief:0", "ps:0", "worker:1")}
    os.kill(pids["worker:1"], signal.SIGKILL)
    job.wait_for("worker:1 ended early: it was killed by SIGKILL; the training continues, and the task is restarted")
    job.wait_for("training: 0 1", after="is restarted")
    assert {task for task, pid in pids.items() if job.pid_of(task) != pid} == {"worker:1"}
    (tmp_path / "end").touch()
    assert job.wait(60) == 0, job.output
    # The killed worker may have applied the step that another one made for it, and the next.
    assert re.search(r"steps 0 updates [012]$", job.output, re.MULTILINE), job.output
    assert re.search(r"examples of each epoch: 512$", job.output, re.MULTILINE), job.output
    assert {task["task"]: task.get("restarts") for task in read_json("summary.json")["tasks"]}["worker:1"] == 1
    assert job.left() == {}


SIGNALS = [(signal.SIGINT, "sockets"), (signal.SIGTERM, "tensorflow"), (signal.SIGHUP, "sockets")]


@pytest.mark.parametrize(("number", "kind"), SIGNALS, ids=str)
def test_a_signal_to_the_launcher_ends_everything(training_job, number, kind):
    job = training_job(kind)
    job.process.send_signal(number)
    assert job.wait() == 128 + number
    assert f"ended by {number.name}" in job.output
    assert job.left() == {}


def test_killing_the_launcher_leaves_no_process(training_job):
    job = training_job("sockets")
    job.process.kill()
    job.wait()
    assert job.left(within=10) == {}


def test_an_exception_on_the_chief_is_shown_last_and_blames_no_server(start, script):
    body = """
        import tfdist
        strategy = tfdist.strategy()
        raise KeyError("a mistake of the user")
    """
    job = start("-m", "tfdist.launch", "--cluster", SERVED, script(body))
    assert job.wait() == 1
    assert "tfdist: chief:0 failed first: it exited with 1" in job.output
    last = job.output.rpartition("the last lines of")[2]
    assert "KeyError: 'a mistake of the user'" in last
    assert "runpy" not in last
    assert job.left() == {}


def test_an_exception_on_a_worker_before_it_serves_names_the_worker(start, script):
    fails = "if me['type'] == 'worker': raise RuntimeError('only here')"
    job = start(QUICK, "--cluster", SERVED, script(fails, LISTENS, "time.sleep(600)"))
    assert job.wait() == 1
    assert "tfdist: worker:0 failed first: it exited with 1" in job.output
    assert "RuntimeError: only here" in job.output.rpartition("the last lines of")[2]
    assert job.left() == {}


def test_a_worker_that_ends_without_serving_is_named(start, script, small_cluster):
    body = """
        import time
        if me["type"] == "worker" and me["index"] == 0: raise SystemExit(0)
        time.sleep(600)
    """
    job = start(QUICK, "--cluster", small_cluster, script(body))
    assert job.wait() == 1
    assert "worker:0 ended by itself while the chief was still running" in job.output
    assert job.left() == {}


def test_an_evaluator_that_always_fails_does_not_fail_the_training(start, script, read_json):
    program = script("assert me['type'] != 'evaluator'")
    job = start(QUICK, "--tier", "BASIC", "--evaluator", "--summary", "summary.json", program)
    assert job.wait() == 0, job.output
    assert "evaluator:0 failed 4 times, most recently because it exited with 1; the training is done without it" in job.output
    task = read_json("summary.json")["tasks"][-1]
    assert f"evaluator:0 did not finish, see {task['log']}; its evaluations so far are kept (3 restarts)" in job.output
    assert (task["task"], task["exit_code"]) == ("evaluator:0", 1)
    assert job.output.count("AssertionError") == (job.folder / task["log"]).read_text().count("AssertionError") == 4
    assert job.left() == {}


def test_ctrl_c_ends_the_wait_for_an_evaluator_after_the_training(start, script, read_json):
    body = "import time\nif me['type'] == 'evaluator': time.sleep(600)\n"
    job = start(QUICK, "--tier", "BASIC", "--evaluator", "--summary", "summary.json", script(body))
    job.wait_for("the training is done; waiting for evaluator:0, at most 600 s")
    job.process.send_signal(signal.SIGINT)
    assert job.wait() == 0, job.output  # The training has succeeded.
    assert read_json("summary.json")["exit_code"] == 0 and "evaluator:0 did not finish, see " in job.output
    assert job.left(within=10) == {}


def test_a_job_that_fails_ends_its_evaluator(start, script, tmp_path):
    body = """
        import time
        while me["type"] == "chief" and not os.path.exists("pid-evaluator-0"): time.sleep(0.05)
        if me["type"] == "chief": raise RuntimeError("no")
        time.sleep(600)
    """
    job = start(QUICK, "--tier", "BASIC", "--evaluator", script(body))
    assert job.wait() == 1, job.output
    assert "chief:0 failed first" in job.output and (tmp_path / "pid-evaluator-0").exists()
    assert job.left() == {}


def test_processes_that_a_program_leaves_behind_end_with_the_job(start, script):
    job = start(
        QUICK, "--tier", "BASIC", script("import subprocess\nsubprocess.Popen(['sleep', '600'], start_new_session=True)")
    )
    assert job.wait() == 0
    assert job.left() == {}


def test_a_program_that_ignores_sigterm_is_killed(start, script):
    deaf = """
        import signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    """
    says_so = """
        if me["type"] == "chief": print("deaf now", flush=True)
        time.sleep(600)
    """
    job = start(QUICK, "--cluster", SERVED, script(deaf, LISTENS, ALL_LISTEN, says_so))
    job.wait_for("deaf now")
    job.process.terminate()
    assert job.wait() == 143
    assert job.left() == {}


def test_a_chief_may_end_long_after_its_servers(start, script):
    body = """
        import atexit, time, tfdist
        atexit.register(lambda: (time.sleep(10), print("uploaded", flush=True)))  # before tfdist.strategy: runs after its end
        tfdist.strategy()
    """
    job = start("-m", "tfdist.launch", "--cluster", SERVED, script(body))
    assert job.wait() == 0, job.output
    assert "uploaded" in job.output


ENDS_BESIDE_A_STOPPED_PS = """
    import atexit, json, os, pathlib, signal, time
    name = json.loads(os.environ["TF_CONFIG"])["task"]["type"]
    pathlib.Path(f"pid-{name}").write_text(str(os.getpid()))
    def lose_ps():
        os.kill(int(pathlib.Path("pid-ps").read_text()), signal.SIGKILL)
        time.sleep(2)  # The launcher hears of it.
    if name == "chief":
        atexit.register(lose_ps)  # Before the strategy: this function is the last one.
    import tfdist
    with tfdist.strategy().scope():
        import keras, numpy as np
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(np.ones((64, 4)), np.ones((64, 1)), verbose=0)
    os.kill(int(pathlib.Path("pid-ps").read_text()), signal.SIGSTOP)  # It does not hear that the program has ended.
    print("the program ends", flush=True)
"""


def test_a_ps_that_is_lost_while_the_process_of_the_chief_ends_fails_no_training_that_has_finished(start, script):
    job = start("-m", "tfdist.launch", "--cluster", SERVED, "--max_restarts", "1", script(ENDS_BESIDE_A_STOPPED_PS))
    assert job.wait(90) == 0, job.output
    assert job.output.count("the program ends") == 1 and "failed first" not in job.output
    assert job.left() == {}


def test_a_program_that_never_calls_strategy_is_an_error(start, script):
    job = start(QUICK, "--cluster", SERVED, script("print('trained on my own')"))
    assert job.wait() == 1
    assert "the program ended without calling tfdist.strategy()" in job.output
    assert job.left() == {}


def test_a_program_that_exits_with_a_code_is_the_first_failure_not_its_servers(start, script, read_json):
    body = f"""
        if me["type"] == "chief":
            pathlib.Path("end").touch()
            time.sleep(0.1)
            sys.exit(7)
        while not os.path.exists("end"): time.sleep(0.05)
        os._exit({EXIT_CHIEF_FAILED})
    """
    job = start(QUICK, "--cluster", SERVED, "--summary", "summary.json", script(LISTENS, ALL_LISTEN, body))
    assert job.wait() == 7
    assert read_json("summary.json")["failure"] == "chief:0 failed first: it exited with 7"
    assert "chief:0 failed first: it exited with 7" in job.output and job.left() == {}


def test_thousands_of_arguments_reach_the_program(start, script):
    arguments = [f"file-{i:060}" for i in range(8000)]
    job = start(QUICK, "--tier", "BASIC", script("import sys\nprint(len(sys.argv))"), "--", *arguments)
    assert job.wait() == 0, job.output
    assert "chief:0 | 8001" in job.output


def test_ctrl_c_on_a_real_terminal_ends_the_job_without_a_traceback(script, tmp_path):
    program = script(LISTENS_FOREVER)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execv(sys.executable, [sys.executable, QUICK, "--cluster", SERVED, program])
    output, interrupted, deadline = b"", False, time.monotonic() + 120
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                output += os.read(terminal, 1 << 16)
            except OSError:
                break
        if b"training runs" in output and not interrupted:
            os.write(terminal, b"\x03")
            interrupted = True
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    assert b"ended by SIGINT" in output and b"Traceback" not in output, output[-3000:]
