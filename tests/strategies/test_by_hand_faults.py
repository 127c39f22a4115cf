"""Tests that no task waits without a limit for another that has died. The programs shorten the waiting times."""

import contextlib
import json
import os
import signal
import socket
import threading

import pytest
from by_hand import configs
from reserved import free_port

pytestmark = pytest.mark.cluster

TRAINS = """
    import os
    os.environ["TFDIST_LOST_TIMEOUT"] = "6"
    import tfdist
    from tfdist.strategies.runtime import server
    server.CHIEF_POLL_SECONDS = 0.5
    with tfdist.strategy().scope():
        import keras, numpy as np
        import time
        from tfdist.strategies.coordinator.calls import executions
        executions.POLL_SECONDS = 1.0
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    class Tell(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            time.sleep(0.01)  # Else hundreds of steps a second keep this machine busy.
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 2:
                print("epoch", epoch, flush=True)
            elif epoch % 100 == 0:
                print("100 epochs", flush=True)
    model.fit(np.ones((64, 4)), np.ones((64, 1)), epochs={epochs}, verbose=0, callbacks=[Tell()])
    print("finished", flush=True)
"""


@pytest.fixture
def cluster(start, script):
    def start_all(epochs, groups=None, **jobs):
        program = script(TRAINS.format(epochs=epochs))
        environments = configs({"worker_groups": groups} if groups else None, **jobs)
        started = {task: start(program, environment=env) for task, env in environments.items()}
        start_all.again = lambda task: start(program, environment=environments[task])
        started["chief", 0].wait_for("epoch 2")
        return started

    return start_all


def test_training_goes_on_without_a_worker_that_is_stopped(cluster):
    jobs = cluster(60, chief=1, worker=2, ps=1)
    os.kill(jobs["worker", 1].process.pid, signal.SIGSTOP)
    jobs["chief", 0].wait_for("finished")
    assert "no answer from worker:1 (localhost:" in jobs["chief", 0].output
    assert jobs["chief", 0].wait(60) == 0
    assert jobs["ps", 0].wait(60) == 0


def test_training_goes_on_without_a_worker_that_is_killed_and_fails_and_names_them_without_any(cluster):
    jobs = cluster(1000000, chief=1, worker=2, ps=1)
    os.kill(jobs["worker", 1].process.pid, signal.SIGKILL)
    jobs["chief", 0].wait_for("worker:1 has left")
    jobs["chief", 0].wait_for("100 epochs", after="worker:1 has left")
    os.kill(jobs["worker", 0].process.pid, signal.SIGSTOP)
    assert jobs["chief", 0].wait(90) == 1
    assert "WorkersGoneError: no worker group has been complete for 6 s, there is no answer from worker:0 (localhost:" in (
        jobs["chief", 0].output
    )
    assert jobs["ps", 0].wait(60) == 75


def test_training_fails_and_names_the_worker_that_its_only_group_lost(cluster):
    jobs = cluster(1000000, groups=[[0, 1]], chief=1, worker=2, ps=1)
    os.kill(jobs["worker", 1].process.pid, signal.SIGKILL)
    assert jobs["chief", 0].wait(90) == 1
    assert "complete for 6 s, there is no answer from worker:1 (localhost:" in jobs["chief", 0].output


def test_a_group_goes_on_when_its_worker_returns(cluster):
    jobs = cluster(150, groups=[[0, 1]], chief=1, worker=2, ps=1)
    os.kill(jobs["worker", 1].process.pid, signal.SIGKILL)
    jobs["worker", 1].wait(60)
    again = cluster.again(("worker", 1))
    assert jobs["chief", 0].wait(120) == 0
    assert "finished" in jobs["chief", 0].output
    assert again.wait(60) == 0


def test_training_fails_without_a_ps(cluster):
    jobs = cluster(1000000, chief=1, worker=1, ps=1)
    os.kill(jobs["ps", 0].process.pid, signal.SIGKILL)
    assert jobs["chief", 0].wait(90) == 1
    assert "UnavailableError" in jobs["chief", 0].output
    assert jobs["worker", 0].wait(60) == 75


SCHEDULES = """
    import os
    os.environ["TFDIST_LOST_TIMEOUT"] = "4"
    import tfdist
    strategy = tfdist.strategy()
    import tensorflow as tf
    with strategy.scope():
        total = tf.Variable(0.0)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    add = tf.function(lambda: total.assign_add(1.0))
    for step in range(1000000):
        coordinator.schedule(add)
        coordinator.join()
        if step == 2: print("has begun", flush=True)
"""


def test_what_a_program_schedules_itself_fails_without_an_answer_from_a_ps(start, script):
    program = script(SCHEDULES)
    jobs = {task: start(program, environment=env) for task, env in configs(chief=1, worker=1, ps=1).items()}
    jobs["chief", 0].wait_for("has begun")
    os.kill(jobs["ps", 0].process.pid, signal.SIGSTOP)
    assert jobs["chief", 0].wait(60) == 1
    assert "ServersGoneError: no answer from ps:0 (localhost:" in jobs["chief", 0].output


def test_servers_exit_when_the_chief_is_killed(cluster):
    jobs = cluster(1000000, chief=1, worker=1, ps=1)
    os.kill(jobs["chief", 0].process.pid, signal.SIGKILL)
    for task in (("worker", 0), ("ps", 0)):
        assert jobs[task].wait(60) == 75
        assert "has been gone for 6 s without notice" in jobs[task].output


def answers_once(job):
    """Starts what answers as a task of `job` at the first connection and never again, as one that is stopped then."""
    listener = socket.create_server(("localhost", 0))
    device = f"framed: \x0a$/job:{job}/replica:0/task:0/device:CPU:0"

    def serve():
        held = []
        with contextlib.suppress(OSError):
            while True:
                held.append(listener.accept()[0])
                if len(held) == 1:
                    held[0].recv(4096)
                    held[0].sendall(b"\0\0\0\4\0\0\0\0\0 " + device.encode())

    threading.Thread(target=serve, daemon=True).start()
    return listener


def test_a_chief_ends_if_tasks_are_stopped_while_it_connects_to_them(start, script):
    with answers_once("ps") as ps, answers_once("worker") as worker:
        ports = {"ps": ps.getsockname()[1], "worker": worker.getsockname()[1], "chief": free_port()}
        addresses = {job: [f"localhost:{port}"] for job, port in ports.items()}
        config = {"TF_CONFIG": json.dumps({"cluster": addresses, "task": {"type": "chief", "index": 0}})}
        chief = start(script("import tfdist; tfdist.strategy(start_timeout=5)"), environment=config)
        assert chief.wait(60) == 1  # TensorFlow itself waits for ever.
        assert "tfdist: TensorFlow has not connected this task to the others within 5 s" in chief.output
