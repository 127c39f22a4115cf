"""What a program drops does not stay in the memory of the other tasks. benchmarks/leaks.md has figures for more calls."""

import itertools
import statistics

import pytest
from by_hand import configs

pytestmark = pytest.mark.cluster

PROGRAM = """
    import dataclasses, gc, pathlib, time
    import tfdist
    strategy = tfdist.strategy()
    import keras, numpy as np, tensorflow as tf

    def of_task(task):
        # Megabytes of memory, and threads.
        pid = pathlib.Path(f"pid-{task}-0").read_text()
        lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
        status = dict(line.split(":", 1) for line in lines)
        return int(status["VmRSS"].split()[0]) / 1024, int(status["Threads"])

    def of_group(context):
        x = tf.random.uniform([1024, 1024])
        return tf.data.Dataset.from_tensors(0).repeat().map(lambda _: (x + 1, x + 2)).prefetch(4)

    usage = {"new models": [], "new data": []}
    for case, models, datasets in (("new models", 13, 1), ("new data", 1, 16)):
        for _ in range(models):
            with strategy.scope():
                model = keras.Sequential([keras.Input((1024,)), keras.layers.Dense(1024)])
                model.compile(keras.optimizers.SGD(1e-6, momentum=0.9), "mse")
            for _ in range(datasets):
                data = strategy.distribute_datasets_from_function(of_group)
                model.fit(data, steps_per_epoch=2, verbose=0)
                if models > 1:
                    del model
                del data
                gc.collect()
                time.sleep(0.5)
                usage[case].append([of_task("worker"), of_task("ps")])
                print(case, usage[case][-1], flush=True)
    pathlib.Path("usage.json").write_text(json.dumps(usage))
"""


INTERRUPTED = """
    import dataclasses, gc, sys, weakref
    import tfdist
    cluster = dataclasses.replace(tfdist.read({"chief": 1, "worker": 2, "ps": 1}), strategy=sys.argv[1], sync_period=4)
    strategy = tfdist.strategy(cluster)
    import keras, numpy as np

    X, Y = np.ones((512, 8), "float32"), np.zeros((512, 1), "float32")

    class Interrupt(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 20:
                raise kind("in a callback")

    models, blocks = [], []
    for kind in (KeyboardInterrupt, ValueError, KeyboardInterrupt):
        with strategy.scope():
            model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(1)])
            model.compile(keras.optimizers.Adam(1e-3), "mse")
        for callbacks in ([], [Interrupt()], [], [Interrupt()]):  # Others train after an interrupted one.
            before = int(model.optimizer.iterations.numpy())
            try:
                model.fit(X, Y, batch_size=8, verbose=0, callbacks=callbacks)
                assert not callbacks
                assert int(model.optimizer.iterations.numpy()) == before + 64
            except kind:
                model.evaluate(X, Y, batch_size=8, verbose=0)
                assert before + 20 < int(model.optimizer.iterations.numpy()) < before + 64
        models.append(weakref.ref(model))
        blocks.append(len(strategy.local_replicas.blocks) if sys.argv[1] == "hogwild" else 0)
        try:
            model.fit(X, Y, batch_size=8, verbose=0, callbacks=[Interrupt()])
        except kind:
            pass
        del model
        keras.backend.clear_session()
        gc.collect()
    assert [model() is not None for model in models] == [False, False, True], models
    assert len(set(blocks)) == 1, blocks
    print("fine")
"""


CALLS = 9
"""The last calls that are compared: the first ones fill the heaps, the longer on a busy machine."""
OTHER_THREADS = 3
"""gRPC starts and ends threads of its own now and then: up to two were seen."""


def growth(usage):
    """Returns megabytes per call and threads in all by which each task grew in the last calls.

    The megabytes are a median: a call that meets more messages on the way than any before needs some megabytes once.
    """
    last = [list(task) for task in zip(*usage[-1 - CALLS :], strict=True)]
    of_calls = [[after[0] - before[0] for before, after in itertools.pairwise(task)] for task in last]
    return [(statistics.median(memory), task[-1][1] - task[0][1]) for memory, task in zip(of_calls, last, strict=True)]


@pytest.mark.release
def test_models_and_datasets_that_are_gone_leave_nothing_on_worker_and_ps_of_hogwild(start, script, read_json):
    program = script(PROGRAM)
    environments = configs({"strategy": "hogwild", "sync_period": 2}, chief=1, worker=1, ps=1)
    # Else glibc begins a heap of its own for each new thread, up to 8 per core, and keeps 30 to 40 MB in each.
    heaps = {"MALLOC_ARENA_MAX": "2"}
    jobs = {task: start(program, environment=variables | heaps) for task, variables in environments.items()}
    assert jobs["chief", 0].wait(200) == 0, jobs["chief", 0].output
    usage = read_json("usage.json")
    # A model of 4 MiB, as much again for the momentum, and batches that are read ahead, at least 4 times 8 MiB: a call that frees
    # nothing adds more than 40 MB to the worker and 8 MB to the ps.
    (worker, worker_threads), (ps, ps_threads) = growth(usage["new models"])
    # TensorFlow never releases the part on a worker of a function that has another part on a ps, with the thread that reads.
    assert 0 < worker_threads <= CALLS + OTHER_THREADS and ps_threads <= OTHER_THREADS, usage
    assert worker < 25 and ps < 5, usage
    (worker, worker_threads), (ps, ps_threads) = growth(usage["new data"])
    assert worker_threads <= OTHER_THREADS and ps_threads <= OTHER_THREADS, usage
    assert worker < 8 and ps < 1, usage


@pytest.mark.parametrize("strategy", ["hogwild", pytest.param("parameter_server", marks=pytest.mark.release)])
def test_a_model_whose_fit_was_interrupted_is_freed_when_the_next_one_trains(strategy, start, script):
    job = start(script(INTERRUPTED), strategy)
    assert job.wait(250) == 0 and "fine" in job.output, job.output[-3000:]
