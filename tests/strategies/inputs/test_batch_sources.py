"""All sources of batches count an epoch alike, lose no batch to `example`, and split batches evenly."""

import collections
import re

import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.inputs import worker_input
from tfdist.strategies.inputs.batch_shards import Layout, ShardedDataset
from tfdist.strategies.inputs.batches import as_tensors, builds_models, concatenated, none_without_examples, with_dimensions_of
from tfdist.strategies.inputs.input_feed import FedDataset
from tfdist.strategies.inputs.source import EmptyDatasetError

BATCHES = 7


def numbers(batches=BATCHES):
    """A dataset whose batches are [0, 1], [2, 3], ... of unknown size."""
    return tf.data.Dataset.range(2 * batches).batch(2)


def worker_source(dataset):
    source = worker_input.of_dataset(worker_input.dataset_of(lambda context: dataset.repeat(), 1))
    source.steps_per_epoch = BATCHES
    return source


SOURCES = {
    "shards": lambda dataset: ShardedDataset(dataset, Layout(1, range(1))),
    "feed": FedDataset,
    "workers": worker_source,
}


@pytest.mark.parametrize("name", SOURCES)
def test_an_epoch_is_steps_per_epoch_batches_and_the_next_one_goes_on(name):
    source = SOURCES[name](numbers())
    source.steps_per_epoch = 3
    iterator = iter(source)
    assert [len(iterator.take(2)) for _ in range(3)] == [2, 1, 0]
    iterator.begin_epoch_if_over()
    assert [len(iterator.take(1)) for _ in range(2)] == [1, 1]
    iterator.begin_epoch_if_over()  # Not over.
    assert len(iterator.take(5)) == 1
    assert iterator.owner is source


def test_a_feed_reads_nothing_ahead_after_the_last_of_its_steps():
    def elements():
        yield from range(3)
        raise AssertionError("nobody waits for more")

    source = FedDataset(tf.data.Dataset.from_generator(elements, output_signature=tf.TensorSpec([], tf.int64)))
    source.steps_per_epoch = 3
    feed = iter(source)
    for number in range(3):
        assert int(next(feed).values) == number
        assert len(feed.peek(2)) == 2 - number


@pytest.mark.parametrize("name", ["shards", "feed"])
def test_without_steps_per_epoch_the_data_ends_the_epoch(name):
    iterator = iter(SOURCES[name](numbers()))
    assert [len(iterator.take(3)) for _ in range(4)] == [3, 3, 1, 0]


def test_batches_before_an_error_of_the_data_are_taken():
    def elements():
        yield from range(3)
        raise ZeroDivisionError("the file is damaged")

    iterator = iter(FedDataset(tf.data.Dataset.from_generator(elements, output_signature=tf.TensorSpec([], tf.int64))))
    assert [int(batch) for batch in iterator.take(2) + iterator.take(2)] == [0, 1, 2]
    with pytest.raises(tf.errors.UnknownError, match="the file is damaged"):
        iterator.take(2)


@pytest.mark.parametrize("name", ["shards", "feed"])
def test_an_example_takes_no_batch_away(name):
    values = tf.data.Dataset.from_generator(lambda: iter(np.ones((3, 2, 4), "float32")), output_types=tf.float32)
    source = SOURCES[name](values)
    assert source.example().shape == (2, 4)
    assert len(iter(source).take(5)) == 3


@pytest.mark.parametrize("name", ["shards", "feed"])
@pytest.mark.parametrize("kind", ["dense", "sparse", "with none"])
def test_an_example_is_not_read_if_the_spec_says_enough(name, kind):
    def elements():
        raise AssertionError("somebody reads")
        yield

    dense = tf.TensorSpec([None, 4])
    spec = {"dense": dense, "sparse": tf.SparseTensorSpec([None, 4]), "with none": (dense, tf.OptionalSpec(None))}[kind]
    example = SOURCES[name](tf.data.Dataset.from_generator(elements, output_signature=spec)).example()
    assert example == ((dense, None) if kind == "with none" else spec)


def test_an_example_of_data_that_have_run_dry_is_the_spec():
    batches = iter(np.ones((2, 2, 4), "float32"))
    source = FedDataset(tf.data.Dataset.from_generator(lambda: batches, output_types=tf.float32))
    assert len(iter(source).take(5)) == 2
    assert source.example() == source.element_spec == tf.TensorSpec(None)


@pytest.mark.parametrize("name", ["shards", "feed"])
def test_data_that_say_so_are_not_read_ahead(name):
    read = []

    def elements():
        for number in range(5):
            read.append(number)
            yield [number]

    dataset = tf.data.Dataset.from_generator(elements, output_signature=tf.TensorSpec([1], tf.int64))
    options = tf.data.Options()
    options.autotune.enabled = False
    iterator = iter(SOURCES[name](dataset.with_options(options)))
    for number in range(3):
        assert len(iterator.take(1)) == 1
        assert read == list(range(number + 1))


def test_a_batch_gives_the_spec_of_a_dataset_the_dimensions_that_it_lacks():
    spec = {"z": tf.TensorSpec([None, None, 4]), "a": (tf.TensorSpec([None, 2]), None), "b": tf.TensorSpec([None])}
    batch = {"z": np.ones((8, 3, 4)), "a": (np.ones((8, 2)), None), "b": np.ones(8)}
    assert not builds_models(spec)
    made = with_dimensions_of(spec, batch)
    assert made == spec | {"z": tf.TensorSpec([8, 3, 4])} and builds_models(made)


@pytest.mark.parametrize("name", ["shards", "feed"])
def test_an_empty_dataset_says_so(name):
    source = SOURCES[name](tf.data.Dataset.from_generator(lambda: iter(()), output_types=tf.float32))
    with pytest.raises(EmptyDatasetError, match="the dataset has no batches"):
        source.example()


@pytest.mark.parametrize(("examples", "sizes"), [(10, [3, 3, 2, 2]), (3, [1, 1, 1, 0]), (8, [2, 2, 2, 2])])
def test_shards_differ_by_one_example_at_most(examples, sizes):
    layout = Layout(4, range(4))
    element = layout.split((tf.range(examples), None, tf.constant(5)))
    assert [int(count) for count in layout.counts(element["examples"])] == sizes
    rows = [shard[0].numpy().tolist() for shard in element["shards"]]
    assert [n for row, size in zip(rows, sizes, strict=True) for n in row[:size]] == list(range(examples))
    # A replica without examples of its own computes the last one again.
    assert [row for row, size in zip(rows, sizes, strict=True) if not size] == [[examples - 1]] * sizes.count(0)
    assert [(shard[1], int(shard[2])) for shard in element["shards"]] == [(None, 5)] * 4
    assert [float(share) for share in layout.shares(element["examples"])] == pytest.approx([n / examples for n in sizes])


def test_a_task_gets_the_shards_of_its_own_replicas():
    element = Layout(4, range(2, 4)).split(tf.range(10))
    assert [shard.numpy().tolist() for shard in element["shards"]] == [[6, 7], [8, 9]]


def test_one_replica_takes_whole_batches():
    (few, many), *_ = Layout(1, range(1)).split((tf.range(2), tf.range(6)))["shards"]
    assert (len(few), len(many)) == (2, 6)


BATCHES_OF_TWO_SIZES = {
    "dense": ((tf.zeros([8, 4]), tf.zeros([24, 4])), "batch[0] has 8 rows and batch[1] has 24, but "),
    "by name": (
        ({"atoms": tf.zeros([56, 3]), "bonds": tf.zeros([56])}, tf.zeros([8])),
        "batch[0]['atoms'] has 56 rows and batch[1] has 8, ",
    ),
    "sparse": ((tf.sparse.from_dense(tf.eye(3)), None, tf.zeros(2)), "batch[0] has 3 rows and batch[2] has 2, but "),
    "ragged": ([tf.zeros([2, 1]), tf.ragged.constant([[1.0], [], [2.0]])], "batch[0] has 2 rows and batch[1] has 3, but "),
}


@pytest.mark.parametrize("name", BATCHES_OF_TWO_SIZES)
def test_replicas_cannot_share_tensors_of_two_sizes(name):
    batch, message = BATCHES_OF_TWO_SIZES[name]
    with pytest.raises(ValueError, match=re.escape(message)):
        Layout(2, range(2)).split(batch)


def test_replicas_cannot_share_tensors_of_two_sizes_that_only_the_data_know():
    few, many = tf.data.Dataset.range(20).batch(2), tf.data.Dataset.range(60).batch(6)
    source = ShardedDataset(tf.data.Dataset.zip((few, many)), Layout(2, range(2)))
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape("[batch[0] has as many rows:] [2] [batch[1] has:] [6]")):
        iter(source).take(1)


def test_data_without_examples_cannot_be_split():
    with pytest.raises(ValueError, match="no tensor with a first dimension"):
        Layout(2, range(2)).split(tf.constant(1.0))


Pair = collections.namedtuple("Pair", ["x", "y"])
ELEMENTS = {
    "one tensor": [[1.0, 2.0]],
    "a tuple": ([[1.0, 2.0]], [3]),
    "a tuple of one": ([[1.0, 2.0]],),
    "a dict out of order": {"z": [1.0], "a": [[2, 3]]},
    "nested": ({"z": ([1.0], [2]), "b": [3], "a": {"y": ["text"]}}, ([[4]], ([5.0],))),
    "a namedtuple": Pair([1.0], [2]),
    "an ordered dict": collections.OrderedDict(z=[1.0], a=[2]),
    "ragged": ([1.0], tf.ragged.constant([[1, 2], [3]])[:1]),
    "sparse": {"x": tf.sparse.from_dense([[0.0, 1.0]]), "a": [2]},
    "an optional": ([1.0], tf.experimental.Optional.from_value(2)),
}


@pytest.mark.parametrize("name", ELEMENTS)
def test_the_chief_reads_elements_of_every_structure_as_tensorflow_does(name):
    dataset = tf.data.Dataset.from_tensors(ELEMENTS[name]).repeat(2)
    feed, expected = iter(FedDataset(dataset)), next(iter(dataset))
    first, second = feed.take(2)
    for values in (first, second):
        assert type(values) is type(expected)
        assert _plain(values) == _plain(expected)
    assert feed.take(1) == []


def _plain(values):
    """The element with lists for its tensors, and the order of the names of its dicts."""
    if isinstance(values, dict):
        return [(name, _plain(value)) for name, value in values.items()]
    if isinstance(values, tuple):
        return [_plain(value) for value in values]
    if isinstance(values, tf.experimental.Optional):
        return "optional", values.get_value().numpy().tolist()
    if isinstance(values, tf.Tensor):
        return values.dtype.name, values.numpy().tolist()
    return type(values).__name__, (
        tf.sparse.to_dense(values) if isinstance(values, tf.SparseTensor) else values
    ).numpy().tolist()


def test_sparse_and_ragged_tensors_stay_what_they_are():
    ragged, sparse = tf.ragged.constant([[1, 2], [3]]), tf.sparse.from_dense([[0.0, 1.0]])
    got = as_tensors((ragged, {"x": sparse, "y": np.ones(2)}, None))
    assert got[0] is ragged and got[1]["x"] is sparse and isinstance(got[1]["y"], tf.Tensor) and got[2] is None


def test_outputs_are_cut_only_for_a_shard_without_examples():
    outputs = (tf.ones([12, 2]), tf.ones([3]), tf.constant(1.0), tf.ragged.constant([[1.0], [], [2.0, 3.0]]), tf.sparse.eye(4))
    for examples, rows in ((3, [12, 3, None, 3, 4]), (0, [0, 0, None, 0, 0])):
        cut = none_without_examples(outputs, tf.constant(examples))
        assert [value.shape[0] if value.shape.rank else None for value in cut] == rows
        cut_unknown = tf.function(none_without_examples, input_signature=[tf.TensorSpec(None), tf.TensorSpec([], tf.int32)])
        assert len(cut_unknown(tf.ones([12, 2]), examples)) == rows[0]


def test_outputs_of_several_batches_are_concatenated_and_numbers_stacked():
    """As the mean of a batch, which a `predict_step` may return."""
    outputs = [{"mean": tf.constant(float(n)), "rows": tf.fill([n, 2], n)} for n in (1, 2)]
    found = concatenated(outputs)
    assert found["mean"].numpy().tolist() == [1.0, 2.0] and found["rows"].numpy().tolist() == [[1, 1], [2, 2], [2, 2]]
    assert concatenated(outputs[:1]) is outputs[0]
    assert tf.sparse.to_dense(concatenated([tf.sparse.eye(1, 2), tf.sparse.eye(1, 3)])).numpy().tolist() == [[1, 0, 0]] * 2
    texts = tf.function(concatenated, input_signature=[[tf.TensorSpec(None, tf.string)] * 2])  # Of unknown rank.
    assert texts([tf.constant(["a"]), tf.constant(["b", "c"])]).numpy().tolist() == [b"a", b"b", b"c"]


def test_a_function_that_reads_batches_itself_is_refused():
    feed = iter(FedDataset(tf.data.Dataset.range(3)))
    with pytest.raises(ValueError, match="so override train_step, test_step or predict_step"):
        tf.function(lambda: next(feed), autograph=False)()
    assert int(next(feed).values) == 0
