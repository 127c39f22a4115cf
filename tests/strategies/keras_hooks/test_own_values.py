"""Which variables a step gives each replica a value of its own: what follows from variables alone is the same everywhere."""

import keras
import pytest
import tensorflow as tf
from keras import ops

from tfdist.strategies.keras_hooks.replicas import own_values, replica_context

pytestmark = pytest.mark.usefixtures("hooked_variables")


class Kept:
    """What a step keeps."""

    def __init__(self):
        self.weight, self.average, self.other = (keras.Variable(1.0, name=name) for name in ("weight", "average", "other"))
        self.count = keras.Variable(0, dtype="int32", name="count")
        self.metric = keras.metrics.Sum()

    def follow(self, value):
        self.average.assign(0.9 * self.average + 0.1 * value)


def in_branch(condition, assign):
    return lambda kept, x: ops.cond(condition(kept, x), lambda: (assign(kept), 0)[1], lambda: 0)


def after_the_mean(kept, x):
    """An average of a weight from before the replicas take the mean of it."""
    kept.weight.assign(ops.mean(x))
    kept.follow(kept.weight)
    replica_context.current().averaged.add(id(kept.weight))


STEPS = {
    "an average of weights": (lambda kept, x: kept.follow(kept.weight), set()),
    "an average of examples": (lambda kept, x: kept.follow(ops.mean(x)), {"average"}),
    "an average of an average": (
        lambda kept, x: (kept.follow(ops.mean(x)), kept.other.assign(kept.average)),
        {"average", "other"},
    ),
    "an average of a weight that has the mean by now": (after_the_mean, {"average"}),
    "an average of a metric that tests update": (lambda kept, x: kept.follow(kept.metric.total), {"average"}),
    "a number of steps": (lambda kept, x: kept.count.assign(kept.count + 1), set()),
    "a number of batches, in a branch": (
        in_branch(lambda kept, x: ops.mean(x) > 0, lambda kept: kept.count.assign(kept.count + 1)),
        {"count"},
    ),
    "a constant, in a branch": (in_branch(lambda kept, x: ops.mean(x) > 0, lambda kept: kept.weight.assign(2.0)), {"weight"}),
    "a weight that a branch by variables computes": (
        lambda kept, x: kept.weight.assign(ops.cond(kept.weight > 0, lambda: kept.weight / ops.abs(kept.weight), lambda: 1.0)),
        set(),
    ),
    "what a branch reads of a metric": (
        lambda kept, x: kept.weight.assign(ops.cond(kept.count > 0, lambda: kept.metric.total * 1.0, lambda: 1.0)),
        {"weight"},
    ),
    "what a branch draws": (
        lambda kept, x: kept.weight.assign(ops.cond(kept.count > 0, lambda: keras.random.normal(()), lambda: 1.0)),
        {"weight"},
    ),
    "an average of weights, in a branch by a number of steps": (
        in_branch(lambda kept, x: kept.count > 3, lambda kept: kept.follow(kept.weight)),
        set(),
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_only_what_depends_on_the_batch_is_of_a_replica_alone(name):
    step, expected = STEPS[name]
    kept, found = Kept(), set()

    @tf.function(input_signature=[tf.TensorSpec([None, 4])], autograph=False)
    def of_replica(x):
        graph = tf.compat.v1.get_default_graph()
        handles = [variable.value.handle for variable in kept.metric.variables]
        state = replica_context.Replica(tf.distribute.get_strategy(), 0, tf.constant(0.5), graph=graph, own_handles=handles)
        with replica_context.entered(state) as replica:
            step(kept, x)
            found.update(variable.name for variable in own_values.kept(replica).values())

    of_replica.get_concrete_function()
    assert found == expected
