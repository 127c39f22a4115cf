"""Tests programs that are started by hand: one on every task, with TF_CONFIG alone, or a single one without TF_CONFIG."""

import json
import os
import re
import signal
import socket

import pytest
from by_hand import configs

pytestmark = pytest.mark.cluster

TRAINS = """
    import tfdist
    with tfdist.strategy({argument}).scope():
        import keras, numpy as np
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(np.ones((64, 4)), np.ones((64, 1)), epochs=2, verbose=0)
    print("trained", int(model.optimizer.iterations.numpy()), "steps as", type(tfdist.strategy({argument})).__name__, flush=True)
"""


def test_four_processes_train_and_servers_exit_with_0_after_the_chief(start, script):
    program = script(TRAINS.format(argument=""))
    environments = configs(chief=1, worker=2, ps=1)
    jobs = {task: start(program, environment=env, fresh=task == ("chief", 0)) for task, env in environments.items()}
    assert jobs["chief", 0].wait() == 0, jobs["chief", 0].output
    assert "trained 4 steps as ParameterServer" in jobs["chief", 0].output
    for task, job in jobs.items():
        assert job.wait(60) == 0, (task, job.output)


def test_a_description_in_the_program_and_tf_config_of_the_same_cluster_agree(start, script):
    config = {"worker_count": 1, "parameter_server_count": 1}
    text = json.dumps(
        {"scaleTier": "CUSTOM", "masterType": "standard", "workerType": "standard", "parameterServerType": "standard"}
        | {"workerCount": config["worker_count"], "parameterServerCount": config["parameter_server_count"]}
    )
    program = script(TRAINS.format(argument=text))
    jobs = {task: start(program, environment=env) for task, env in configs(chief=1, worker=1, ps=1).items()}
    for task, job in jobs.items():
        assert job.wait() == 0, (task, job.output)


def test_a_description_that_contradicts_tf_config_is_refused_on_every_task(start, script):
    job = start(script(TRAINS.format(argument="'STANDARD_1'")), environment=configs(chief=1, worker=1, ps=1)["ps", 0])
    assert job.wait() == 1
    assert "ClusterError" in job.output
    assert "asks for 1 chief, 4 workers, 3 ps, but TF_CONFIG describes 1 chief, 1 worker, 1 ps" in job.output


def test_without_a_chief_worker_0_is_the_chief_and_a_worker_as_well(start, script):
    program = script(TRAINS.format(argument=""))
    jobs = {task: start(program, environment=env) for task, env in configs(worker=2, ps=1).items()}
    assert jobs["worker", 0].wait() == 0, jobs["worker", 0].output
    assert "trained 4 steps as ParameterServer" in jobs["worker", 0].output
    for task, job in jobs.items():
        assert job.wait(60) == 0, (task, job.output)
        assert job.left(within=10) == {}


@pytest.mark.parametrize(("more", "code"), [({}, 75), ({"TFDIST_ENDS_WITH_CHIEF": "1"}, 0)])
def test_servers_exit_with_75_if_the_chief_fails_or_with_0_where_they_would_be_started_again(start, script, more, code):
    program = script("""
        import sys, tfdist
        tfdist.strategy()
        sys.exit(3)
    """)
    jobs = {task: start(program, environment=env | more) for task, env in configs(chief=1, worker=1, ps=1).items()}
    assert jobs["chief", 0].wait() == 3
    for task in (("worker", 0), ("ps", 0)):
        assert jobs[task].wait(60) == code
        assert "the chief's program failed" in jobs[task].output


def test_the_chief_names_the_missing_tasks_and_gives_up(start, script):
    program = script("""
        import tfdist
        tfdist.strategy(start_timeout=12)
    """)
    environments = configs(chief=1, worker=3, ps=1)
    _, missing, taken = json.loads(environments["chief", 0]["TF_CONFIG"])["cluster"]["worker"]
    with socket.create_server(("", int(taken.rpartition(":")[2]))):  # Of another program.
        for task in (("worker", 0), ("ps", 0)):
            start(program, environment=environments[task])
        chief = start(program, environment=environments["chief", 0])
        cannot_serve = start(program, environment=environments["worker", 2])
        assert chief.wait() == 1
        assert cannot_serve.wait() == 1
    assert f"tfdist: worker:2 cannot serve at {taken}: Address already in use; free the port" in cannot_serve.output
    assert f"no TensorFlow server answers, at the address of worker:2 ({taken}); end the program" in chief.output
    assert re.search(rf"waiting \d+ s for worker:1 \({missing}\)", chief.output)
    assert f"StartTimeoutError: gave up after 12 s: no answer from worker:1 ({missing});" in chief.output


def test_a_server_without_a_chief_names_it_and_gives_up(start, script):
    environments = configs(chief=1, worker=1, ps=1)
    job = start(script("import tfdist; tfdist.strategy(start_timeout=3)"), environment=environments["ps", 0])
    assert job.wait(60) == 75
    assert "no answer from chief:0 (localhost:" in job.output


def test_a_single_program_that_is_killed_leaves_no_server_and_no_file(start, script, small_cluster, tmp_path):
    body = """
        import time, tfdist
        tfdist.strategy("small.yaml")
        print("up", flush=True)
        time.sleep(600)
    """
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    job = start(script(body), environment={"TMPDIR": str(temporary)})
    job.wait_for("up")
    assert len(job.left()) >= 5  # itself, the fork server, 3 servers
    assert [folder.name.startswith("tfdist-") for folder in temporary.iterdir()] == [True]
    os.kill(job.process.pid, signal.SIGKILL)
    assert job.left(within=10) == {}
    assert not list(temporary.iterdir())


def test_a_second_description_is_refused_and_a_program_that_fails_keeps_its_exit_code_and_leaves_no_server(
    start, script, small_cluster
):
    job = start(
        script("""
        import sys, tfdist
        first = tfdist.strategy("small.yaml")
        assert tfdist.strategy("small.yaml") is first
        try:
            tfdist.strategy("STANDARD_1")
        except ValueError as error:
            print(error)
            sys.exit(5)
    """)
    )
    assert job.wait() == 5, job.output
    assert "this process already trains on 1 chief, 2 workers, 1 ps" in job.output
    assert job.left(within=10) == {}


def test_without_any_description_the_program_trains_in_this_process(start, script):
    job = start(script(TRAINS.format(argument="")))
    assert job.wait() == 0, job.output
    assert "trained 4 steps as _DefaultDistributionStrategy" in job.output


def test_flags_of_an_absl_program_start_the_cluster(start, script, small_cluster):
    job = start(
        script("""
            from absl import app, flags
            import tfdist
            tfdist.define_flags()
            flags.DEFINE_integer("my_flag", 0, "mine")
            def main(_):
                print(type(tfdist.strategy(flags.FLAGS)).__name__, flags.FLAGS.my_flag, flush=True)
            app.run(main)
        """),
        "--cluster=small.yaml",
        "--my_flag=3",
    )
    assert job.wait() == 0, job.output
    assert "ParameterServer 3" in job.output
    assert job.left(within=10) == {}


def test_a_cluster_on_other_machines_is_refused(start, script, tmp_path):
    (tmp_path / "far.json").write_text(json.dumps({"cluster": {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}}))
    job = start(script("import tfdist; tfdist.strategy('far.json')"))
    assert job.wait() == 1
    assert "is on b, another machine" in job.output


def test_flags_apply_to_the_cluster_of_tf_config(start, script):
    body = """
        from absl import app, flags
        import tfdist
        tfdist.define_flags()
        app.run(lambda _: tfdist.strategy(flags.FLAGS))
    """
    environment = configs(chief=1, worker=1, ps=1)["chief", 0]
    job = start(script(body), "--strategy=multi_worker_mirrored", environment=environment)
    assert job.wait() == 1
    assert "has nothing for ps tasks to do" in job.output
