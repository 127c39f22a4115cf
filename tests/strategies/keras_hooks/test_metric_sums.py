"""Replicas warn, once per metric, of a state that is no sum over the examples, and of no other."""

from types import SimpleNamespace

import keras
import pytest
import tensorflow as tf
from keras import ops

from tfdist.strategies.inputs.batch_shards import Layout
from tfdist.strategies.keras_hooks.checks import metric_sums
from tfdist.strategies.keras_hooks.replicas import replica_context

pytestmark = pytest.mark.usefixtures("hooked_variables")

SUMS = {
    "a sum": lambda v, x: v.assign_add(ops.sum(x)),
    "a difference": lambda v, x: v.assign(v - ops.max(x)),
    "two sums": lambda v, x: v.assign(ops.sum(x) + (ops.mean(x) + v)),
    "of some batches": lambda v, x: v.assign(ops.where(ops.max(x) > 1, v + 1, v)),
    "of another dtype": lambda v, x: v.assign(ops.cast(ops.cast(v, "float64") + 1, "float32")),
    "from the beginning": lambda v, x: (v.assign(ops.zeros(())), v.assign_add(ops.sum(x))),
    "in a branch": lambda v, x: v.assign(tf.cond(ops.max(x) > 1, lambda: ops.maximum(v, 1.0), lambda: v * 1)),
}
OTHERS = {
    "a maximum": lambda v, x: v.assign(ops.maximum(v, ops.max(x))),
    "a moving average": lambda v, x: v.assign(0.9 * v + 0.1 * ops.mean(x)),
    "the last value": lambda v, x: v.assign(ops.mean(x)),
    "a maximum of some batches": lambda v, x: v.assign(ops.where(ops.max(x) > 1, ops.max(x), v)),
}
KERAS = (
    keras.metrics.AUC,
    keras.metrics.BinaryIoU,
    keras.metrics.FBetaScore,
    keras.metrics.Precision,
    keras.metrics.R2Score,
    keras.metrics.RootMeanSquaredError,
    keras.metrics.SensitivityAtSpecificity,
)


class Own(keras.metrics.Metric):
    def __init__(self, update, name=None):
        super().__init__(name=name)
        self.update = update
        self.state = self.add_weight(name="state", initializer="zeros")

    def update_state(self, y, x, sample_weight=None):
        self.update(self.state, x)

    def result(self):
        return self.state


class OwnVariable(Own):
    """Makes its variable without `add_weight`."""

    def __init__(self, update):
        super().__init__(update)
        self.state = keras.Variable(0.0)


def traced(metric, share):
    @tf.function(input_signature=[tf.TensorSpec([4, 2])] * 2)
    def step(y, x):
        with replica_context.entered(replica_context.Replica(tf.distribute.get_strategy(), 0, share)):
            metric.update_state(y, x)

    step.get_concrete_function()


@pytest.mark.parametrize("name", OTHERS)
def test_a_state_that_is_no_sum_is_named_once(name, caplog):
    metric = Own(OTHERS[name])
    for _ in range(2):
        traced(metric, tf.constant(0.5))
    assert caplog.text.count(f"the metric variable {metric.state.path} is assigned something else") == 1


@pytest.mark.parametrize(("aggregation", "warnings"), [("mean", 1), ("only_first_replica", 1), ("sum", 0)])
def test_a_state_that_replicas_do_not_add_up_is_named_once(aggregation, warnings, caplog):
    variable = keras.metrics.Metric(name="steps").add_variable((), "zeros", aggregation=aggregation, name="count")
    strategies = [SimpleNamespace(tfdist_hooks=SimpleNamespace(layout=Layout(1, range(1)))), SimpleNamespace(tfdist_hooks=None)]
    for strategy in (*strategies, *strategies):
        metric_sums.check(replica_context.Replica(strategy, 0, tf.constant(0.5)), variable, tf.constant(1.0))
    expected = f'the metric variable steps/count has aggregation="{aggregation}": what the replicas count is not added up'
    assert caplog.text.count(expected) == caplog.text.count("aggregation=") == warnings


def test_so_is_that_of_a_second_metric_of_the_same_name(caplog):
    for _ in range(2):
        traced(Own(OTHERS["a maximum"], name="highest"), tf.constant(0.5))
    assert caplog.text.count("the metric variable highest/state is assigned something else") == 2


def test_a_variable_of_the_users_own_is_named_once_the_replicas_add_it_up(caplog):
    metrics = [OwnVariable(OTHERS["a maximum"]) for _ in range(2)]
    metric_sums.note(metrics[1].variables)
    for metric in metrics:
        traced(metric, tf.constant(0.5))
    assert [f"variable {metric.state.path} is assigned" in caplog.text for metric in metrics] == [False, True]


@pytest.mark.parametrize("name", SUMS)
def test_what_may_be_a_sum_is_not_named(name, caplog):
    traced(Own(SUMS[name]), tf.constant(0.5))
    assert not caplog.text


@pytest.mark.parametrize("kind", KERAS)
def test_metrics_of_keras_are_not_named(kind, caplog):
    arguments = {"SensitivityAtSpecificity": (0.5,), "BinaryIoU": ([0, 1],)}
    traced(kind(*arguments.get(kind.__name__, ())), tf.constant(0.5))
    assert not caplog.text


def test_one_replica_alone_may_keep_anything(caplog):
    traced(Own(OTHERS["a maximum"]), None)
    assert not caplog.text
