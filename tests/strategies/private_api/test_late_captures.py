"""What a function gets when it is called, such as the lookup table of a task, arrives in loops and conditions."""

import pytest
import tensorflow as tf

from tfdist.strategies.private_api import late_captures, patches

SCALAR = tf.TensorSpec([], tf.int64)


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    patch = patches.CAPTURE_AT_CALL
    monkeypatch.setattr(patch.owner, patch.name, patch.original)
    monkeypatch.setattr(patch, "_replacements", [])
    late_captures.install()


class Late:
    """A number that a function gets when it is called."""

    def __init__(self):
        self.number = 3

    def captured(self):
        graph = tf.compat.v1.get_default_graph()
        return graph.capture_call_time_value(lambda: tf.constant(self.number, tf.int64), SCALAR)


def in_while(late, x):
    return tf.while_loop(lambda x: x < late.captured() * 10, lambda x: (x + late.captured(),), (x,))[0]


def in_cond(late, x):
    return tf.cond(x < late.captured(), lambda: x + late.captured(), lambda: x - late.captured())


def in_function_in_cond_in_while(late, x):
    inner = tf.function(lambda x: in_cond(late, x))
    return tf.while_loop(lambda x: x < 2 * late.captured(), lambda x: (1 + tf.abs(inner(x)),), (x,))[0]


@pytest.mark.parametrize(
    ("body", "expected"), [(in_while, (30, 40)), (in_cond, (3, 4)), (in_function_in_cond_in_while, (6, 8))]
)
def test_a_value_at_call_arrives_in_loops_and_conditions(body, expected):
    late = Late()
    function = tf.function(lambda x: body(late, x))
    assert int(function(tf.constant(0, tf.int64))) == expected[0]
    late.number = 4  # Without another trace.
    assert int(function(tf.constant(0, tf.int64))) == expected[1]
    assert function.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("body", [in_while, in_cond, in_function_in_cond_in_while])
def test_a_dataset_maps_its_elements_with_it(body):
    late = Late()
    mapped = tf.data.Dataset.range(1).map(lambda x: body(late, x))
    assert list(mapped.as_numpy_iterator()) == [int(tf.function(lambda x: body(late, x))(tf.constant(0, tf.int64)))]


class OfGraph:
    """A value that depends on the function that captures it: the length of its name."""

    def __init__(self, graph):
        self.graph = graph

    def captured_by(self, graph):
        return OfGraph(graph)

    def __call__(self):
        return tf.constant(len(self.graph.name), tf.int64)


def test_a_function_that_calls_another_one_captures_its_own_value():
    key = object()

    @tf.function
    def inner():
        graph = tf.compat.v1.get_default_graph()
        return graph.capture_call_time_value(OfGraph(graph), SCALAR, key)

    @tf.function
    def a_longer_name():
        return inner()

    assert (int(inner()), int(a_longer_name())) == (len("inner"), len("a_longer_name"))
