"""Updates in a branch whose condition depends on the batch are refused: other tasks may not take it, and would be waited for."""

import pytest
import tensorflow as tf

from tfdist.strategies.data_parallel.branches import check_updates


def checked(predicate, of_replica=(), nested=False):
    """Traces a step that updates in a branch, and checks it."""

    @tf.function(input_signature=[tf.TensorSpec([None])])
    def step(x):
        base, branches = tf.compat.v1.get_default_graph(), []

        def update():
            if nested and not branches:
                branches.append(None)
                return tf.cond(predicate(x), update, lambda: 0)
            branches.append(tf.compat.v1.get_default_graph())
            return 0

        tf.cond(tf.constant(True) if nested else predicate(x), update, lambda: 0)
        check_updates([each for each in branches if each is not None], base, of_replica)

    step.get_concrete_function()


@pytest.fixture
def count():
    return tf.Variable(0.0)


def test_a_number_of_steps_is_the_same_everywhere(count):
    def every_third(_):
        count.assign_add(1.0)
        return tf.equal(tf.math.floormod(count, 3.0), 0.0)

    checked(every_third)
    checked(every_third, nested=True)


@pytest.mark.parametrize("nested", [False, True])
def test_a_condition_on_the_batch_raises(nested):
    with pytest.raises(ValueError, match="whose condition depends on the batch"):
        checked(lambda x: tf.reduce_mean(x) > 1, nested=nested)


def test_so_does_one_on_what_the_step_has_assigned_of_the_batch(count):
    def average(x):
        count.assign(0.9 * count + 0.1 * tf.reduce_mean(x))
        return count > 1

    with pytest.raises(ValueError, match="whose condition depends on the batch"):
        checked(average)


def test_so_does_one_on_a_variable_of_which_each_replica_has_its_own_value(count):
    with pytest.raises(ValueError, match="whose condition depends on the batch"):
        checked(lambda x: count > 1, of_replica=[count.handle])


def test_so_does_one_on_random_numbers():
    with pytest.raises(ValueError, match="whose condition depends on the batch"):
        checked(lambda x: tf.random.uniform([]) > 0.5)


def looped(turns, count=None):
    """Traces a step that updates in a loop of `turns(x)` turns, and checks it."""

    @tf.function(input_signature=[tf.TensorSpec([None])])
    def step(x):
        base, bodies, limit = tf.compat.v1.get_default_graph(), [], turns(x)

        def body(done, total):
            bodies.append(tf.compat.v1.get_default_graph())
            if count is not None:
                count.assign_add(1.0)
            return done + 1.0, total + tf.reduce_sum(x)

        tf.while_loop(lambda done, _: done < limit, body, (0.0, 0.0))
        check_updates(bodies, base, [])

    step.get_concrete_function()


def test_loops_of_a_number_of_turns_that_is_the_same_everywhere(count):
    looped(lambda x: 2.0, count)
    looped(lambda x: count + 1.0)


def test_a_number_of_turns_that_depends_on_the_batch_raises():
    with pytest.raises(ValueError, match="a loop of TensorFlow, whose condition depends on the batch"):
        looped(lambda x: tf.reduce_sum(x))
    with pytest.raises(ValueError, match="whose condition depends on the batch"):
        looped(lambda x: tf.random.uniform([]))


def test_so_does_a_condition_on_what_the_turns_compute_of_the_batch():
    @tf.function(input_signature=[tf.TensorSpec([None])])
    def step(x):
        base, bodies = tf.compat.v1.get_default_graph(), []

        def body(done, loss):
            bodies.append(tf.compat.v1.get_default_graph())
            return done + 1.0, loss - tf.reduce_mean(x)

        tf.while_loop(lambda done, loss: loss > 0.1, body, (0.0, 1.0))
        check_updates(bodies, base, [])

    with pytest.raises(ValueError, match="whose condition depends on the batch"):
        step.get_concrete_function()
