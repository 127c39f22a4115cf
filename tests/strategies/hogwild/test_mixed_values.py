"""Which variables are named in a warning because the groups would mix different examples in them."""

from types import SimpleNamespace

import pytest
import tensorflow as tf

from tfdist.strategies.hogwild.synchronization.mixed_values import warn_of_mixed, warn_of_mixed_parts
from tfdist.strategies.keras_hooks.replicas import replica_context, warned
from tfdist.strategies.keras_hooks.replicas.replica_context import Replica
from tfdist.strategies.named_variable import NamedVariable

VALUES = {
    "moving average": (lambda old, batch: 0.9 * old + 0.1 * tf.reduce_mean(batch), False),
    "count of examples": (lambda old, batch: old + tf.cast(tf.shape(batch)[0], tf.float32), False),
    "last mean": (lambda old, batch: tf.fill([4], tf.reduce_mean(batch)), False),
    "power iteration": (lambda old, batch: tf.math.l2_normalize(old), False),
    "queue": (lambda old, batch: tf.concat([batch, old], 0)[:4], True),
    "memory bank": (lambda old, batch: tf.tensor_scatter_nd_update(old, [[1], [2]], batch[:2]), True),
    "masked": (lambda old, batch: tf.where(batch[:4] > 0, batch[:4], old), True),
    "unless it is NaN": (lambda old, batch: tf.where(tf.math.is_nan(tf.reduce_mean(batch)), old, 0.9 * old), False),
    "largest value": (lambda old, batch: tf.maximum(old, tf.reduce_max(batch)), False),
    "centers": (lambda old, batch: old - 0.1 * tf.reduce_mean(old[None] - batch[:, None], 0), False),
    "limited average": (lambda old, batch: tf.clip_by_value(0.9 * old + 0.1 * tf.reduce_mean(batch), 0.0, 1.0), False),
}
"""Functions of the old value and the batch, and whether they are named."""


class Bank:
    """Stands for a `LocalVariable` of this many groups."""

    path, dtype, shape = "net/bank", tf.float32, tf.TensorShape([4])

    def __init__(self, groups=2):
        self.tfdist_strategy = SimpleNamespace(worker_groups=[None] * groups)
        self._named = NamedVariable("bank", tf.float32, [4], "/device:CPU:0")

    @property
    def handle(self):
        return self._named.handle()

    def value(self):
        return tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self.dtype)


def traced(step):
    """Traces a step that gets a batch, as a replica does."""

    def run(batch):
        with replica_context.entered(Replica(None, 0, None)) as replica:
            step(batch, replica)

    tf.function(run, autograph=False).get_concrete_function(tf.TensorSpec([None], tf.float32))


@pytest.fixture
def warnings(monkeypatch, caplog):
    monkeypatch.setattr(warned, "_given", set())
    return lambda: [record.args for record in caplog.records]


@pytest.mark.parametrize("in_loop", [False, True])
@pytest.mark.parametrize("name", VALUES)
def test_a_variable_that_holds_examples_is_named_once(warnings, name, in_loop):
    compute, is_named = VALUES[name]
    bank = Bank()

    def step(batch, replica):
        def body(number):
            for _ in range(2):
                warn_of_mixed(bank, compute(bank.value(), batch))
            return number + 1

        if in_loop:
            tf.while_loop(lambda number: number < 3, body, [tf.constant(0)])
        else:
            body(0)

    traced(step)
    assert warnings() == [("net/bank",)] * is_named


@pytest.mark.parametrize(("groups", "reduced"), [(1, False), (2, True)])
def test_a_single_group_mixes_nothing_and_an_optimizer_keeps_no_examples(warnings, groups, reduced):
    bank = Bank(groups)

    def step(batch, replica):
        replica.reduced = reduced
        warn_of_mixed(bank, VALUES["queue"][0](bank.value(), batch))
        warn_of_mixed_parts(bank, [[[0]], batch[:1]])

    traced(step)
    assert warnings() == []


@pytest.mark.parametrize("of_batch", [True, False])
def test_a_variable_is_named_if_a_part_of_it_gets_examples(warnings, of_batch):
    bank = Bank()
    traced(lambda batch, replica: warn_of_mixed_parts(bank, [[[0]], batch[:1] if of_batch else tf.zeros([1])]))
    assert warnings() == [("net/bank",)] * of_batch
