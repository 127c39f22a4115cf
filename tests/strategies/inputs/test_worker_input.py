"""Data that worker groups read: what is freed when the program drops it. The worker is this process."""

import gc
import time
import weakref

import tensorflow as tf

from tfdist.strategies.hogwild.hooks import HogwildHooks
from tfdist.strategies.inputs import worker_input


def test_a_dropped_dataset_is_gone_at_once_and_its_iterator_frees_what_it_has_read_ahead():
    running = []

    def generator():
        running.append(None)
        try:
            while True:
                yield [1.0, 2.0]
        finally:
            running.pop()

    def of_group(context):
        dataset = tf.data.Dataset.from_generator(generator, output_signature=tf.TensorSpec([None], tf.float32))
        return dataset.batch(2).prefetch(2)

    dataset = worker_input.dataset_of(of_group, 1)
    data = worker_input.of_dataset(dataset)
    data.begin(0, 0, "/device:CPU:0")
    assert data.example().shape == (2, 2)
    spec = data.element_spec
    read = tf.function(lambda handle: worker_input.next_batch(spec, handle), autograph=False)
    read = read.get_concrete_function(tf.TensorSpec([], tf.resource))
    assert read(data.handles[0]).shape == (2, 2)
    assert running

    gone = weakref.ref(data)
    gc.disable()
    try:
        del dataset, data
        assert gone() is None, "it waits for Python's garbage collector"
    finally:
        gc.enable()
    deadline = time.monotonic() + 60
    while running and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not running, "the dataset still runs"


def test_a_validation_on_the_data_of_the_training_does_not_change_the_length_of_its_epochs():
    dataset = worker_input.dataset_of(lambda context: tf.data.Dataset.range(8).batch(2).repeat(), 1)
    hooks = HogwildHooks.__new__(HogwildHooks)
    training, validation = hooks.batch_source(dataset), hooks.batch_source(dataset)
    training.steps_per_epoch, validation.steps_per_epoch = 5, 2
    batches = iter(training)
    assert len(batches.take(3)) == 3
    read = iter(validation).take(9)
    assert len(read) == 2 and read[0].data.handles is worker_input.of_dataset(dataset).handles
    assert len(batches.take(9)) == 2
    assert training.example() is validation.example()
