"""Tests how often a step reads variables from their ps, on variables of this process."""

import gc
import weakref

import pytest

pytestmark = pytest.mark.cluster


@pytest.fixture
def make():
    import numpy as np
    import tensorflow as tf

    from tfdist.strategies.parameter_server.variables import ServerVariable, ShardedVariable

    def variable(rows=300, shards=1, trainable=True):
        values = np.random.default_rng(0).normal(scale=0.05, size=(rows, 300)).astype("float32")
        parts = [ServerVariable(tf.Variable(part, trainable=trainable)) for part in np.split(values, shards)]
        return parts[0] if shards == 1 else ShardedVariable(parts, [rows * n // shards for n in range(shards + 1)], "whole:0")

    return variable


def trace(step, variables, argument, times=None):
    """Traces `step` as fit does, and returns the function and how often its graph and its loops and functions read."""
    import tensorflow as tf

    from tfdist.strategies.parameter_server import fused_reads

    def replica(x):
        with fused_reads.reading(variables):
            fused_reads.current().begin_replica(("/device:CPU:0",))
            return step(x)

    def several(x):
        return tf.while_loop(lambda number, _: number < times, lambda number, x: (number + 1, replica(x)), (0, x))[1]

    function = tf.function(replica if times is None else several, autograph=False).get_concrete_function(argument)
    definition = function.graph.as_graph_def()
    reads = sum(node.op == "ReadVariableOp" for node in definition.node)
    bodies = {each.signature.name: each for each in definition.library.function}
    inner = {name: sum(node.op == "ReadVariableOp" for node in each.node_def) for name, each in bodies.items()}
    return function, reads, {name: count for name, count in inner.items() if count}


def recurrence(x, kernel):
    import tensorflow as tf

    def turn(step, state):
        return step + 1, tf.tanh(tf.matmul(state, kernel) + kernel[0])

    return tf.while_loop(lambda step, state: step < 4, turn, (0, x))[1]


def loss_and_gradient(kernel, call=recurrence):
    import tensorflow as tf

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(call(x, kernel) ** 2) + tf.reduce_sum(kernel * kernel)
        return loss, tape.gradient(loss, kernel)

    return step


@pytest.mark.parametrize("shards", [1, 3])
def test_a_loop_reads_a_large_variable_once_outside(make, shards):
    import numpy as np
    import tensorflow as tf

    kernel, x = make(shards=shards), tf.ones([2, 300])
    function, reads, inside = trace(loss_and_gradient(kernel), [kernel] if shards == 1 else [], x)
    assert (reads, inside) == (shards, {})
    for got, expected in zip(function(x), loss_and_gradient(tf.Variable(kernel.numpy()))(x), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_a_function_inside_the_step_reads_once_outside_of_its_loops(make):
    import numpy as np
    import tensorflow as tf

    kernel, x = make(), tf.ones([2, 300])
    called = tf.function(recurrence, autograph=False)
    function, reads, inside = trace(loss_and_gradient(kernel, lambda x, _: called(x, kernel)), [], x)
    assert reads == 1 and not [name for name in inside if "while" in name]
    for got, expected in zip(function(x), loss_and_gradient(tf.Variable(kernel.numpy()))(x), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_a_gradient_of_shards_through_a_function_is_refused(make):
    import tensorflow as tf

    kernel = make(shards=3)
    called = tf.function(lambda x: tf.matmul(x, kernel), autograph=False)
    with pytest.raises(
        ValueError, match=r"whole:0 is sharded over 3 ps tasks, and a tf\.function .* open the tape inside of it"
    ):
        trace(loss_and_gradient(kernel, lambda x, _: called(x)), [], tf.ones([2, 300]))


def test_a_function_that_reads_shards_leaves_nothing_behind(make):
    import tensorflow as tf

    kernel = make(shards=3)
    graph = weakref.ref(tf.function(lambda: tf.reduce_sum(kernel.value()), autograph=False).get_concrete_function().graph)
    gc.collect()
    assert graph() is None


def test_a_variable_of_which_rows_are_looked_up_is_not_read_whole(make):
    import tensorflow as tf

    for table in (make(), make(shards=3)):
        _, reads, inside = trace(table.sparse_read, [table] if len(table.parts) == 1 else [], tf.constant([1, 200]))
        assert (reads, inside) == (0, {})


def test_a_branch_that_is_not_taken_reads_nothing(make):
    import tensorflow as tf

    kernel = make()
    _, reads, inside = trace(
        lambda x: tf.cond(x > 0, lambda: kernel.value() + kernel.value(), lambda: kernel * 0), [], tf.ones([])
    )
    assert reads == 0 and sorted(inside.values()) == [1, 1]


@pytest.mark.parametrize("rows", [1, 300])
def test_a_step_sees_what_it_has_assigned(make, rows):
    import tensorflow as tf

    plain, called, looped = make(rows), make(rows), make(rows, trainable=False)
    zero = tf.function(lambda: called.assign(tf.zeros_like(called)), autograph=False)
    zero()  # Traced before the step.

    def step(x):
        before = plain.value() + called.value() + looped.value()
        plain.assign(tf.zeros_like(plain))
        zero()

        def turn(step, total):
            total += looped.value()[0, 0]
            looped.assign_add(tf.ones_like(looped))
            return step + 1, total

        looped.assign(tf.zeros_like(looped))
        total = tf.while_loop(lambda step, _: step < 4, turn, (0, 0.0))[1]
        return before, plain.value(), called.value(), total

    function, *_ = trace(step, [plain, called, looped], tf.ones([]))
    before, first, second, total = function(tf.ones([]))
    assert float(abs(before).numpy().max()) > 0
    assert not first.numpy().any() and not second.numpy().any()
    assert float(total) == 0 + 1 + 2 + 3


def test_a_state_that_a_loop_reads_and_assigns_counts_each_turn(make):
    import tensorflow as tf

    state = make(1, trainable=False)
    state.assign(tf.zeros_like(state))

    def turn(step, total):
        total += state.value()[0, 0]
        state.assign_add(tf.ones_like(state))
        return step + 1, total

    def step(x):
        return tf.while_loop(lambda step, _: step < 4, turn, (0, x))[1]

    function, *_ = trace(step, [state], tf.zeros([]))
    assert float(function(tf.zeros([]))) == 0 + 1 + 2 + 3


@pytest.mark.parametrize("shards", [1, 3])
def test_each_of_several_steps_in_a_loop_sees_the_updates_of_those_before(make, shards):
    import numpy as np
    import tensorflow as tf

    def step_of(kernel):
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(recurrence(x, kernel) ** 2)
            kernel.assign_sub(10.0 * tape.gradient(loss, kernel))
            return x

        return step

    ours, x = make(shards=shards), tf.ones([2, 300])
    one = tf.Variable(ours.numpy())
    function, *_ = trace(step_of(ours), [ours] if shards == 1 else [], x, times=3)
    function(x)
    for _ in range(3):
        step_of(one)(x)
    np.testing.assert_allclose(ours.numpy(), one.numpy(), atol=1e-5)


def test_a_loop_that_updates_what_it_reads_is_refused(make):
    import tensorflow as tf

    kernel = make()

    def turn(step, total):
        total += kernel.value()[0, 0]
        kernel.assign_sub(tf.ones_like(kernel))
        return step + 1, total

    def step(x):
        return tf.while_loop(lambda step, _: step < 4, turn, (0, x))[1]

    with pytest.raises(RuntimeError, match="is assigned in a loop of the step that also uses its value"):
        trace(step, [kernel], tf.zeros([]))


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("write", ["assign", "scatter_update"])
def test_a_branch_reads_what_it_has_written_before(make, shards, write):
    """So is an optimizer inside of another one that leaves steps out, and one that accumulates gradients."""
    import tensorflow as tf

    kernel = make(1 if shards == 1 else 300, shards)
    ones = tf.ones([kernel.shape[0], 300])

    def branch():
        kernel.assign(ones) if write == "assign" else kernel.scatter_update(tf.IndexedSlices(ones, tf.range(kernel.shape[0])))
        return tf.reduce_sum(kernel.value()[0])

    step = lambda x: tf.cond(x > 0, branch, lambda: tf.constant(0.0))  # noqa: E731
    function, *_ = trace(step, [kernel] if shards == 1 else [], tf.ones([]))
    assert float(function(tf.ones([]))) == 300


def test_a_turn_of_a_loop_reads_what_it_has_added_to_shards_before(make):
    import tensorflow as tf

    state = make(shards=3, trainable=False)
    state.assign(tf.zeros(state.shape))

    def turn(step, total):
        state.assign_add(tf.ones(state.shape))
        return step + 1, total + state.value()[0, 0]

    function, *_ = trace(lambda x: tf.while_loop(lambda step, _: step < 4, turn, (0, x))[1], [], tf.zeros([]))
    assert float(function(tf.zeros([]))) == 1 + 2 + 3 + 4


def test_a_gradient_of_shards_that_a_branch_assigns_and_reads_is_refused(make):
    import tensorflow as tf

    kernel = make(shards=3)

    def branch():
        kernel.assign(tf.ones(kernel.shape))
        return tf.reduce_sum(kernel.value())

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.cond(x > 0, branch, lambda: tf.constant(0.0))
        return tape.gradient(loss, kernel)

    with pytest.raises(ValueError, match=r"whole:0 is sharded over 3 ps tasks, .* that also assigns it"):
        trace(step, [], tf.ones([]))


def test_an_update_that_needs_all_shards_reads_them_while_it_holds_the_lock(make):
    """Groups that read before it would lose each other's updates."""
    from concurrent.futures import ThreadPoolExecutor

    import tensorflow as tf

    from tfdist.strategies.coordinator.critical_section import critical_section
    from tfdist.strategies.parameter_server import fused_reads

    kernel = make(shards=3)
    kernel.assign(tf.zeros(kernel.shape))

    def step(x):
        with critical_section("tfdist_update", kernel.device, []), fused_reads.current().updating(kernel.device):
            kernel.assign(kernel.value() + 1)
        return x

    functions = [trace(step, [], tf.ones([]))[0] for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda function: [function(tf.ones([])) for _ in range(100)], functions))
    assert float(kernel.numpy()[0, 0]) == 200


@pytest.mark.parametrize("shards", [1, 3])
def test_a_function_with_a_gradient_of_its_own_knows_a_sharded_variable_as_one(make, shards):
    import numpy as np
    import tensorflow as tf

    kernel, x = make(shards=shards), tf.ones([2, 300])

    @tf.custom_gradient
    def doubled(x):
        def gradient(change, variables=None):
            return tf.matmul(change, kernel.value(), transpose_b=True), [2 * tf.matmul(x, change, transpose_a=True)]

        return tf.matmul(x, kernel.value()), gradient

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(doubled(x))
        return tape.gradient(loss, kernel)

    function, *_ = trace(step, [kernel] if shards == 1 else [], x)
    np.testing.assert_array_equal(function(x), np.full([300, 300], 4.0))
