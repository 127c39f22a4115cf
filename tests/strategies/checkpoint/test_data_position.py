"""Where the data of an epoch continue under a strategy that counts the batches of an epoch itself."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.checkpoint.data_position import Resumption
from tfdist.strategies.inputs.batch_shards import Layout, ShardedDataset
from tfdist.strategies.inputs.input_feed import FedDataset
from tfdist.strategies.private_api import TFEpochIterator

SOURCES = {"data parallel": lambda dataset: ShardedDataset(dataset, Layout(1, range(1))), "parameter server": FedDataset}


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


@pytest.mark.parametrize("data", ["arrays", "tf.data"])
@pytest.mark.parametrize("kind", SOURCES)
def test_epochs_that_are_done_keep_the_order_and_make_no_iterator_of_the_whole_pipeline(position, monkeypatch, kind, data):
    """Each took 40 ms in a job of three tasks, so a restart after 70 epochs took three times as long as an early one."""
    made = []
    for source in (ShardedDataset, FedDataset):
        make = source.__iter__
        monkeypatch.setattr(source, "__iter__", lambda self, make=make: made.append(1) or make(self))

    def epochs(resumption=None):
        """Makes the iterator of a `fit`; yields the batches of each epoch that it reads."""
        keras.utils.set_random_seed(7)
        if data == "arrays":
            given = {"x": np.arange(12), "batch_size": 2, "shuffle": True}
        else:
            given = {"x": tf.data.Dataset.range(12).shuffle(12).batch(2)}
        position.iterator = None
        iterator = TFEpochIterator(SimpleNamespace(experimental_distribute_dataset=SOURCES[kind]), **given)
        if resumption is not None:
            position.resume(resumption)
        while True:
            yield [number for _, _, batches in iterator._enumerate_iterator() for number in numbers(batches.take(1))]

    whole = [epoch for epoch, _ in zip(epochs(), range(6), strict=False)]
    assert (len(set(map(tuple, whole))) > 1) == (data == "tf.data")  # Keras shuffles arrays the same way in each epoch.
    made.clear()
    resumed = next(epochs(Resumption(epochs=5, batches=2)))
    assert resumed == whole[5][2:]
    assert len(made) <= 2  # Keras makes one more at the end of an epoch.
