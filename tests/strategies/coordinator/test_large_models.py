"""A step that is not tried out because its model is too large to be fetched is named, if it runs code of the user's."""

from types import SimpleNamespace

import keras
import pytest

from tfdist.strategies.coordinator import hooks


class Own(keras.layers.Layer):
    def call(self, x):
        return x


@pytest.mark.parametrize(("layer", "is_warned"), [(Own(), True), (keras.layers.ReLU(), False)])
def test_a_large_model_with_own_code_is_said_to_be_unchecked(layer, is_warned, monkeypatch, caplog):
    monkeypatch.setattr(hooks, "MOST_CHECKED_BYTES", 4)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), layer], name="large")
    model.compile("sgd", "mse")
    group = SimpleNamespace(_strategy=SimpleNamespace(num_replicas_in_sync=2))
    assert hooks.CoordinatorHooks._shard_check(group, model, model.train_step) is None
    assert is_warned == (
        "the training of large (Sequential) equals that in one process: its variables are too large" in caplog.text
    )
