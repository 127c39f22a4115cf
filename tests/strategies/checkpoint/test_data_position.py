"""Where the data of an epoch continue under a strategy that counts the batches of an epoch itself."""

from types import SimpleNamespace

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
