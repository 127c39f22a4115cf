"""After a restart the data have the order that they would have had, whatever a pipeline remembers of the epochs before."""

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


class Numbers(keras.utils.PyDataset):
    """Threads read its batches ahead."""

    def __init__(self):
        super().__init__(workers=2, max_queue_size=2)

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return np.full((2, 1), index)


def of_two_lengths():
    """Its shape says too little to build a model, which is built with its first batch."""
    return tf.data.Dataset.range(12).shuffle(12).map(lambda n: tf.fill([n % 2 + 1], n)).padded_batch(2, [None])


def out_of_order():
    options = tf.data.Options()
    options.deterministic = False
    return options


DATA = {
    "read ahead": Numbers,
    "of two lengths": of_two_lengths,
    "cached after a shuffle": lambda: tf.data.Dataset.range(12).shuffle(12).batch(2).cache(),
    "cached, of unknown length": lambda: tf.data.Dataset.range(12).shuffle(12).filter(lambda n: n < 99).batch(2).cache(),
    "repeated after a shuffle": lambda: tf.data.Dataset.range(4).shuffle(4).repeat(3).batch(2),
    "shuffled twice": lambda: of_two_lengths().cache().shuffle(3),
}


def made(kind):
    keras.utils.set_random_seed(7)
    return DATA[kind]()


def epochs(position, source, data, prepare=lambda: None):
    """Makes the iterator of a `fit`; yields the first example of each batch of an epoch, for each epoch that it reads."""
    position.iterator = None
    iterator = TFEpochIterator(SimpleNamespace(experimental_distribute_dataset=source), x=data)
    if not isinstance(data, keras.utils.PyDataset):
        iterator._distributed_dataset.example()
    iterator.reset()  # As `fit` does when it has built the model.
    prepare()
    while True:
        read = []
        with iterator.catch_stop_iteration():
            for _, _, batches in iterator._enumerate_iterator():
                if not (taken := batches.take(1)):
                    raise StopIteration
                batch = taken[0]["shards"] if isinstance(taken[0], dict) else taken[0]
                read.append(int(tf.reshape(tf.nest.flatten(batch)[0], [-1])[0]))
        yield read


def first_epochs(position, source, kind):
    return [epoch for epoch, _ in zip(epochs(position, source, made(kind)), range(4), strict=False)]


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize("source", SOURCES)
def test_an_epoch_continues_with_the_batches_that_are_left(position, source, kind):
    whole = first_epochs(position, SOURCES[source], kind)
    assert [len(epoch) for epoch in whole] == [6] * 4
    for done, batches in ((0, 2), (1, 2), (3, 4)):
        resumed = epochs(position, SOURCES[source], made(kind), lambda: position.resume(Resumption(done, batches)))  # noqa: B023
        assert next(resumed) == whole[done][batches:], (done, batches)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("kind", DATA)
def test_a_call_that_is_passed_over_leaves_its_data_as_it_would_have(position, kind):
    whole = first_epochs(position, FedDataset, kind)
    assert next(epochs(position, FedDataset, made(kind), lambda: position.pass_over(3))) == whole[3]


@pytest.mark.parametrize(
    "data",
    [
        lambda data: data.map(tf.identity, num_parallel_calls=2, deterministic=False).batch(2),
        lambda data: data.batch(2).with_options(out_of_order()),
    ],
    ids=["step", "options"],
)
def test_of_data_without_an_order_a_warning_says_so(position, caplog, data):
    keras.utils.set_random_seed(7)
    resumed = epochs(position, FedDataset, data(tf.data.Dataset.range(12)), lambda: position.resume(Resumption(0, 2)))
    assert len(next(resumed)) == 4 and "its data have no fixed order (deterministic=False)" in caplog.text
