"""Faults under Hogwild: training continues when a worker or a ps is killed or stopped, and ends without the chief.

The program shortens waiting times.
"""

import json
import os
import signal
import textwrap
from collections import defaultdict
from pathlib import Path

import pytest
from by_hand import configs
from processes import parent_of, processes_of
from support_paths import PROGRAMS

pytestmark = pytest.mark.cluster

TRAINS = """
    import os, time
    import tfdist
    strategy = tfdist.strategy()
    with strategy.scope():
        import keras, numpy as np
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse")
    x = np.random.default_rng(1).normal(size=(64, 4))
    reported = []
    class Report(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            time.sleep(0.01)  # So that the groups do not use all of the machine while a test waits.
        def on_epoch_end(self, epoch, logs=None):
            training = len(strategy.membership.live)
            if epoch >= 2 and reported[-1:] != [training]:
                reported.append(training)
                self.model.save(f"{len(reported)}.keras")
                valid = np.isfinite(logs["val_loss"])
                print(f"change {len(reported)}: {training} training" + ("" if valid else f", {logs}"), flush=True)
            if os.path.exists("end"):
                self.model.stop_training = True
    model.fit(x, x.sum(1), batch_size=8, epochs=1000000, verbose=0, callbacks=[Report()], validation_data=(x, x.sum(1)))
    loss = model.evaluate(x, x.sum(1), verbose=0)
    print("finished", "finite" if np.isfinite(loss) else loss, flush=True)
"""


# Groups wait for each other at the end of a round, so the faults have to end these waits.
OUTER = {"outer": "nesterov", "fragments": 2}


@pytest.fixture
def cluster(start, script, tmp_path, monkeypatch, request):
    """Starts 1 chief, 2 workers and 1 ps under Hogwild, and waits until they train. A parameter has more options."""
    monkeypatch.chdir(tmp_path)
    options = {"strategy": "hogwild", "sync_period": 2, "synchronization": OUTER | getattr(request, "param", {})}
    program, environments = script(TRAINS), configs(options, chief=1, worker=2, ps=1)
    jobs = {task: start(program, environment=env) for task, env in environments.items()}
    jobs["chief", 0].wait_for("change 1: 2 training")
    return jobs, lambda task: start(program, environment=environments[task])


@pytest.mark.parametrize("cluster", [{"grace": 1e9}], indirect=True, ids=["that would be waited for without end"])
def test_training_continues_without_a_killed_worker_and_takes_it_back(cluster, tmp_path):
    jobs, again = cluster
    os.kill(jobs["worker", 1].process.pid, signal.SIGKILL)
    jobs["worker", 1].wait(60)
    jobs["chief", 0].wait_for("change 2: 1 training\n")
    back = again(("worker", 1))
    jobs["chief", 0].wait_for("change 3: 2 training")
    for process in (jobs["ps", 0].process, back.process):
        os.kill(process.pid, signal.SIGUSR1)  # It asks the chief to save. Slurm sends it to all.
    (tmp_path / "end").touch()
    jobs["chief", 0].wait_for("finished finite")
    assert jobs["chief", 0].wait(60) == 0
    assert back.wait(60) == 0


def test_a_stopped_worker_delays_no_other(cluster, tmp_path):
    jobs, _ = cluster
    os.kill(jobs["worker", 1].process.pid, signal.SIGSTOP)
    try:
        jobs["chief", 0].wait_for("change 2: 1 training\n")
    finally:
        os.kill(jobs["worker", 1].process.pid, signal.SIGCONT)
    (tmp_path / "end").touch()
    jobs["chief", 0].wait_for("finished finite")
    assert jobs["chief", 0].wait(60) == 0
    assert jobs["worker", 1].wait(60) == 0


PROGRAM = str(PROGRAMS / "hogwild_killed.py")
OPTIONS = ("--strategy", "hogwild", "--sync_period", "2")

SOON = """
from tfdist.launch.jobs import restarts
restarts.STOPPED_SECONDS = 3.0
import sys
from tfdist.launch.commands import run
sys.exit(run(["run", *sys.argv[1:]]))
"""


def killed(folder, run_python, task, tasks):
    """Runs a program that kills a task of such a cluster; returns the output, and what the program has found."""
    command = ("-m", "tfdist.launch", "--cluster", json.dumps(tasks), *OPTIONS, PROGRAM, "--", task, "results.json")
    code, output = run_python(folder, *command, timeout=400), (folder / "output.txt").read_text()
    assert code == 0, output
    return output, json.loads((folder / "results.json").read_text())


@pytest.fixture(scope="module")
def killed_ps(tmp_path_factory, run_python):
    return killed(tmp_path_factory.mktemp("ps"), run_python, "ps:1", {"chief": 1, "worker": 2, "ps": 2})


@pytest.fixture(scope="module")
def killed_worker(tmp_path_factory, run_python):
    """Without ps the workers hold the global parameters, so one that is killed loses its local replica, too."""
    return killed(tmp_path_factory.mktemp("worker"), run_python, "worker:1", {"chief": 1, "worker": 2})


@pytest.mark.parametrize(
    ("run", "task", "groups"),
    [("killed_ps", "ps:1", "2 worker groups have"), ("killed_worker", "worker:1", "1 worker group has")],
)
def test_a_killed_task_gets_its_part_of_the_parameters_back_and_no_step_is_lost(request, run, task, groups):
    output, found = request.getfixturevalue(run)
    assert f"{task} ended early: it was killed by SIGKILL; the training waits for it, and the task is restarted" in output
    assert f" was restarted: its part of the global parameters comes back from what {groups} pulled last, and " in output
    assert "at most one sync period of each (2 updates) is lost; the momentum of the outer optimizer begins at" in output
    assert found["updates"] == 20 * 32 and found["examples"] == [512.0] * 20  # No call that has failed counts twice.
    before, after = found["losses"][8], found["losses"][9:]
    assert max(after) < 3 * before < 0.1 * found["losses"][0], found["losses"]
    assert found["error"] < 1e-3  # As without a fault.


def test_a_ps_may_be_killed_during_evaluate_and_before_a_save(killed_ps):
    found = killed_ps[1]["again"]
    assert (found["updates"], found["killed"]) == ((20 + 8) * 32, 3)
    first, *_, middle = found["losses"][:4]
    assert found["evaluated"] < 1.1 * middle and found["losses"][4] < 3 * middle < first, found
    assert found["after"] < 2 * found["losses"][-1] < 0.1 * first, found
    assert found["error"] == 0.0


def test_a_killed_ps_resets_no_optimizer_slots_and_a_save_at_that_moment_has_them(killed_ps):
    found, iterations = killed_ps[1]["slots"]
    assert len(found) == 4 and iterations == 256
    for second_moment, expected in found:
        assert second_moment == pytest.approx(expected, rel=1e-3) and expected > 0.05


def test_under_the_launcher_a_worker_that_is_killed_or_stopped_is_started_again(
    start, script, small_cluster, tmp_path, read_json
):
    job = start("-c", SOON, "--cluster", small_cluster, *OPTIONS, "--summary", "summary.json", script(TRAINS))
    restarted = "worker:1 ended early: it was killed by SIGKILL; the training continues, and the task is restarted"
    job.wait_for("change 1: 2 training")
    pids = [job.pid_of("worker:1")]
    os.kill(pids[0], signal.SIGKILL)
    job.wait_for(restarted)
    job.wait_for("2 of 2 worker groups train", after="is restarted")
    pids.append(job.pid_of("worker:1"))
    os.kill(pids[1], signal.SIGSTOP)
    job.wait_for(f"worker:1 was stopped by SIGSTOP; `kill -CONT {pids[1]}` resumes it")
    job.wait_for("worker:1 is killed and restarted unless it resumes within 3 s")
    job.wait_for("worker:1 was stopped for 3 s; it is killed, because other tasks may wait for it")
    job.wait_for(restarted, after="it is killed, because")
    job.wait_for("2 of 2 worker groups train", after="is restarted")
    assert len({*pids, job.pid_of("worker:1")}) == 3
    (tmp_path / "end").touch()
    assert job.wait(60) == 0, job.output
    assert "restarts  worker:1: 2 restarts" in job.output
    assert {task["task"]: task.get("restarts") for task in read_json("summary.json")["tasks"]}["worker:1"] == 2
    assert job.left() == {}


def started(pid):
    """When a process was started, in clock ticks. Numbers of processes begin again at some time."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def test_a_worker_of_a_plain_program_is_started_again(start, script, small_cluster, tmp_path):
    cluster = f'dataclasses.replace(tfdist.read("{small_cluster}"), strategy="hogwild", sync_period=2)'
    program = "import dataclasses\n" + textwrap.dedent(TRAINS).replace("tfdist.strategy()", f"tfdist.strategy({cluster})")
    job = start(script(program))
    job.wait_for("change 1: 2 training")
    children = defaultdict(list)
    for pid in processes_of(job.mark):
        children[parent_of(pid)].append(pid)
    forked = sorted(max(children.values(), key=len), key=started)  # By the fork server, in the order of their tasks.
    assert len(forked) == 3
    os.kill(forked[1], signal.SIGKILL)
    job.wait_for("worker:1 ended early: it was killed by SIGKILL; the training continues, and the task is restarted")
    job.wait_for("2 of 2 worker groups train", after="is restarted")
    (tmp_path / "end").touch()
    assert job.wait(60) == 0, job.output
    assert job.left(within=10) == {}
