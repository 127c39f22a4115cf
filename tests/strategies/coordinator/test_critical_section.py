"""Tests that operations in a critical section do not mix with those of another function."""

import threading

import pytest

pytestmark = pytest.mark.cluster


def call_at_once(functions, times):
    """Calls each function of an integer so many times, all at once."""
    import tensorflow as tf

    def run(function):
        for _ in range(times):
            function(tf.constant(1))

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("independent", [False, True])
def test_no_update_in_a_critical_section_is_lost(independent):
    import tensorflow as tf

    from tfdist.strategies.coordinator.critical_section import critical_section

    variable = tf.Variable(0)

    def make():
        @tf.function(autograph=False)
        def add(value):
            with critical_section(f"test {independent}", "/device:CPU:0", [value], independent):
                before = variable.read_value()
                slow = tf.reduce_sum(tf.matmul(tf.fill([200, 200], tf.cast(before, tf.float32)), tf.zeros([200, 200])))
                variable.assign(before + value + tf.cast(slow, tf.int32))

        return add.get_concrete_function(tf.TensorSpec([], tf.int32))

    call_at_once([make() for _ in range(4)], 30)
    assert int(variable) == 120


def test_two_sections_of_one_function_run_in_order():
    import tensorflow as tf

    from tfdist.strategies.coordinator.critical_section import critical_section

    variable = tf.Variable(1)

    @tf.function(autograph=False)
    def update():
        with critical_section("test order", "/device:CPU:0", [tf.constant(0)]):
            variable.assign(variable.read_value() * 2)
        with critical_section("test order", "/device:CPU:0", [tf.constant(0)]):
            variable.assign(variable.read_value() + 3)

    for expected in (5, 13, 29):
        update()
        assert int(variable) == expected


def test_a_condition_ends_before_the_lock_is_released():
    """An optimizer of the user's own may update in one."""
    import tensorflow as tf

    from tfdist.strategies.coordinator.critical_section import critical_section

    variable = tf.Variable(0)

    def add():
        before = variable.read_value()
        slow = tf.reduce_sum(tf.matmul(tf.fill([200, 200], tf.cast(before, tf.float32)), tf.zeros([200, 200])))
        variable.assign(before + 1 + tf.cast(slow, tf.int32))
        return 0

    def make():
        @tf.function(autograph=False)
        def step(value):
            with critical_section("test condition", "/device:CPU:0", [value]):
                tf.cond(value > 0, add, lambda: 0)

        return step.get_concrete_function(tf.TensorSpec([], tf.int32))

    call_at_once([make() for _ in range(4)], 30)
    assert int(variable) == 120
