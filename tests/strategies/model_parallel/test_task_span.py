"""What a task sends the others of its replica, with the other tasks stood in for."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.keras_hooks.replicas.replica_context import Replica, entered
from tfdist.strategies.model_parallel import task_span
from tfdist.strategies.model_parallel.task_span import TaskSpan


class Alike:
    """The collectives of two tasks of which the other one has the same values."""

    sums = 0

    def sum(self, value):
        self.sums += 1
        return value * 2

    def gather(self, value, timeout=0.0):
        return tf.concat([value, value], axis=0)

    def gather_by_number(self, value, number, timeout):
        raise tf.errors.DeadlineExceededError(None, None, "Collective has timed out during execution.")


@pytest.fixture
def ring():
    return Alike()


@pytest.fixture
def span(ring):
    found = TaskSpan(ring, position=1, tasks=2, meet=lambda variable, seconds: None)
    task_span.set_current(found)
    return found


def gradient_of(function, x, factors):
    with tf.GradientTape() as tape:
        tape.watch(x)
        result = tf.reduce_sum(function(x) * factors)
    return tape.gradient(result, x)


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_are_those_of_a_whole_tensor(span, compiled):
    wrap = tf.function if compiled else lambda function: function
    x, column = tf.constant([1.0, 1.0]), tf.constant([[1.0], [1.0]])
    assert wrap(lambda: gradient_of(span.enter, x, [1.0, 2.0]))().numpy().tolist() == [2.0, 4.0]  # The sum over the tasks.
    assert wrap(lambda: gradient_of(span.add, x, [1.0, 2.0]))().numpy().tolist() == [1.0, 2.0]
    for axis, factors in ((0, [[1.0], [2.0], [3.0], [4.0]]), (1, [[1.0, 3.0], [2.0, 4.0]])):  # Those of the own rows.
        gradient = wrap(lambda axis=axis, factors=factors: gradient_of(lambda x: span.gather(x, axis), column, factors))()
        assert gradient.numpy().tolist() == [[3.0], [4.0]]


@pytest.mark.parametrize("compiled", [False, True])
def test_the_gradient_of_a_whole_variable_is_that_of_the_own_part(span, ring, monkeypatch, compiled):
    monkeypatch.setattr(ring, "gather_by_number", lambda value, number, timeout: ring.gather(value), raising=False)
    wrap = tf.function if compiled else lambda function: function
    column = tf.constant([[1.0], [1.0]])
    gradient = wrap(lambda: gradient_of(lambda x: span.read(x, 1, 0, "kernel"), column, [[1.0, 3.0], [2.0, 4.0]]))()
    assert gradient.numpy().tolist() == [[3.0], [4.0]]


def test_one_tensor_that_enters_several_layers_needs_one_sum_of_its_gradient(span, ring):
    query, key, value = ([1.0, 2.0], [3.0, 4.0], [5.0, 6.0])

    @tf.function
    def gradient(x):
        return gradient_of(lambda x: span.enter(x) * query + span.enter(x) * key + span.enter(x), x, value)

    assert gradient(tf.constant([1.0, 1.0])).numpy().tolist() == [2 * 5 * 5, 2 * 7 * 6]
    assert ring.sums == 1


def test_each_tape_gets_the_gradients_of_what_entered_before_it_began(span):
    @tf.function
    def gradients(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            y = span.enter(x) * 1.0  # The inner tape and the later one do not know that it is computed from x.
            with tf.GradientTape() as inner:
                inner.watch(x)
                of_inner = inner.gradient(span.enter(x) * 3.0, x)
            total = y + span.enter(x) * of_inner
        with tf.GradientTape() as later:
            later.watch(x)
            z = span.enter(x) * 5.0
        return of_inner, outer.gradient(total, x), later.gradient(z, x)

    assert [float(each) for each in gradients(tf.constant(1.0))] == [6.0, 2.0 * (1.0 + 6.0), 10.0]


@pytest.mark.parametrize("taken", [True, False])
def test_what_entered_in_a_branch_is_not_used_outside_of_it(span, taken):
    @tf.function
    def gradient(x, taken):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.cond(taken, lambda: span.enter(x) + span.enter(x), lambda: x)
            result = y + span.enter(x)
        return tape.gradient(result, x)

    assert float(gradient(tf.constant(1.0), tf.constant(taken))) == (6.0 if taken else 3.0)


def test_loops_have_the_same_gradients(span):
    @tf.function
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            _, result = tf.while_loop(lambda n, _: n < 2, lambda n, value: (n + 1, span.add(value) * 3.0), (0, x))
        return tape.gradient(result, x)

    assert float(gradient(tf.constant(1.0))) == 9.0


@pytest.mark.parametrize("dtype", [tf.bool, tf.bfloat16, tf.int8, tf.float64])
def test_tensors_of_any_dtype_are_gathered(span, dtype):
    value = tf.cast([[0, 1], [1, 1]], dtype)
    for axis in (0, 1):
        whole = span.gather(value, axis)
        assert whole.dtype == dtype and np.all(whole == tf.concat([value, value], axis))


def test_rows_of_tasks_are_concatenated(span):
    values, numbers = span.concatenate([tf.ones((2, 3)), tf.constant([5, 6])])
    assert values.shape == (4, 3) and numbers.numpy().tolist() == [0, 0, 10, 12]


def test_a_read_that_other_tasks_do_not_join_says_so(span):
    with pytest.raises(
        RuntimeError, match="net/up/kernel is sharded over 2 tasks, and another task has not read it within 300 s"
    ):
        span.read(tf.ones((2, 2)), 1, 0, "net/up/kernel")


@pytest.mark.parametrize("operation", ["add", "gather", "gradient"])
def test_a_call_that_other_tasks_do_not_join_says_so_before_it_waits(ring, operation):
    def meet(what, seconds):
        raise RuntimeError(f"{what}, {seconds:.0f} s")

    span = TaskSpan(ring, position=1, tasks=2, meet=meet)
    task_span.set_current(span)
    calls = {
        "add": span.add,
        "gather": lambda x: span.gather(x, axis=1),
        "gradient": lambda x: gradient_of(span.enter, x, 2.0),
    }
    x = tf.ones((1, 4))
    with pytest.raises(RuntimeError, match=r"of shape \(.*\) that a call of the model computes, 300 s"):
        calls[operation](x)
    assert not ring.sums
    tf.function(calls[operation])(x)
    with entered(Replica(None, 0, None)):  # In a step the tasks are together.
        calls[operation](x)
