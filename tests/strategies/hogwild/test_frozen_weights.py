"""Which frozen weights that a step assigns are named in a warning."""

from types import SimpleNamespace

import pytest

from tfdist.strategies.hogwild.replicas import frozen_weights
from tfdist.strategies.hogwild.replicas.frozen_weights import moved_by_outer_rates, warn_of_frozen
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
    monkeypatch.setattr(frozen_weights, "local_variables", lambda value: [value])
    trained, averaged = Block(rates), Block(AVERAGE)
    teacher, mean = SimpleNamespace(block=trained), SimpleNamespace(block=averaged)
    weights = {"teacher": teacher, "mean": mean, "student": SimpleNamespace(block=trained)}
    model = SimpleNamespace(weights=[SimpleNamespace(_value=value, path=f"net/{name}") for name, value in weights.items()])
    for _ in range(2):
        warn_of_frozen(model, {id(teacher), id(mean)}, moved_by_outer_rates([trained], optimizer))
    assert [record.args for record in caplog.records] == [("net/teacher",)] * warns
