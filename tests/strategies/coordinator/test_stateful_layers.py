"""A layer that continues with each batch from the one before is refused by name where several workers compute batches."""

from types import SimpleNamespace

import keras
import pytest

from tfdist.strategies.coordinator.hooks import CoordinatorHooks


def check(groups, replicas):
    model = keras.Sequential([keras.Input((5, 3), batch_size=4), keras.layers.LSTM(2, stateful=True, name="memory")])
    model.compile("sgd", "mse")
    strategy = SimpleNamespace(worker_groups=[None] * groups, num_replicas_in_sync=replicas)
    CoordinatorHooks._check_model(SimpleNamespace(name="parameter_server", _strategy=strategy), model)


@pytest.mark.parametrize(
    ("groups", "replicas", "why"),
    [(2, 1, "2 worker groups compute batches"), (1, 2, "2 workers compute parts of a batch"), (2, 2, "2 worker groups")],
)
def test_several_workers_are_refused(groups, replicas, why):
    with pytest.raises(ValueError, match=f"layer memory is stateful: .* under parameter_server {why}"):
        check(groups, replicas)


def test_one_worker_keeps_the_state():
    check(1, 1)
