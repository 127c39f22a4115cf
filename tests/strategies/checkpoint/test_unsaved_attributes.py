"""What Keras leaves out of its files is looked for once, not with each save."""

import h5py
import keras
import pytest
import tensorflow as tf

from tfdist.strategies.checkpoint import unsaved_attributes
from tfdist.strategies.private_api import file_patches, saving_lib


@pytest.fixture
def made(monkeypatch):
    """For each optimizer that was made, while nothing is known about attributes: whether in the scope of a strategy."""
    monkeypatch.setattr(saving_lib, "get_attr_skipset", file_patches.UNSAVED_ATTRIBUTES.original)
    monkeypatch.setattr(file_patches.UNSAVED_ATTRIBUTES, "_replacements", [])
    monkeypatch.setattr(unsaved_attributes, "_found", {})
    unsaved_attributes.install()
    made, make = [], keras.optimizers.Optimizer.__init__
    monkeypatch.setattr(
        keras.optimizers.Optimizer,
        "__init__",
        lambda self, *args, **more: (made.append(tf.distribute.has_strategy()), make(self, *args, **more))[1],
    )
    return made


def test_saves_make_one_optimizer_and_write_the_same_files(made, tmp_path):
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse", metrics=["mae"])
    model.optimizer.build(model.trainable_variables)
    made.clear()
    for number in range(3):
        with tf.distribute.OneDeviceStrategy("CPU:0").scope():
            model.save_weights(tmp_path / f"{number}.weights.h5")
    assert made == [False]
    first, *others = [sorted(_names(path)) for path in sorted(tmp_path.iterdir())]
    assert first == others[0] == others[1] and any("optimizer" in name for name in first)
    model.load_weights(tmp_path / "0.weights.h5")
    assert len(made) == 1


def _names(path):
    names = []
    with h5py.File(path) as file:
        file.visit(names.append)
    return names
