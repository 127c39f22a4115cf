"""A callback that stops one of the tasks that train together stops all, and all after the same step."""

import threading
from types import SimpleNamespace

import pytest
import tensorflow as tf
from local_board import LocalBoard, same_calls_of

from tfdist.errors import DifferentCallsError
from tfdist.strategies.data_parallel import same_calls
from tfdist.strategies.data_parallel.hooks import DataParallelHooks
from tfdist.strategies.data_parallel.lost_tasks import TaskLostError
from tfdist.strategies.data_parallel.same_stop import SameStop
from tfdist.strategies.inputs.batch_shards import Layout
from tfdist.strategies.keras_hooks.task_requests import TaskRequests

NAMES = ["worker:0", "worker:1", "worker:2"]
EPOCHS, STEPS = 3, 4


def fits(stops, steps, monkeypatch):
    """Lets three tasks train, in threads, as Keras' `fit` does it.

    Args:
        stops: the name of a task -> the (epoch, batch) after which its callback stops it; batch None: at the end of the epoch.
        steps: what Keras knows of the number of steps; None before the first epoch is over.

    Returns:
        Name of the task -> the (epoch, batch) of each of its steps.
    """
    monkeypatch.setattr(same_calls, "EXECUTION_SECONDS", 0.02)
    board, barrier, made = LocalBoard(), threading.Barrier(len(NAMES), timeout=20), {name: [] for name in NAMES}
    requests = {name: TaskRequests() for name in NAMES}

    def fit(name):
        calls = same_calls_of(name, NAMES, board)
        callback, model = SameStop(calls, requests[name]), SimpleNamespace(stop_training=False)
        callback.set_model(model)
        callback.set_params({"epochs": EPOCHS, "steps": steps})
        callback.on_train_begin()
        for epoch in range(EPOCHS):
            for batch in range(STEPS):
                with calls.executing():
                    barrier.wait()
                    requests[name].total.assign(sum(each.own.numpy() for each in requests.values()))
                    barrier.wait()
                made[name].append((epoch, batch))
                model.stop_training = model.stop_training or stops.get(name) == (epoch, batch)
                callback.on_train_batch_end(batch)
                if model.stop_training:
                    break
            model.stop_training = model.stop_training or stops.get(name) == (epoch, None)
            callback.on_epoch_end(epoch)
            if model.stop_training:
                break
        calls.end()

    threads = [threading.Thread(target=fit, args=(name,)) for name in NAMES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return made


def test_a_loop_of_the_users_goes_on_with_a_model_that_was_never_fitted():
    """Its `CallbackList` gets this callback, too, and its model lacks `stop_training`."""
    calls = same_calls_of(NAMES[0], NAMES[:1], LocalBoard())
    callback, model = SameStop(calls, TaskRequests()), SimpleNamespace()
    callback.set_model(model)
    callback.set_params({"epochs": 2, "steps": STEPS})
    callback.on_train_begin()
    callback.on_train_batch_end(0)
    callback.on_epoch_end(0)
    calls.end()
    assert not model.stop_training


ALL = [(epoch, batch) for epoch in range(EPOCHS) for batch in range(STEPS)]


@pytest.mark.parametrize("steps", [STEPS, None])
@pytest.mark.parametrize(
    ("stops", "last"),
    [
        (dict.fromkeys(NAMES, (1, 1)), (1, 1)),  # As one process: no step more.
        ({"worker:1": (1, 1)}, (1, 2)),
        ({"worker:0": (1, 1)}, (1, 2)),
        ({"worker:0": (1, 1), "worker:2": (1, 1)}, (1, 2)),
        ({"worker:2": (1, 3)}, (1, 3)),  # The last step of the epoch.
        ({"worker:1": (1, None)}, (1, 3)),
        ({"worker:0": (0, 1), "worker:1": (0, 2)}, (0, 2)),
        ({}, (2, 3)),
    ],
)
def test_all_tasks_stop_after_the_same_step(stops, last, steps, monkeypatch, caplog):
    made = fits(stops, steps, monkeypatch)
    assert made == dict.fromkeys(NAMES, ALL[: ALL.index(last) + 1])
    alone = {name for name in stops if len(stops) < len(NAMES)}
    assert {name for name in NAMES if f"a callback stops the training in {name}, and not in all tasks" in caplog.text} <= alone
    assert bool(alone) == ("and not in all tasks" in caplog.text)


def test_it_runs_between_the_callbacks_of_the_user_and_those_that_save():
    user, saves = SimpleNamespace(), SimpleNamespace(tfdist_reads_batches=False)
    strategy = SimpleNamespace(extended=SimpleNamespace(mesh=None), calls=same_calls_of("worker:0", NAMES, LocalBoard()))
    listed = DataParallelHooks(strategy, Layout(3, range(1))).callbacks([user, saves])
    assert listed[::2] == [user, saves] and isinstance(listed[1], SameStop)
    strategy.calls = None  # One task.
    assert DataParallelHooks(strategy, Layout(2, range(2))).callbacks([user, saves]) == [user, saves]


def test_the_loss_of_a_task_is_named_instead_of_the_count():
    lost = TaskLostError(None, None, "worker:1 is gone")
    calls = same_calls_of("worker:0", NAMES[:2], LocalBoard(), watch=lambda name, may_end: lambda: lost)
    with pytest.raises(TaskLostError, match="worker:1 is gone"):
        calls.count(True)


@pytest.mark.parametrize("call", [lambda calls: calls.count(False), lambda calls: calls.agree({"call": "fit"})])
def test_the_loss_of_the_first_task_is_named_instead_of_what_tasks_tell_each_other(call):
    class Gone(LocalBoard):
        def take(self, name, seconds):
            raise DifferentCallsError("the first task has ended") from tf.errors.UnavailableError(None, None, "no answer")

    def explain(error):
        return TaskLostError(None, None, f"lost worker:0: {error.message}")

    calls = same_calls_of("worker:1", NAMES[:2], Gone(), explain=explain)
    with pytest.raises(TaskLostError, match="lost worker:0: no answer"):
        call(calls)
