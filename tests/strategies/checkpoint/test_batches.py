"""A training that continues within an epoch on a cluster of another size, by whose number of replicas the program chooses the
size of its batches.

The processes run here one after the other, with an exception in place of the kill.
"""

import random
import sys
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from backup_processes import Killed

from tfdist.strategies.checkpoint.batches import Batches
from tfdist.strategies.private_api import TFEpochIterator

pytestmark = pytest.mark.slow

X = np.ones((48, 1), "float32")
Y = 2.0 ** (np.arange(48, dtype="float32")[:, None] % 12)


class KillAt(keras.callbacks.Callback):
    """Raises in the second epoch."""

    def __init__(self, batch):
        super().__init__()
        self.at, self.epoch = batch, 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if (self.epoch, batch) == (1, self.at):
            raise Killed


class Seeds(keras.callbacks.Callback):
    """Sets a seed for each epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        random.seed(epoch)


class Pieces(keras.utils.PyDataset):
    def __init__(self, size):
        super().__init__()
        self.size = size

    def __len__(self):
        return len(X) // self.size

    def __getitem__(self, index):
        rows = slice(index * self.size, (index + 1) * self.size)
        return X[rows], Y[rows]


class Tensor(np.ndarray):
    def cpu(self):
        return self


class DataLoader:
    """Shuffles as that of PyTorch does, by a state of its own, which a new process begins anew."""

    batch_size, dataset = 4, X

    def __init__(self):
        self.state = np.array([7], np.uint8)
        data = SimpleNamespace(DataLoader=DataLoader)
        self.torch = SimpleNamespace(utils=SimpleNamespace(data=data), from_numpy=np.asarray)
        self.torch.get_rng_state, self.torch.set_rng_state = self.state.copy, lambda state: np.copyto(self.state, state)

    def __len__(self):
        return 12

    def __iter__(self):
        order = np.random.default_rng(self.state).permutation(48)
        self.state += 1
        for rows in order.reshape(12, 4):
            yield X[rows].view(Tensor), Y[rows].view(Tensor)


DataLoader.__module__ = "torch.utils.data"


class Targets(keras.metrics.Sum):
    def update_state(self, y_true, y_pred, sample_weight=None):
        del y_pred, sample_weight
        return super().update_state(y_true)


def of_unknown_length(size):
    shapes = (tf.TensorSpec((1,)), tf.TensorSpec((1,)))
    return {"x": tf.data.Dataset.from_generator(lambda: zip(X, Y, strict=True), output_signature=shapes).batch(size)}


DATA = {
    "arrays": lambda size: {"x": X, "y": Y, "batch_size": size},
    "dataset": lambda size: {"x": tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(48).batch(size).prefetch(1)},
    "unknown length": of_unknown_length,
    "PyDataset": lambda size: {"x": Pieces(size), "shuffle": False},
}


@pytest.fixture
def train(process):
    """`train(data, killed_at, callbacks)`: runs a program as a new process; returns its `History`, None if it was killed."""

    def program(data, killed_at, callbacks):
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)], name="net")
        model.compile("sgd", "mse", metrics=[Targets(name="targets")])
        return model.fit(**data, epochs=3, verbose=0, callbacks=[*callbacks, KillAt(killed_at)]).history["targets"]

    def run(data, killed_at=None, callbacks=()):
        return process(program, data, killed_at, callbacks, frequency=killed_at or "epoch")

    return run


@pytest.mark.parametrize(
    ("kind", "before", "now", "done", "words"),
    [
        ("arrays", 4, 8, 6, "its batches have 8 examples, and had 4 before the restart: the epoch continues after 3 of them"),
        ("dataset", 8, 4, 3, "its batches have 4 examples, and had 8 before the restart: the epoch continues after 6 of them"),
        (
            "unknown length",
            8,
            4,
            3,
            "its batches have 4 examples, and had 8 before the restart: the epoch continues after 6 of them",
        ),
        (
            "unknown length",
            4,
            8,
            6,
            "its batches have 8 examples, and had 4 before the restart: the epoch continues after 3 of them",
        ),
        (
            "PyDataset",
            4,
            8,
            6,
            "its epochs have 6 batches, and had 12 batches before the restart: this one continues after 3, so that",
        ),
    ],
)
def test_with_batches_of_another_size_an_epoch_goes_on_with_the_next_example(train, caplog, kind, before, now, done, words):
    assert train(DATA[kind](before), killed_at=done) is None
    assert train(DATA[kind](now)) == [Y.sum()] * 3
    assert f"fit 1 of net: {words}" in caplog.text


@pytest.mark.parametrize(
    ("before", "now", "done", "after", "words"),
    [
        (Batches(16, 12), Batches(24, 8), 5, 3, "after 3 of them, so that 8 of the examples that are done count twice"),
        (
            Batches(16, 12),
            Batches(16, 8),
            6,
            4,
            "its epochs have 8 batches of 16, and had 12 batches of 16 before the restart",
        ),  # Divided data.
        (
            Batches(8, 100),
            Batches(16, 100),
            40,
            40,
            "its epochs have 100 batches of 16, and had 100 batches of 8",
        ),  # steps_per_epoch.
        (Batches(10, 5), Batches(8, 6), 4, 5, "its batches have 8 examples, and had 10 before the restart"),  # 48 examples.
        (Batches(8, None), Batches(None, 12), 4, None, ""),  # A backup of an earlier version has neither.
        (Batches(8, 6), Batches(8, 6), 4, None, ""),
    ],
)
def test_where_an_epoch_goes_on_is_a_sentence(before, now, done, after, words):
    assert before.differ(now) == (after is not None)
    if after is not None:
        number, sentence = before.converted(done, now)
        assert number == after and words in sentence


def test_an_epoch_whose_order_follows_from_a_seed_of_a_callback_goes_on_in_that_order(train):
    assert train({"x": Pieces(4)}, killed_at=6, callbacks=[Seeds()]) is None
    assert train({"x": Pieces(4)}, callbacks=[Seeds()]) == [Y.sum()] * 3


def test_of_batches_that_begin_with_a_scalar_the_number_is_known():
    scalars, batches = tf.data.Dataset.range(3), tf.data.Dataset.range(6).batch(2)
    iterator = TFEpochIterator(tf.distribute.get_strategy(), x=tf.data.Dataset.zip({"a": scalars, "b": batches}))
    assert Batches.of(iterator) == Batches(None, 3)


def test_a_data_loader_of_pytorch_goes_on_in_its_order(train, monkeypatch):
    for killed_at, expected in ((6, None), (None, [Y.sum()] * 3)):
        loader = DataLoader()
        monkeypatch.setitem(sys.modules, "torch", loader.torch)
        assert train({"x": loader}, killed_at=killed_at) == expected
