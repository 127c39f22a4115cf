"""What a program drops does not stay in the memory of the other tasks. benchmarks/leaks.md has figures for more calls."""

import json

import pytest
from by_hand import configs

pytestmark = pytest.mark.cluster

PROGRAM = """
    import dataclasses, gc, pathlib, time
    import tfdist
    strategy = tfdist.strategy()
    import keras, numpy as np, tensorflow as tf

    def megabytes(task):
        pid = pathlib.Path(f"pid-{task}-0").read_text()
        lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
        status = dict(line.split(":", 1) for line in lines)
        return int(status["VmRSS"].split()[0]) / 1024, int(status["Threads"])

    def of_group(context):
        x = tf.random.uniform([1024, 1024])
        return tf.data.Dataset.from_tensors(0).repeat().map(lambda _: (x + 1, x + 2)).prefetch(4)

    usage = []
    for _ in range(9):
        with strategy.scope():
            model = keras.Sequential([keras.Input((1024,)), keras.layers.Dense(1024)])
            model.compile(keras.optimizers.SGD(1e-6, momentum=0.9), "mse")
        data = strategy.distribute_datasets_from_function(of_group)
        model.fit(data, steps_per_epoch=2, verbose=0)
        del model, data
        gc.collect()
        time.sleep(1)
        usage.append([megabytes("worker"), megabytes("ps")])
        print(usage[-1], flush=True)
    pathlib.Path("usage.json").write_text(json.dumps(usage))
"""


def test_models_and_datasets_that_are_gone_leave_nothing_on_worker_and_ps_of_hogwild(start, script, read_json):
    program = script(PROGRAM)
    environments = configs(chief=1, worker=1, ps=1)
    for environment in environments.values():
        config = json.loads(environment["TF_CONFIG"]) | {"tfdist": {"strategy": "hogwild", "sync_period": 2}}
        environment["TF_CONFIG"] = json.dumps(config)
    jobs = {task: start(program, environment=environment) for task, environment in environments.items()}
    assert jobs["chief", 0].wait(200) == 0, jobs["chief", 0].output
    usage = read_json("usage.json")
    (worker, worker_threads), (ps, _) = ([last - first for last, first in zip(*pair, strict=True)] for pair in zip(usage[-1], usage[3], strict=True))  # fmt: skip
    # Five models of 4 MiB, as much again for the momentum, and batches that are read ahead, at least 4 times 8 MiB.
    assert worker < 5 * 30 and ps < 5 * 4, usage
    assert worker_threads < 5 * 3, usage
