"""Where the data of an epoch continue under a strategy that counts the batches of an epoch itself."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.checkpoint import data_position
from tfdist.strategies.checkpoint.data_position import DataPosition, Resumption
from tfdist.strategies.inputs.batch_shards import Layout, ShardedDataset
from tfdist.strategies.inputs.input_feed import FedDataset
from tfdist.strategies.private_api import TFEpochIterator

SOURCES = {"data parallel": lambda dataset: ShardedDataset(dataset, Layout(1, range(1))), "parameter server": FedDataset}


@pytest.fixture
def position(monkeypatch):
    data_position.install()
    found = DataPosition()
    monkeypatch.setattr(data_position, "_positions", [found])
    return found


def numbers(batches):
    """The examples of a batch each, as either source has them."""
    return [int(tf.nest.flatten(batch["shards"] if isinstance(batch, dict) else batch)[0][0]) for batch in batches]


@pytest.mark.parametrize("kind", SOURCES)
def test_batches_of_an_epoch_of_steps_are_passed_over_after_whole_epochs(position, kind):
    strategy = SimpleNamespace(experimental_distribute_dataset=SOURCES[kind])
    data = tf.data.Dataset.range(100).batch(1).repeat()
    iterator = TFEpochIterator(strategy, x=data, steps_per_epoch=5)
    iterator._distributed_dataset.steps_per_epoch = 5
    assert position.iterator is iterator
    position.resume(Resumption(epochs=2, batches=3))
    read = []
    for begin, _, batches in iterator._enumerate_iterator():
        read += numbers(batches.take(1))
        assert begin in (3, 4) and batches.taken == begin + 1
    assert read == [13, 14] and batches.take(1) == []


def test_a_generator_of_a_call_that_is_passed_over_is_not_read_with_a_warning(position, caplog):
    read = []

    def batches():
        for number in range(100):
            read.append(number)
            yield np.full((1, 1), number), np.zeros((1, 1))

    TFEpochIterator(SimpleNamespace(experimental_distribute_dataset=FedDataset), x=batches(), steps_per_epoch=5)
    before = list(read)  # Keras has looked at the first batches.
    position.pass_over(2)
    assert position.is_passed_over and read == before
    assert "a later call that gets the same generator begins with its first batch" in caplog.text
