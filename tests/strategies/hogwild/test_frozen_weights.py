"""Which frozen weights that a step assigns are named in a warning."""

from types import SimpleNamespace

import pytest
import tensorflow as tf

from tfdist.strategies.hogwild.replicas import frozen_weights
from tfdist.strategies.hogwild.replicas.frozen_weights import check_not_own, moved_by_outer_rates, warn_of_frozen
from tfdist.strategies.hogwild.replicas.momentum_buffers import AVERAGE
from tfdist.strategies.hogwild.synchronization.local_variable import Kind
from tfdist.strategies.hogwild.synchronization.outer_optimizers import Average, Nesterov, Sum


class Block:
    def __init__(self, rates):
        self.rates = rates


@pytest.mark.parametrize(
    ("optimizer", "rates", "warns"), [(Nesterov(2), (0.7, 0.5), True), (Average(), AVERAGE, False), (Sum(), AVERAGE, True)]
)
def test_a_frozen_weight_that_was_trained_before_is_named_if_outer_rates_move_it(monkeypatch, caplog, optimizer, rates, warns):
    monkeypatch.setattr(frozen_weights, "_warned", set())
    monkeypatch.setattr(frozen_weights, "local_variables", lambda value: [value])
    trained, averaged = Block(rates), Block(AVERAGE)
    teacher, mean = SimpleNamespace(block=trained), SimpleNamespace(block=averaged)
    weights = {"teacher": teacher, "mean": mean, "student": SimpleNamespace(block=trained)}
    model = SimpleNamespace(weights=[SimpleNamespace(_value=value, path=f"net/{name}") for name, value in weights.items()])
    for _ in range(2):
        warn_of_frozen(model, {id(teacher), id(mean)}, moved_by_outer_rates([trained], optimizer))
    assert [record.args for record in caplog.records] == [("net/teacher",)] * warns


def test_a_weight_that_a_step_of_another_model_has_assigned_is_named_when_its_own_begins_to_train(monkeypatch):
    """As the moving averages of a model that the loss of another one has called with training=True."""
    monkeypatch.setattr(frozen_weights, "local_variables", lambda value: [value])

    def weight(path, kind, dtype=tf.float32, block=None):
        return SimpleNamespace(path=path, _value=SimpleNamespace(kind=kind, dtype=dtype, block=block))

    fine = [weight("new", Kind.OWN), weight("kernel", Kind.SYNCHRONIZED, block=1), weight("count", Kind.OWN, tf.int32, block=1)]
    check_not_own(SimpleNamespace(name="judge", weights=fine))
    with pytest.raises(ValueError, match=r"judge/mean cannot be synchronized .* called judge with training=True"):
        check_not_own(SimpleNamespace(name="judge", weights=[*fine, weight("judge/mean", Kind.OWN, block=1)]))
