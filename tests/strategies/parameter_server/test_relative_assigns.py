"""The coefficient of a variable's old value in what a step assigns: only of a multiple of it plus something it is known."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.keras_hooks.replicas import replica_context, warned
from tfdist.strategies.parameter_server import relative_assigns
from tfdist.strategies.parameter_server.affine import Affine
from tfdist.strategies.parameter_server.relative_assigns import Change
from tfdist.strategies.parameter_server.variables import ServerVariable, ShardedVariable
from tfdist.strategies.variable_base import shard_scope


def coefficient_in(compute, around=lambda compute, old, x: compute(old, x)):
    """Returns the coefficient of `old` in `compute(old, x)`; `around` may call `compute` in a condition."""
    found = []

    @tf.function(autograph=False)
    def step(old, x):
        def note(old_there, x):
            result = compute(old_there, x)
            graphs = [tf.compat.v1.get_default_graph()]
            while graphs[-1] is not old.graph:
                graphs.append(graphs[-1].outer_graph)
            value = Affine([old], graphs, old.shape).of(result)
            found.append(value if value is None or isinstance(value, float) else "a tensor")
            return result

        around(note, old, x)

    step.get_concrete_function(tf.TensorSpec([3]), tf.TensorSpec([3]))
    return found[0]


@pytest.mark.parametrize(
    ("compute", "expected"),
    [
        (lambda old, x: old + 1, 1.0),
        (lambda old, x: old * 0.75 + x * 0.25, 0.75),
        (lambda old, x: old - (old - x) * 0.25, 0.75),
        (lambda old, x: tf.identity(x + old / 4), 0.25),
        (lambda old, x: tf.add_n([old, x, -old * 0.5]), 0.5),
        (lambda old, x: tf.cast(tf.cast(old, tf.float16) * 0.5, tf.float32), 0.5),
        (lambda old, x: tf.stop_gradient(old) * x[0] + 1, "a tensor"),
        (lambda old, x: x + tf.reduce_max(x), 0.0),
        (lambda old, x: tf.zeros_like(x), 0.0),
        (lambda old, x: tf.maximum(old, x), None),
        (lambda old, x: old * old, None),
        (lambda old, x: x / old, None),
        (lambda old, x: x + tf.reduce_sum(old), None),
        (lambda old, x: tf.cast(tf.cast(old, tf.int32) + 1, tf.float32), None),
    ],
)
def test_the_coefficient_of_the_old_value(compute, expected):
    assert coefficient_in(compute) == expected


def test_the_coefficient_is_found_in_a_branch_of_a_condition():
    branch = lambda compute, old, x: tf.cond(x[0] > 0, lambda: compute(old, x), lambda: x)  # noqa: E731
    assert coefficient_in(lambda old, x: old * 0.5 + x, branch) == 0.5


@pytest.mark.parametrize("coefficient", [1.0, 0.75, np.float32(0.75)])
def test_a_change_keeps_what_another_group_has_added(coefficient):
    variable = tf.Variable([4.0])
    change = Change(coefficient, tf.constant([2.0]))
    variable.assign_add([4.0])  # By another group, since the step has read 4.
    change.apply(variable)
    assert variable.numpy().tolist() == [8 * coefficient + 2]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_moving_average_may_have_any_dtype_of_floats(dtype):
    average = tf.Variable(tf.ones([2], dtype))
    tf.function(lambda: tf.identity(Change(0.5, tf.ones([2], dtype)).apply(average)), autograph=False)()
    assert average.numpy().tolist() == [1.5, 1.5]


def test_a_moving_average_that_is_sharded_changes_as_a_whole():
    # So it does for several replicas of a group, which share it.
    average = ShardedVariable(
        [ServerVariable(tf.Variable([1.0, 2.0])), ServerVariable(tf.Variable([3.0]))], [0, 2, 3], "average:0"
    )

    @tf.function(autograph=False)
    def step():
        Change(0.5, tf.ones([3])).apply(average)
        return tf.identity(average)

    assert step().numpy().tolist() == [1.5, 2.0, 2.5]


def test_each_row_of_a_sharded_variable_may_have_a_coefficient_of_its_own():
    table = ShardedVariable([ServerVariable(tf.Variable(tf.ones([rows, 2]))) for rows in (2, 1)], [0, 2, 3], "table:0")
    change = Change(np.array([[0.5], [1.0], [0.0]], "float32"), tf.ones([3, 2]))
    parts = [table.split(argument) for argument in change.for_shards(table)]
    for number in range(2):
        with shard_scope(number):
            change.apply(table, *(part[number] for part in parts))
    assert table.numpy().tolist() == [[1.5, 1.5], [2.0, 2.0], [1.0, 1.0]]


@pytest.mark.parametrize(
    ("factor", "expected"), [(2, 2.0), ([1, 0, 1], None), (lambda x: tf.cast(tf.reduce_sum(x) > 0, tf.int32), None)]
)
def test_integers_have_no_coefficient_but_a_number(factor, expected):
    found = []

    @tf.function(autograph=False)
    def step(old, x):
        value = old * (factor(x) if callable(factor) else tf.constant(factor)) + 1
        found.append(Affine([old], [old.graph], old.shape).of(value))

    step.get_concrete_function(tf.TensorSpec([3], tf.int32), tf.TensorSpec([3]))
    assert found == [expected]


def test_many_groups_at_the_same_time_keep_a_moving_average_stable():
    # All read the same value. The sum of 32 differences from it would overshoot: 32 * 0.1 is more than 2.
    variable = tf.Variable([0.0])
    for _ in range(50):
        changes = [Change(0.9, tf.constant([1.0]))] * 32
        for change in changes:
            change.apply(variable)
    assert variable.numpy()[0] == pytest.approx(10, rel=1e-3)


@pytest.mark.parametrize("coefficient", [0.5, np.float32(0.5)])  # One operation on the ps, and several with a lock.
def test_groups_change_a_moving_average_one_after_the_other(coefficient):
    # Large, so that the read of one group and the sum of another take long enough to mix.
    average = tf.Variable(tf.zeros([1_000_000]))

    @tf.function(autograph=False)
    def step():
        change = lambda: tf.identity(Change(coefficient, tf.ones([1_000_000])).apply(average)[0])  # noqa: E731
        change()  # Several in a step, as of a layer that is called twice.
        tf.cond(average[0] >= 0, change, lambda: 0.0)
        change()

    step()
    average.assign(tf.zeros_like(average))
    with ThreadPoolExecutor(4) as groups:
        for call in [groups.submit(step) for _ in range(4)]:
            call.result()
    assert set(average.numpy()) == {2 * (1 - 0.5**12)}


@pytest.mark.parametrize(
    ("changes", "groups", "warnings"),
    [
        (("add", "replace"), 2, 1),
        (("replace", "add", "add"), 2, 1),
        (("add", "add"), 2, 0),
        (("replace",), 2, 0),
        (("add", "replace"), 1, 0),
    ],
)
def test_a_sum_that_a_step_sets_back_is_warned_of_once(changes, groups, warnings, caplog, monkeypatch):
    monkeypatch.setattr(warned, "_given", set())
    strategy = SimpleNamespace(extended=SimpleNamespace(has_several_groups=groups > 1))
    variable = SimpleNamespace(name="gradients:0", tfdist_strategy=strategy)

    @tf.function(autograph=False)
    def step():
        with replica_context.entered(replica_context.Replica(strategy, 0, None)):
            for change in changes:
                relative_assigns.note_change(variable, change)

    step.get_concrete_function()
    assert caplog.text.count("a step adds to gradients:0 and also sets it to another value") == warnings
