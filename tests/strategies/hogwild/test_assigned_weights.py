"""Which variables that a step assigns are named in a warning."""

from types import SimpleNamespace

import pytest
import tensorflow as tf

from tfdist.strategies.hogwild.replicas import assigned_weights
from tfdist.strategies.hogwild.replicas.assigned_weights import moved_by_outer_rates, warn_of_assigned, warn_of_frozen
from tfdist.strategies.hogwild.replicas.momentum_buffers import AVERAGE
from tfdist.strategies.hogwild.synchronization.outer_optimizers import Average, Nesterov, Sum
from tfdist.strategies.keras_hooks.replicas import warned


class Block:
    def __init__(self, rates):
        self.rates = rates


@pytest.mark.parametrize(
    ("optimizer", "rates", "warns"), [(Nesterov(2), (0.7, 0.5), True), (Average(), AVERAGE, False), (Sum(), AVERAGE, True)]
)
def test_a_frozen_weight_that_was_trained_before_is_named_if_outer_rates_move_it(monkeypatch, caplog, optimizer, rates, warns):
    monkeypatch.setattr(warned, "_given", set())
    monkeypatch.setattr(assigned_weights, "local_variables", lambda value: [value])
    trained, averaged = Block(rates), Block(AVERAGE)
    teacher, mean = SimpleNamespace(block=trained), SimpleNamespace(block=averaged)
    weights = {"teacher": teacher, "mean": mean, "student": SimpleNamespace(block=trained)}
    model = SimpleNamespace(weights=[SimpleNamespace(_value=value, path=f"net/{name}") for name, value in weights.items()])
    for _ in range(2):
        warn_of_frozen(model, {id(teacher), id(mean)}, moved_by_outer_rates([trained], optimizer))
    assert [record.args for record in caplog.records] == [("net/teacher",)] * warns


@pytest.mark.parametrize(("groups", "warnings"), [(1, []), (2, ["rows is their mean", "steps is that of the first group"])])
def test_variables_that_add_up_over_replicas_are_named_if_there_are_several_groups(monkeypatch, caplog, groups, warnings):
    monkeypatch.setattr(warned, "_given", set())
    kinds = (("rows", tf.float32, "SUM"), ("steps", tf.int64, "SUM"), ("moving_mean", tf.float32, "MEAN"))
    assigned = {
        number: SimpleNamespace(path=name, dtype=dtype, aggregation=tf.VariableAggregation[aggregation])
        for number, (name, dtype, aggregation) in enumerate(kinds)
    }
    model = SimpleNamespace(weights=[], distribute_strategy=SimpleNamespace(worker_groups=[None] * groups))
    for _ in range(2):
        warn_of_assigned(model, assigned, (), [])
    assert [" is ".join(record.args) for record in caplog.records] == warnings
