"""What Keras gets at the end of an epoch, and what a backup gives the metrics back."""

import contextlib
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.partition import Partition
from tfdist.strategies.data_parallel import multi_worker_mirrored
from tfdist.strategies.data_parallel.hooks import DataParallelHooks
from tfdist.strategies.data_parallel.mirrored import Mirrored
from tfdist.strategies.data_parallel.training_loop import TrainingLoop
from tfdist.strategies.inputs.batch_shards import Layout
from tfdist.strategies.keras_hooks import calls, variables
from tfdist.strategies.keras_hooks.calls import Call
from tfdist.strategies.private_api import compute_output_spec


@pytest.fixture
def hooks():
    return DataParallelHooks(SimpleNamespace(extended=SimpleNamespace(mesh=None)), Layout(2, range(2)))


def test_an_epoch_without_a_step_does_not_repeat_the_logs_of_the_one_before(hooks, monkeypatch):
    monkeypatch.setattr(calls, "_running", [Call("fit", "0 to 3")])
    logs, others = {"loss": 1.0}, {"loss": 1.0}
    assert hooks.end_epoch(None, logs) is logs
    with monkeypatch.context() as context:
        context.setattr(calls, "_running", [Call("fit", "0 to 3"), Call("evaluate")])
        assert hooks.end_epoch(None, others) is others  # The validation.
    assert hooks.end_epoch(None, logs) == {}
    assert hooks.end_epoch(None, others) is others


def test_reads_of_metrics_on_symbolic_tensors_trace_no_collective():
    kind = multi_worker_mirrored._Extended
    extended = kind.__new__(kind)  # It has no other tasks to reduce anything with.
    extended._local_results = tf.nest.flatten
    total = compute_output_spec(
        lambda own: extended._reduce_to(tf.distribute.ReduceOp.SUM, (own,), None, None), keras.KerasTensor((), "float32")
    )
    assert (total.shape, total.dtype) == ((), "float32")


def test_a_step_that_returns_nothing_does_not_end_the_epoch(monkeypatch):
    loop = TrainingLoop.__new__(TrainingLoop)
    monkeypatch.setattr(loop, "_model", SimpleNamespace(steps_per_execution=1), raising=False)
    monkeypatch.setattr(loop, "_one_step", lambda iterator: next(iterator))
    batches = iter([None, None])
    assert [loop(batches), loop(batches)] == [{}, {}]
    with pytest.raises(StopIteration):
        loop(batches)


def test_a_backup_gets_all_metrics_in_one_collective_for_each_dtype_and_resets_need_none(monkeypatch):
    variables.install()
    strategy, reduced = Mirrored(["CPU:0"], Partition()), []
    with strategy.scope():
        metric = keras.metrics.Mean()
        shapes = {(2, 3): "float32", (): "int64", (4,): "int64"}
        others = [metric.add_variable(shape, "ones", dtype=dtype, name="own") for shape, dtype in shapes.items()]
        last = metric.add_variable((), keras.initializers.Constant(7.0), name="last", aggregation="only_first_replica")
    metric.update_state([3.0, 4.0])
    reduce = strategy.reduce
    monkeypatch.setattr(strategy, "reduce", lambda *args, **named: (reduced.append(1), reduce(*args, **named))[1])
    found = strategy.tfdist_hooks.metric_values(SimpleNamespace(metrics_variables=[*metric.variables]))
    expected = [7.0, 2.0, *map(np.ones, shapes), 7.0]
    assert len(metric.variables) == 2 + len(others) + 1 and metric.variables[-1] is last
    assert len(reduced) == 2 and all(map(np.array_equal, found, expected))
    assert [value.dtype for value in found] == [variable.dtype for variable in metric.variables]
    reduced.clear()
    keras.Metric.reset_state(metric)  # A Mean resets its own variables only.
    assert not reduced
    assert not any(np.any(variable.numpy()) for variable in metric.variables)


def test_metrics_that_have_no_variables_yet_are_named_and_count_from_the_restart_on(hooks, caplog):
    assert not hooks.set_metric_values(SimpleNamespace(metrics_variables=[], name="net"), [1.0])
    assert "the metrics of this epoch of net count only what follows the restart" in caplog.text


@pytest.mark.parametrize(("local", "policy", "is_known"), [(1, "OFF", False), (1, "DATA", True), (2, "OFF", True)])
def test_keras_does_not_end_an_epoch_of_data_that_each_task_reads_to_the_end(local, policy, is_known):
    """Batches are those of a replica then: there are more of them than the dataset has."""
    hooks = DataParallelHooks(SimpleNamespace(extended=SimpleNamespace(mesh=None)), Layout(2, range(local)))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy]
    data = hooks.prepared(tf.data.Dataset.range(6).batch(2).with_options(options))
    assert int(data.cardinality()) == (3 if is_known else tf.data.UNKNOWN_CARDINALITY)
    assert [batch.numpy().tolist() for batch in data] == [[0, 1], [2, 3], [4, 5]]
    assert data.options().experimental_distribute.auto_shard_policy.name == policy


def test_the_first_batch_that_predict_on_batch_gets_is_compared():
    noted = []
    first = SimpleNamespace(note=noted.append, compare=lambda: None)
    strategy = Mirrored(["CPU:0"], Partition())
    strategy.tfdist_hooks._calls = SimpleNamespace(first_batch=lambda: first, executing=contextlib.nullcontext)
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    predict = strategy.tfdist_hooks.predict_function(model)
    for number in (1.0, 2.0):  # As Keras calls it.
        predict([(np.full((3, 2), number, "float32"),)])
    ((batch,),) = noted
    assert batch.numpy().tolist() == [[1.0, 1.0]] * 3
