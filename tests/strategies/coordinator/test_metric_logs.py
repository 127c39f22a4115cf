"""The sums over worker groups: each step counts once, whatever becomes of the worker that has made it."""

import contextlib
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.coordinator import metric_variables, sync_on_read_variable
from tfdist.strategies.coordinator.logs_format import LogsFormat
from tfdist.strategies.coordinator.members.membership import Membership
from tfdist.strategies.coordinator.metric_logs import MetricLogs
from tfdist.strategies.coordinator.sync_on_read_variable import SyncOnReadVariable
from tfdist.strategies.keras_hooks.replicas import replica_context
from tfdist.strategies.parameter_server import optimizer
from tfdist.strategies.parameter_server.variables import ServerVariable


def mean_of_losses():
    """Logs of one mean: a total and a count."""
    logs = MetricLogs(None)
    value = SimpleNamespace(numpy=lambda: np.zeros([2]))
    logs._variables, logs._size, logs._means = [SimpleNamespace(_value=value)], 2, [(0, 1)]
    logs._metric_logs._places, logs._are_metrics = {"loss": 0}, True
    logs.reset()
    logs.begin_steps()
    return logs


def add(logs, group, total, count, counting=(0, 0), order=0):
    execution = SimpleNamespace(group=group, counting=counting, order=order)
    [found] = logs.add(execution, np.array([[float(total), float(count)]]))
    return found


def test_what_a_worker_had_counted_stays_when_it_begins_with_zero_again():
    logs = mean_of_losses()
    add(logs, 0, 8, 8)
    add(logs, 1, 4, 8)
    assert logs._sum.tolist() == [12.0, 16.0]
    add(logs, 1, 8, 16)  # All that it has counted.
    assert logs._sum.tolist() == [16.0, 24.0]
    add(logs, 1, 6, 8, (1, 1))  # It was restarted.
    assert logs._sum.tolist() == [22.0, 32.0]
    add(logs, 0, 16, 16)
    add(logs, 1, 8, 16, (1, 1))
    assert logs._sum.tolist() == [32.0, 48.0]
    add(logs, 1, 2, 8, (1, 2))  # A call has failed, and is made again.
    assert logs._sum.tolist() == [34.0, 56.0]


def test_a_result_that_waits_for_its_backup_comes_after_later_ones_of_its_group_and_takes_nothing_away():
    logs = mean_of_losses()
    for group, order, total, count in ((0, 1, 8, 8), (1, 3, 12, 16), (1, 2, 4, 8), (0, 4, 16, 16)):
        found = add(logs, group, total, count, order=order)
    assert logs._sum.tolist() == [28.0, 32.0] and found == {"loss": 28 / 32}


def test_a_loss_that_was_infinite_once_stays_infinite_as_in_one_process():
    logs = mean_of_losses()
    found = [add(logs, *each) for each in ((0, 8, 8), (1, np.inf, 8), (1, np.inf, 16), (0, 16, 16))]
    assert found == [{"loss": 1.0}] + [{"loss": np.inf}] * 3
    assert logs._sum.tolist() == [np.inf, 32.0]
    logs.note_read(logs.logs)
    logs.begin_anew()
    assert logs._sum.tolist() == [0.0, 0.0]


def test_after_the_reset_of_an_infinite_loss_the_steps_made_before_it_do_not_count(caplog):
    """Each row has all that its group has counted, and of what is infinite nothing can be subtracted."""
    logs = mean_of_losses()
    first, unread = add(logs, 0, np.inf, 8), add(logs, 0, np.inf, 16)
    logs.note_read(first)
    logs.begin_anew()
    assert "leave out the 1 steps that workers had made before" in caplog.text
    assert (unread, logs._sum.tolist()) == ({"loss": np.inf}, [0.0, 0.0])
    logs.note_read(unread)
    logs.begin_steps()
    assert add(logs, 0, 4, 8) == {"loss": 0.5} and add(logs, 1, 12, 8) == {"loss": 1.0}


@pytest.mark.parametrize(("nested", "found"), [(2.0, [1.0, 2.5]), (np.inf, [np.inf, np.inf])])
def test_steps_that_keras_has_not_read_count_beside_those_of_a_fit_in_a_callback(nested, found):
    logs = mean_of_losses()
    logs._variables = [Counter(), Counter()]
    read, unread = add(logs, 0, 100, 8), add(logs, 1, 12, 8)
    logs.note_read(read)
    logs.pause()
    logs.begin_steps()
    logs.note_read(add(logs, 0, nested, 6))
    logs.go_on()
    assert [unread["loss"], logs.logs["loss"], logs._read.sums[0]] == [found[0], found[0], nested]
    logs.begin_steps()  # Groups begin with zero.
    assert add(logs, 0, 41, 8) == {"loss": found[1]}
    logs.go_on()  # There is none.


@pytest.mark.parametrize(("is_sent", "after"), [(True, [1.0, 2.0]), (False, [3.0, 4.0])])
def test_the_steps_of_a_call_that_has_failed_count_once(monkeypatch, is_sent, after):
    """A call fails after its steps where a ps is lost. If steps do not send the metrics, what was counted before has to stay."""
    membership = Membership([SimpleNamespace(number=0, tasks=(0,))])
    monkeypatch.setattr(sync_on_read_variable, "dispatch_context", lambda: SimpleNamespace(worker_index=0))
    monkeypatch.setattr(sync_on_read_variable, "remote_value", lambda copy: copy)
    monkeypatch.setattr(sync_on_read_variable.chief_device, "constant", tf.constant)
    copy = tf.Variable(0.0)
    copy_of_group = SimpleNamespace(assign=copy.assign, shape=copy.shape, dtype=copy.dtype, handle=copy.handle)
    variable = SyncOnReadVariable.__new__(SyncOnReadVariable)
    variable.__dict__.update(_membership=membership, _by_replica={0: [copy_of_group]}, _version=0, _versions={}, _counting={})
    variable.__dict__.update(is_sent=is_sent, _coordinator_instance=SimpleNamespace(handle=tf.constant(0.0)))
    find, _ = variable._copy_at_call_time(0)

    def step():
        find()  # As each call does before it runs.
        copy.assign_add(1.0)

    step()
    assert membership.counting(0) == (0, 0)
    step()
    membership.fail(0)
    found = []
    for _ in range(2):
        step()
        found.append(float(copy))
    assert (found, membership.counting(0), membership.is_live(0)) == (after, (0, 1), False)


class Counter:
    """A variable of a metric, with what Keras' has."""

    def __init__(self, path="total"):
        self.shape, self.synchronization, self.path = tf.TensorShape([]), "on_read", path
        self._value = SyncOnReadVariable.__new__(SyncOnReadVariable)
        self._value.forget_sum()
        self._value.__dict__.update(_dtype=tf.float32, _version=0, _coordinator_instance=tf.Variable(0.0), _by_replica={})


def test_a_callback_reads_the_metrics_of_the_steps_that_are_done():
    """Others are in flight: a copy on a worker may have their total, and not yet their count."""
    total, count = Counter(), Counter()
    logs = MetricLogs(SimpleNamespace(metrics=[SimpleNamespace(variables=[total, count])], name="net"))
    logs._variables, logs._size, logs._means = [total, count], 2, [(0, 1)]
    logs._metric_logs._places = {"loss": 0}
    for epoch in (1.0, 2.0):
        logs.reset()
        logs.begin_steps()
        for group in (0, 1):
            logs.begin_steps()
            [result] = logs.add(SimpleNamespace(group=group, counting=(0, 0), order=0), np.array([[8.0 * epoch, 8.0]]))
            assert [float(each._value.value()) for each in (total, count)] == [8.0 * epoch * (group + 1), 8.0 * (group + 1)]
            assert result["loss"] == epoch


def test_a_metric_that_does_not_start_from_zero_is_named_once(caplog):
    """Workers begin their copies with 0, as the copies are added up."""
    logs = mean_of_losses()
    logs._variables = [Counter(), Counter("most/value")]
    logs.begin_steps()
    assert not caplog.text
    for _ in range(2):
        logs.reset()
        logs._variables[1]._value.assign(-1e9)
        logs.begin_steps()
    assert caplog.text.count("the metric variable most/value is not 0 when an epoch begins") == 1


def test_a_callback_may_reset_one_metric_within_an_epoch():
    total, count, other = Counter(), Counter(), Counter()
    in_flight = [(1, [8.0, 16.0, 10.0])]  # The rows of steps that nobody has added yet.

    def finish():
        while in_flight:
            add(*in_flight.pop())

    hooks = SimpleNamespace(count_steps=finish)
    metrics = [SimpleNamespace(variables=[total, count]), SimpleNamespace(variables=[other])]
    logs = MetricLogs(SimpleNamespace(metrics=metrics, name="net", distribute_strategy=SimpleNamespace(tfdist_hooks=hooks)))
    logs._variables, logs._size, logs._means = [total, count, other], 3, [(0, 1)]
    logs._metric_logs._places = {"loss": 0}

    def add(group, row):
        [result] = logs.add(SimpleNamespace(group=group, counting=(0, 0), order=0), np.array([row]))
        return result

    def seen(result):
        logs.note_read(result)
        return result["loss"], [float(each._value.value()) for each in (total, count, other)]

    logs.reset()
    logs.begin_steps()
    seen(add(0, [8.0, 8.0, 5.0]))
    assert seen(add(1, [4.0, 8.0, 5.0])) == (0.75, [12.0, 16.0, 10.0])
    before = add(0, [14.0, 16.0, 10.0])  # Its logs come after the reset, as those of the steps in flight.
    for each in (total, count):
        each._value.assign(0.0)  # Groups begin with zero at their next steps.
    assert [float(each._value.value()) for each in (total, count, other)] == [0.0, 0.0, 10.0]
    assert seen(before) == (0.75, [6.0, 8.0, 15.0])
    assert seen(logs.logs) == (0.625, [10.0, 16.0, 20.0])
    assert seen(add(1, [2.0, 8.0, 15.0])) == (0.5, [12.0, 24.0, 25.0])
    logs.begin_anew()
    assert seen(add(1, [2.0, 8.0, 5.0])) == (0.25, [2.0, 8.0, 5.0])
    logs.publish_sums()
    total._value.assign(3.0)  # The epoch is over.
    total._value._by_replica = {}
    assert [float(each._value.value()) for each in (total, count)] == [3.0, 8.0]


def test_an_evaluation_that_a_callback_stops_has_the_steps_that_it_has_seen():
    logs, total, count = mean_of_losses(), Counter(), Counter()
    logs._variables = [total, count]
    seen = add(logs, 0, 8, 8)
    logs.note_read(seen)
    add(logs, 1, 4, 8)
    logs.publish_sums(seen)
    assert logs.logs == {"loss": 1.0} and [float(each._value.value()) for each in (total, count)] == [8.0, 8.0]


def test_an_epoch_without_a_step_left_has_the_sums_of_the_steps_before_the_restart():
    total, count = Counter(), Counter()
    metrics = [SimpleNamespace(variables=[total, count])]
    model = SimpleNamespace(metrics=metrics, metrics_variables=[total, count], _flatten_layers=list, name="net")
    logs = MetricLogs(model)  # Of a new process: nothing is traced.
    logs.reset()
    assert logs.set_values(model, [np.array([12.0, 16.0])])
    assert [float(each._value.value()) for each in (total, count)] == [12.0, 16.0]
    logs.publish_sums()
    assert [float(each._value.value()) for each in (total, count)] == [12.0, 16.0]
    assert not logs.set_values(model, [np.array([12.0])])


def test_values_of_other_variables_than_a_metric_has_are_named_and_not_taken(caplog):
    model = SimpleNamespace(metrics=[], metrics_variables=[], name="net")
    assert not MetricLogs(model).set_values(model, [np.zeros([0]), np.float32(1)])
    assert "the metrics of this epoch of net count only what follows the restart" in caplog.text


def test_logs_in_a_dict_of_one_number_keep_their_names():
    """A `train_step` that returns `{metric.name: metric.result()}` of a model with one metric of `compile` has such logs."""
    logs, form = {"loss": 1.0, "compile_metrics": {"mae": 2.0}}, LogsFormat()
    vector = tf.function(lambda: form.flatten(logs))()
    assert form.unflatten(vector.numpy()[None]) == [logs]


@pytest.mark.parametrize(
    ("share", "groups", "method", "is_refused"),
    [(0.5, 1, "assign_add", True), (None, 2, "assign", True), (None, 2, "assign_add", False), (None, 1, "assign", False)],
)
def test_a_metric_that_counts_in_a_variable_that_all_workers_share_is_refused_by_name(share, groups, method, is_refused):
    count = keras.Variable(0.0, name="own")
    count._value = ServerVariable(count._value)
    replica = replica_context.Replica(SimpleNamespace(worker_groups=[None] * groups), 0, share)
    with replica_context.entered(replica):
        if method == "assign":
            replica.assigned[id(count)] = count  # As keras_hooks/variables.py notes it.
        else:  # What groups of one replica add is right.
            optimizer._IN_PLACE[method](None, count, 1.0)
        metric = SimpleNamespace(name="seen", variables=[count])
        logs = MetricLogs(SimpleNamespace(metrics=[metric], _flatten_layers=list))
        refused = pytest.raises(ValueError, match=r"the metric seen counts in own, .* create it with self\.add_variable")
        with refused if is_refused else contextlib.nullcontext():
            logs._check_shared_variables()


@pytest.mark.parametrize(("groups", "warnings"), [(1, 0), (2, 1)])
def test_metrics_that_are_too_large_to_be_sent_are_named_if_there_are_several_groups(caplog, monkeypatch, groups, warnings):
    monkeypatch.setattr(metric_variables, "SyncOnReadVariable", object)
    metric = SimpleNamespace(variables=[SimpleNamespace(_value=None, shape=tf.TensorShape([300, 300]))])
    strategy = SimpleNamespace(worker_groups=[None] * groups)
    model = SimpleNamespace(name="large", metrics=[metric], distribute_strategy=strategy, metrics_variables=metric.variables)
    model._flatten_layers = list
    with caplog.at_level("WARNING", logger="tfdist"):
        assert metric_variables.to_send(model) == metric_variables.to_send(model) == ([], [])
    assert caplog.text.count("the metrics of large hold more than 65536 numbers") == warnings


@pytest.mark.parametrize(("groups", "share", "warnings"), [(1, None, 0), (1, 0.5, 1), (2, None, 1)])
def test_unlisted_metrics_that_are_too_large_to_be_sent_are_named_if_there_are_several_workers(
    caplog, monkeypatch, groups, share, warnings
):
    monkeypatch.setattr(metric_variables, "SyncOnReadVariable", object)
    listed, large = (SimpleNamespace(_value=None, path=name, shape=tf.TensorShape([size]))
                     for name, size in (("loss/total", 1), ("confusion/counts", 90_000)))  # fmt: skip
    metric, strategy = SimpleNamespace(variables=[listed]), SimpleNamespace(worker_groups=[None] * groups)
    model = SimpleNamespace(name="large", metrics=[metric], distribute_strategy=strategy, metrics_variables=[listed])
    model._flatten_layers = list
    replica = replica_context.Replica(strategy, 0, share)
    replica.assigned[id(large)] = large
    with replica_context.entered(replica), caplog.at_level("WARNING", logger="tfdist"):
        assert metric_variables.to_send(model) == metric_variables.to_send(model) == ([listed], [])
    assert caplog.text.count("lacks (confusion/counts, ...), hold more than 65536 numbers") == warnings


def test_a_step_that_returns_nothing_has_no_logs():
    logs = MetricLogs(SimpleNamespace(metrics=[], metrics_variables=[], _flatten_layers=list, get_metrics_result=dict))

    @tf.function(autograph=False)
    def step():
        return logs.of_replica(None, None)

    rows = step().numpy()[None]
    assert logs.add(SimpleNamespace(group=0, counting=(0, 0), order=0), rows) == [{}]
