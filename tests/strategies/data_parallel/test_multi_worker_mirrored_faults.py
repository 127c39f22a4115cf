"""Data-parallel tasks if one of them is missing, fails, or gets a signal to end."""

import json
import os
import signal

import pytest
from by_hand import configs

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

TWO_WORKERS = "cluster { nworker_groups: 1 nworkers_per_group: 2 nworkers_per_procs: 1 }"
TRAINS_FOR_EVER = """
    import tfdist
    with tfdist.strategy().scope():
        import keras, numpy as np
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    class Tell(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1: print("training runs", flush=True)
            if epoch == 20 and FAILS and me["index"] == 1: raise KeyError("a mistake of the user")
    model.fit(np.ones((64, 4)), np.ones((64, 1)), epochs=1000000, verbose=0, callbacks=[Tell()])
"""


@pytest.fixture
def launched(start, script, tmp_path):
    """Starts a program on two workers under the launcher."""

    def launch(body, *flags):
        (tmp_path / "two.conf").write_text(TWO_WORKERS)
        return start("-m", "tfdist.launch", "--cluster", "two.conf", *flags, script(body))

    return launch


def test_a_killed_worker_ends_the_job_and_is_named(launched):
    job = launched("    FAILS = False" + TRAINS_FOR_EVER)
    job.wait_for("training runs")
    os.kill(job.pid_of("worker:1"), signal.SIGKILL)
    assert job.wait(60) == 128 + signal.SIGKILL
    assert "tfdist: worker:1 failed first: it was killed by SIGKILL" in job.output
    assert job.left() == {}


def test_the_task_whose_program_fails_is_named_and_not_those_that_lose_it(launched):
    job = launched("    FAILS = True" + TRAINS_FOR_EVER)
    assert job.wait() == 1
    assert "tfdist: worker:1 failed first: it exited with 1" in job.output
    assert "KeyError: 'a mistake of the user'" in job.output.rpartition("the last lines of")[2]
    assert job.left() == {}


def test_a_callback_that_stops_one_task_stops_all_after_one_more_step(launched):
    job = launched(
        """
    import tfdist
    with tfdist.strategy().scope():
        import keras, numpy as np
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2 and me["index"] == 1: self.model.stop_training = True
    model.fit(np.ones((64, 4)), np.ones((64, 1)), batch_size=8, epochs=3, verbose=0, callbacks=[Stop()])
    print("made", int(model.optimizer.iterations.numpy()), "steps", flush=True)
        """
    )
    assert job.wait(60) == 0
    assert job.output.count("made 4 steps") == 2
    assert "a callback stops the training in worker:1, and not in all tasks: all stop" in job.output


def test_a_task_that_ended_early_is_named_beside_the_one_that_missed_it(launched):
    job = launched(
        "    import sys\n    if me['index'] == 1: sys.exit(0)\n    import tfdist\n    tfdist.strategy(start_timeout=8)"
    )
    assert job.wait() == 1
    assert "worker:0 failed first: it exited with 1; worker:1 had ended with 0 before" in job.output
    assert "gave up after 8 s: no answer from worker:1 (" in job.output


def test_a_task_that_ends_while_the_others_make_variables_is_named_within_seconds(launched):
    job = launched(
        """
    import os, tfdist
    with tfdist.strategy().scope():
        import keras
        if me["index"] == 1: os._exit(0)
        keras.layers.Dense(1).build((None, 4))
        """
    )
    assert job.wait(60) == 1  # TensorFlow itself waits for heartbeats, for two minutes.
    assert "TaskLostError: lost worker:1 (" in job.output


def test_a_signal_to_the_launcher_ends_tasks_that_tensorflow_makes_deaf_to_it(launched):
    job = launched("    FAILS = False" + TRAINS_FOR_EVER)
    job.wait_for("training runs")
    job.process.send_signal(signal.SIGTERM)
    assert job.wait(60) == 128 + signal.SIGTERM
    assert job.left() == {}


def test_the_launcher_names_a_task_that_does_not_come_up(launched):
    body = "    import time, tfdist\n    if me['index'] == 1: time.sleep(600)\n    tfdist.strategy()"
    job = launched(body, "--start_timeout", "20")
    assert job.wait() == 1
    assert "s (--start_timeout): worker:1 (" in job.output or "no answer from worker:1 (" in job.output
    assert job.left() == {}


def test_without_a_launcher_a_missing_task_is_named_and_the_process_ends(start, script):
    environment = configs(worker=2)["worker", 0]
    job = start(script("    import tfdist\n    tfdist.strategy(start_timeout=5)"), environment=environment)
    assert job.wait() == 1
    address = json.loads(environment["TF_CONFIG"])["cluster"]["worker"][1]
    assert f"gave up after 5 s: no answer from worker:1 ({address})" in job.output


CONTINUES = """
    import time, tfdist
    from tfdist.strategies.runtime import peers
    peers.LOG_SECONDS = 1.0
    with tfdist.strategy(start_timeout=60).scope():
        import keras, numpy as np
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    class Busy(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            print("epoch", epoch, flush=True)
            while epoch == 3 and me["index"] == 0 and not os.path.exists("go"): time.sleep(0.05)
    model.fit(np.ones((64, 4)), np.ones((64, 1)), epochs=10, verbose=0, callbacks=[Busy()])
    print("finished after", int(model.optimizer.iterations.numpy()), "steps", flush=True)
"""


def test_by_hand_a_worker_that_is_back_waits_until_the_others_are_started_again(start, script, tmp_path):
    """It is back before the other one has noticed that it was gone, and must not go into the training that has lost it."""
    program, environments = script(CONTINUES), configs(worker=2)
    address = json.loads(environments["worker", 1]["TF_CONFIG"])["cluster"]["worker"][1]

    def begin(index):
        return start(program, environment=environments["worker", index] | {"TFDIST_BACKUP_DIR": str(tmp_path / "backup")})

    first, lost = begin(0), begin(1)
    first.wait_for("epoch 3")
    os.kill(lost.process.pid, signal.SIGKILL)
    lost.wait(60)
    back = begin(1)
    back.wait_for("a training that has begun without this task still answers at the address of worker:0")
    (tmp_path / "go").touch()
    assert first.wait(60) == 1
    assert (
        f"TaskLostError: lost worker:1 ({address}): ended, or started again; the training cannot go on: start the"
        in first.output
    )
    first = begin(0)
    for job in (first, back):
        assert job.wait(60) == 0, job.output
        assert "finished after 20 steps" in job.output
        assert "epoch 0" not in job.output


def test_a_process_that_is_no_task_is_told_to_run_the_program_on_all(start, script):
    job = start(script("    import tfdist\n    tfdist.strategy('cluster { nworkers_per_group: 2 nworkers_per_procs: 1 }')"))
    assert job.wait() == 1
    assert "every task trains, and this process is none of 2 workers; run the program on every task" in job.output


def test_tasks_that_see_different_devices_are_named_instead_of_waiting_for_each_other(launched):
    job = launched(
        "    import dataclasses, tfdist\n    from tfdist.strategies.data_parallel import multi_worker_mirrored as module\n"
        "    devices = module.local_devices\n"
        "    module.local_devices = lambda task: devices(dataclasses.replace(task, slots=me['index'] + 1))\n"
        "    tfdist.strategy()"
    )
    assert job.wait() == 2
    assert "needs the same devices on every task, and they see worker:0 1 CPU, worker:1 2 CPU; describe" in job.output
    assert job.left() == {}
