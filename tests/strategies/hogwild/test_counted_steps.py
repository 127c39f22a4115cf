"""Which variables are named in a warning because their value follows from the number of steps, of which each group makes a part."""

from types import SimpleNamespace

import pytest
import tensorflow as tf

from tfdist.strategies.hogwild.synchronization.counted_steps import warn_of_counted
from tfdist.strategies.keras_hooks.replicas import replica_context, warned
from tfdist.strategies.keras_hooks.replicas.replica_context import Replica
from tfdist.strategies.named_variable import NamedVariable

STEPS = {
    "count": ("assign_add", lambda old, other, batch: 1.0, True),
    "countdown": ("assign_sub", lambda old, other, batch: tf.constant(1.0), True),
    "assigned count": ("assign", lambda old, other, batch: old + 1.0, True),
    "schedule": ("assign", lambda old, other, batch: tf.minimum(1.0, 0.9 * old + 0.1), True),
    "flag": ("assign", lambda old, other, batch: 1.0, False),
    "moving average": ("assign", lambda old, other, batch: 0.9 * old + 0.1 * tf.reduce_mean(batch), False),
    "average of a norm": ("assign", lambda old, other, batch: 0.9 * old + 0.1 * other, False),
    "sum of the examples": ("assign_add", lambda old, other, batch: tf.reduce_sum(batch), False),
    "random walk": ("assign_add", lambda old, other, batch: tf.random.normal([]), False),
}
"""How a step assigns a variable, what, and whether it is named."""


class Number:
    """Stands for a `LocalVariable` of this many groups."""

    def __init__(self, groups=2, dtype=tf.float32, shape=(), aggregation="MEAN"):
        self.tfdist_strategy = SimpleNamespace(worker_groups=[None] * groups)
        self.path, self.dtype, self.shape = "net/number", dtype, tf.TensorShape(shape)
        self.aggregation = tf.VariableAggregation[aggregation]
        self._named = NamedVariable("number", dtype, list(shape), "/device:CPU:0")

    @property
    def handle(self):
        return self._named.handle()

    def value(self):
        return tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self.dtype)


@pytest.fixture
def warnings(monkeypatch, caplog):
    """A function that traces a step of a replica and returns the arguments of its warnings."""
    monkeypatch.setattr(warned, "_given", set())

    def warnings(step):
        def run(batch):
            with replica_context.entered(Replica(None, 0, None)) as replica:
                step(batch, replica)

        tf.function(run, autograph=False).get_concrete_function(tf.TensorSpec([None], tf.float32))
        return [record.args for record in caplog.records]

    return warnings


@pytest.mark.parametrize("is_conditional", [False, True])
@pytest.mark.parametrize("name", STEPS)
def test_a_number_that_follows_from_the_steps_is_named_once(warnings, name, is_conditional):
    method, compute, is_named = STEPS[name]
    number, norm = Number(), NamedVariable("norm", tf.float32, [], "/device:CPU:0")

    def step(batch, replica):
        other = tf.raw_ops.ReadVariableOp(resource=norm.handle(), dtype=tf.float32)

        def body():
            for _ in range(2):
                warn_of_counted(number, method, compute(number.value(), other, batch))
            return 0

        if is_conditional:
            tf.cond(tf.reduce_sum(batch) > 0, body, lambda: 0)
        else:
            body()

    assert warnings(step) == [("net/number", "the mean of the groups")] * is_named


@pytest.mark.parametrize(
    ("number", "of_optimizer"),
    [({"groups": 1}, False), ({"aggregation": "SUM"}, False), ({"shape": (2,)}, False), ({}, True)],
)
def test_others_are_not_named(warnings, number, of_optimizer):
    def step(batch, replica):
        replica.reduced = of_optimizer
        warn_of_counted(Number(**number), "assign_add", 1.0)

    assert warnings(step) == []


def test_of_an_integer_the_first_group_has_the_value(warnings):
    found = warnings(lambda batch, replica: warn_of_counted(Number(dtype=tf.int64), "assign_add", 1))
    assert found == [("net/number", "that of the first group")]
