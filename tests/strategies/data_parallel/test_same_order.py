"""Data in one order, also where a program lets tf.data yield elements as they are ready."""

import time

import pytest
import tensorflow as tf

from tfdist.strategies.data_parallel import same_order
from tfdist.strategies.private_api import patches

N = 8


def slowly(number):
    """The first element of each four takes longest."""

    def wait(value):
        time.sleep(0.2 if value % 4 == 0 else 0)
        return value

    return tf.ensure_shape(tf.numpy_function(wait, [number], tf.int64), [])


def by_map(dataset):
    return dataset.map(slowly, num_parallel_calls=4, deterministic=False)


def by_interleave(dataset):
    def of(number):
        return tf.data.Dataset.from_tensors(number).map(slowly)

    return dataset.interleave(of, cycle_length=4, num_parallel_calls=4, deterministic=False)


def by_a_step_inside(dataset):
    return dataset.batch(N).flat_map(lambda numbers: by_map(tf.data.Dataset.from_tensor_slices(numbers)))


def by_an_option(dataset):
    options = tf.data.Options()
    options.deterministic = False
    return dataset.map(slowly, num_parallel_calls=4).with_options(options).map(lambda number: number)


@pytest.mark.parametrize("pipeline", [by_map, by_interleave, by_a_step_inside, by_an_option])
def test_elements_come_in_order(pipeline, monkeypatch):
    def numbers():
        return [int(number) for number in same_order.in_same_order(pipeline(tf.data.Dataset.range(N)))]

    for name, point in patches.DATASET_STEPS.items():  # Other tests in this process make datasets, too.
        monkeypatch.setattr(point, "_replacements", [])
        monkeypatch.setattr(tf.data.Dataset, name, getattr(tf.data.Dataset, name))
    same_order.install()
    assert numbers() == list(range(N))


def test_other_options_of_a_dataset_are_kept():
    options = tf.data.Options()
    options.deterministic, options.autotune.enabled = False, False
    ordered = same_order.in_same_order(tf.data.Dataset.range(2).with_options(options)).options()
    assert (ordered.deterministic, ordered.autotune.enabled) == (True, False)
