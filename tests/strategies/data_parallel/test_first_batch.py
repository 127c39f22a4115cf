"""The first batches of two tasks: what is compared, and what is said if it differs."""

import pytest
import tensorflow as tf
from local_board import LocalBoard

from tfdist.strategies.data_parallel.first_batch import FirstBatch

NAMES = ["worker:0", "worker:1"]
IMAGES = tf.zeros([2, 3, 3, 1])
TEXTS = tf.constant([["a", "b"], ["c", "d"]])
IDS = tf.constant([[1, 2], [3, 4]])
LABELS = tf.constant([0, 1])
FLOATS = tf.constant([[1.0], [2.0]])


def message_of(one, other, caplog):
    """Returns what the first task says of its batch and that of the second; "" if nothing."""
    board = LocalBoard()
    for name, batch in zip(reversed(NAMES), (other, one), strict=True):
        first = FirstBatch(name, NAMES, "first_batch/1", board)
        for _ in (
            tf.data.Dataset.from_tensors(batch).enumerate().map(lambda number, *b, first=first: watched(first, number, *b))
        ):
            pass
        first.compare()
    return caplog.text


def watched(first, number, batch):
    first.watch(number, batch)
    return number


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((IMAGES, LABELS), (IMAGES + 1.0, LABELS)),
        ((tf.cast(IMAGES, tf.uint8), LABELS), (tf.cast(IMAGES + 1.0, tf.uint8), LABELS)),
        ((IDS, FLOATS), (IDS, FLOATS + 1e-7)),
        ((IMAGES, FLOATS), (IMAGES + 1.0, FLOATS)),
    ],
    ids=["augmented images", "augmented images of integers", "rounded targets", "augmented images and float targets"],
)
def test_what_may_differ_on_purpose_is_not_compared(one, other, caplog):
    assert message_of(one, other, caplog) == ""


def test_other_targets_are_other_batches(caplog):
    message = message_of((IMAGES, LABELS), (IMAGES, LABELS + 1), caplog)
    assert "worker:0 and worker:1 read different batches, so examples may be left out or count twice" in message


@pytest.mark.parametrize(("one", "other"), [(IDS, IDS[::-1]), (TEXTS, TEXTS[::-1])], ids=["integers", "texts"])
@pytest.mark.parametrize("targets", [LABELS, FLOATS], ids=["labels", "float targets"])
def test_inputs_that_are_numbered_differently_are_named(one, other, targets, caplog):
    message = message_of((one, targets), (other, targets), caplog)
    assert "worker:0 and worker:1 read different integers or texts as inputs. If words or categories are numbered" in message


def test_batches_that_differ_from_the_second_epoch_on_are_named_once(caplog):
    board = LocalBoard()
    firsts = [FirstBatch(name, NAMES, "first_batch/1", board) for name in NAMES]
    said = []
    for epoch in range(4):
        for task in (1, 0):
            labels = LABELS + epoch * task
            for _ in (
                tf.data.Dataset.from_tensors((IMAGES, labels))
                .enumerate()
                .map(lambda number, *b, task=task: watched(firsts[task], number, *b))
            ):
                pass
            firsts[task].compare()
        said.append(caplog.text.count("worker:0 and worker:1 read different batches"))
    assert said == [0, 1, 1, 1]


def test_an_epoch_that_another_task_has_not_told_yet_is_compared_later(caplog):
    board = LocalBoard()
    first, other = (FirstBatch(name, NAMES, "first_batch/1", board) for name in NAMES)
    first._read, other._read = [[1, 0, 0], [2, 0, 0]], [[1, 0, 0]]
    other.compare()
    first.compare()
    assert caplog.text == ""
    other._read.append([3, 0, 0])
    other.compare()
    first.compare()
    assert "worker:0 and worker:1 read different batches" in caplog.text
    for each in (first, other):
        each.close()
    assert board.values == {}


@pytest.mark.parametrize("difference", [0, 1])
def test_tasks_that_should_read_data_of_their_own_and_read_the_same_are_named(difference, caplog):
    board = LocalBoard()
    for task in (1, 0):
        first = FirstBatch(NAMES[task], NAMES, "first_batch/1", board, apart=True)
        for _ in first.watched(tf.data.Dataset.from_tensors((IMAGES, LABELS + task * difference))):
            pass
        first.compare()
    said = "worker:0 and worker:1 read the same batches under tf.data's sharding policy OFF" in caplog.text
    assert said == (difference == 0)


def test_two_augmented_views_may_be_meant(caplog):
    message = message_of((IMAGES, IMAGES), (IMAGES + 1.0, IMAGES + 2.0), caplog)
    assert "This does no harm if they are augmented at random, as views of images are" in message


def test_a_batch_that_the_program_gives_to_a_call_is_compared(caplog):
    board = LocalBoard()
    for name, labels in zip(reversed(NAMES), (LABELS, LABELS + 1), strict=True):
        first = FirstBatch(name, NAMES, "first_batch/1", board)
        first.note((FLOATS, labels, None))
        first.compare()
    assert "worker:0 and worker:1 read different batches" in caplog.text
