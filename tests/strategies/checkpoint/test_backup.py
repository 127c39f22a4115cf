"""Backups travel from the chief to the other tasks in pieces. The tasks run here one after the other."""

import contextlib
from types import SimpleNamespace

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.checkpoint import backup, data_position
from tfdist.strategies.checkpoint.backup import Broadcast

pytestmark = pytest.mark.slow


@pytest.fixture
def send(monkeypatch):
    """Makes `send` a recording while the chief runs, and its replay while another task does."""
    sent, lengths = [], []

    def send(self, piece, size):
        if backup.is_chief():
            assert len(piece) == size
            sent.append(piece)
            lengths.append(size)
        return sent[0] if backup.is_chief() else sent.pop(0)

    monkeypatch.setattr(Broadcast, "send", send)
    return lengths


def test_a_piece_travels_as_a_step_does_so_that_a_task_that_is_lost_or_makes_another_call_is_found():
    inside, seen = [], []

    @contextlib.contextmanager
    def executing():
        inside.append(1)
        yield
        inside.pop()

    @contextlib.contextmanager
    def scope():
        seen.extend(inside)
        yield

    strategy = SimpleNamespace(scope=scope, calls=SimpleNamespace(executing=executing))
    assert Broadcast(strategy).send_numbers([7, -1]) == [7, -1]
    assert seen == [1] and inside == []


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 30, 37])
def test_files_arrive_whole_in_pieces_of_bounded_size(tmp_path, monkeypatch, send, size):
    monkeypatch.setattr(backup, "PIECE_BYTES", 10)
    content = bytes(range(size))
    (tmp_path / "a").write_bytes(content)
    (tmp_path / "c").write_bytes(b"c")
    sources = [str(tmp_path / name) for name in "abc"]
    targets = [str(tmp_path / f"copy-{name}") for name in "abc"]
    Broadcast(tf.distribute.get_strategy()).send_files(sources, targets)
    monkeypatch.setattr(backup, "is_chief", lambda: False)
    Broadcast(tf.distribute.get_strategy()).send_files(["no", "no", "no"], targets)
    assert (tmp_path / "copy-a").read_bytes() == content and (tmp_path / "copy-c").read_bytes() == b"c"
    assert not (tmp_path / "copy-b").exists()
    assert send == [24, *[10] * (size // 10), *([size % 10] if size % 10 else []), 1]


def test_sizes_and_bytes_pass_through_a_strategy_without_a_trace(monkeypatch):
    monkeypatch.setattr(tf, "function", None)
    broadcast = Broadcast(tf.distribute.get_strategy())
    assert broadcast.send_numbers([-1, 2**31, 5 * 10**12]) == [-1, 2**31, 5 * 10**12]
    assert [broadcast.send(b"abcdefgh"[:size], size) for size in (1, 4, 7)] == [b"a", b"abcd", b"abcdefg"]


def test_a_damaged_backup_is_named_and_an_older_one_is_restored(tmp_path):
    backup.install()
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile("sgd", "mse")
    callback = keras.callbacks.BackupAndRestore(tmp_path, double_checkpoint=True)
    callback.set_model(model)
    for epoch in range(2):
        model.set_weights([np.full((1, 1), epoch, "float32")])
        callback.on_epoch_end(epoch)
    latest = tmp_path / "latest.weights.h5"
    latest.write_bytes(latest.read_bytes()[:-100])
    callback.on_train_begin()
    assert model.get_weights()[0].item() == 0.0 and model._initial_epoch == 1
    (tmp_path / "latest.weights.h5.bkp").unlink()
    latest.write_bytes(b"")
    with pytest.raises(OSError, match=rf"the backup {latest} cannot be read \(.*remove the folder {tmp_path} to train from"):
        callback.on_train_begin()
    assert not h5py.is_hdf5(latest)


@pytest.mark.parametrize("damage", ["changed", "gone"])
def test_a_damaged_backup_gives_way_to_the_hidden_one_before_it(tmp_path, caplog, damage):
    backup.install()
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile("sgd", "mse")
    callback = keras.callbacks.BackupAndRestore(tmp_path)
    callback.set_model(model)
    for epoch in range(2):
        model.set_weights([np.full((1, 1), 1234.5 + epoch, "float32")])
        callback.on_epoch_end(epoch)
    latest = tmp_path / "latest.weights.h5"
    content = latest.read_bytes()
    assert np.float32(1235.5).tobytes() in content
    if damage == "gone":
        latest.unlink()
    else:
        latest.write_bytes(content.replace(np.float32(1235.5).tobytes(), np.float32(1235.25).tobytes()))
    callback.on_train_begin()
    assert model.get_weights()[0].item() == 1234.5 and model._initial_epoch == 1
    said = {"changed": "was changed after it was written", "gone": "cannot be read ([Errno 2] No such file"}[damage]
    assert f"{latest} {said}" in caplog.text


def test_a_restored_fit_sees_the_data_in_the_order_of_its_epochs_and_the_next_fit_begins_at_0(tmp_path):
    data_position.install()
    backup.install()
    numbers = np.arange(32, dtype="float32").reshape(32, 1)

    def train(epochs, callbacks):
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
        model.compile(keras.optimizers.SGD(1e-5), "mse")
        data = tf.data.Dataset.from_tensor_slices((numbers, 2 * numbers)).shuffle(32).batch(4)
        history = model.fit(data, epochs=epochs, verbose=0, callbacks=callbacks)
        return model, history.history["loss"]

    _, whole = train(5, [])
    train(3, [keras.callbacks.BackupAndRestore(tmp_path, delete_checkpoint=False)])
    model, rest = train(5, [keras.callbacks.BackupAndRestore(tmp_path)])
    assert rest == whole[3:]
    assert model.fit(numbers, numbers, epochs=2, verbose=0).epoch == [0, 1]


def test_the_factors_of_lora_continue_which_keras_files_lack(tmp_path):
    data_position.install()
    backup.install()
    numbers = np.arange(32, dtype="float32").reshape(16, 2) / 32

    def train(epochs, folder):
        keras.utils.set_random_seed(3)
        layer = keras.layers.Dense(2)
        model = keras.Sequential([keras.Input((2,)), layer])
        layer.enable_lora(1)
        model.compile("sgd", "mse", run_eagerly=True)
        callback = keras.callbacks.BackupAndRestore(tmp_path / folder, delete_checkpoint=False)
        model.fit(numbers, 2 * numbers, shuffle=False, epochs=epochs, verbose=0, callbacks=[callback])
        return [variable.numpy().tolist() for variable in model.weights]

    whole = train(4, "whole")
    assert train(2, "parts") != whole
    assert train(4, "parts") == whole


class Interrupted(Exception):
    pass


def interrupted(folder, batches, **arguments):
    """Trains until some batches are done; returns where the training began, and the first numbers that each epoch saw."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(keras.optimizers.SGD(1e-9), "mse")
    begun, read = [], []

    def stop(batch, logs=None):
        if len(begun) and model.optimizer.iterations.numpy() - begun[0][1] >= batches:
            raise Interrupted

    def begin(epoch, logs=None):
        begun.append((epoch, int(model.optimizer.iterations.numpy())))

    def numbers():
        for number in range(100):
            read.append(number)
            yield np.full((1, 1), number, "float32"), np.zeros((1, 1), "float32")

    kinds = (tf.TensorSpec((1, 1)), tf.TensorSpec((1, 1)))
    data = tf.data.Dataset.from_generator(numbers, output_signature=kinds)
    observer = keras.callbacks.LambdaCallback(on_epoch_begin=begin, on_train_batch_end=stop)
    callbacks = [keras.callbacks.BackupAndRestore(folder, save_freq=arguments.pop("save_freq", "epoch")), observer]
    with pytest.raises(Interrupted):
        model.fit(data, steps_per_epoch=4, verbose=0, callbacks=callbacks, **arguments)
    return begun, len(read)


def test_a_second_interruption_in_the_first_epoch_after_a_restart_begins_in_that_epoch_again(tmp_path):
    data_position.install()
    backup.install()
    assert [epoch for epoch, _ in interrupted(tmp_path, 11, epochs=5, save_freq=2)[0]] == [0, 1, 2]
    for _ in range(2):
        assert interrupted(tmp_path, 3, epochs=5, save_freq=2)[0][0][0] == 2


def test_only_the_data_of_epochs_of_this_call_are_passed_over(tmp_path):
    data_position.install()
    backup.install()
    assert interrupted(tmp_path, 9, epochs=10, initial_epoch=5)[0] == [(5, 0), (6, 4), (7, 8)]
    begun, read = interrupted(tmp_path, 2, epochs=10, initial_epoch=5)
    assert begun == [(7, 8)] and 10 <= read < 20  # tf.data reads a little ahead.
