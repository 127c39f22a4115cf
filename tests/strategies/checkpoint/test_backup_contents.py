"""What a backup has beside the weights, and what a call that is passed over leaves, as without a restart.

The processes run here one after the other, with an exception in place of the kill.
"""

import datetime
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from backup_processes import KillAt

from tfdist.partition import Partition
from tfdist.strategies.checkpoint import model_backup
from tfdist.strategies.checkpoint.model_backup import ModelBackup
from tfdist.strategies.data_parallel.mirrored import Mirrored

pytestmark = pytest.mark.slow

X = np.random.default_rng(1).random((32, 3), "float32")
Y = X.sum(axis=1, keepdims=True)


def compiled(loss="mse"):
    model = keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(1)], name="net")
    model.compile(keras.optimizers.SGD(0.1, momentum=0.5), loss, run_eagerly=True)
    return model


def weights_of(model):
    return [np.asarray(weight, "float32").tolist() for weight in model.get_weights()]


class Halves(keras.callbacks.Callback):
    """Changes the weights at the end of training, as a callback does that sets their average."""

    def on_train_end(self, logs=None):
        self.model.set_weights([weight / 2 for weight in self.model.get_weights()])


def of_two_calls(killed_at):
    model = compiled()
    model.fit(X, Y, epochs=2, verbose=0, callbacks=[Halves()])
    between = weights_of(model)
    model.fit(X, Y, epochs=3, verbose=0, callbacks=[KillAt(killed_at)])
    return between, weights_of(model)


def test_a_callback_changes_the_weights_of_a_call_that_is_passed_over_once(process):
    whole = process(of_two_calls, 9)
    assert process(of_two_calls, 1) is None
    assert process(of_two_calls, 9) == whole


class Balanced(keras.losses.Loss):
    """Divides by the moving average of the loss."""

    def __init__(self):
        super().__init__()
        self.average = keras.Variable(1.0, trainable=False)

    def call(self, y_true, y_pred):
        errors = keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1)
        average = keras.ops.convert_to_tensor(self.average)
        self.average.assign(0.9 * average + 0.1 * keras.ops.mean(errors))
        return errors / average


def of_own_loss(killed_at):
    loss = Balanced()
    model = compiled(loss)
    model.fit(X, Y, epochs=4, verbose=0, callbacks=[KillAt(killed_at)])
    return float(loss.average.numpy()), weights_of(model)


def test_the_variables_of_a_loss_continue(process):
    whole = process(of_own_loss, 9)
    assert process(of_own_loss, 2) is None
    assert process(of_own_loss, 9) == whole


def of_lora(killed_at):
    net = compiled()
    net.build((None, 3))
    for layer in net.layers:
        layer.enable_lora(2)
    net.compile("sgd", "mse", run_eagerly=True)
    net.fit(X, Y, epochs=3, verbose=0, callbacks=[KillAt(killed_at)])
    return weights_of(net)


def test_the_factors_of_lora_continue_which_keras_files_lack(process):
    whole = process(of_lora, 99)
    assert process(of_lora, 2) is None
    assert process(of_lora, 99) == whole


def test_a_damaged_backup_does_not_decide_which_call_continues(process, tmp_path, caplog):
    def program(killed_at):
        net = compiled()
        for at in (99, killed_at):
            net.fit(X, Y, epochs=4, verbose=0, callbacks=[KillAt(at)])
        return weights_of(net)

    whole = process(program, 99)
    assert process(program, 3) is None
    latest = tmp_path / "backup" / "tfdist-model-1.weights.h5"
    content = latest.read_bytes()
    place = content.index(b'"data": "') + 9  # The digest of the arrays that `fit` got.
    latest.write_bytes(content[:place] + b"?" + content[place + 1 :])
    assert process(program, 99) == whole
    assert "its checksum differs" in caplog.text and "fit 2 of net continues after 2 epochs" in caplog.text


class Shuffled(keras.utils.PyDataset):
    """Shuffles after each epoch, as Keras' guides do it."""

    def __init__(self):
        super().__init__()
        self.order = np.arange(len(X))

    def __len__(self):
        return len(X) // 4

    def __getitem__(self, index):
        chosen = self.order[index * 4 : index * 4 + 4]
        return X[chosen], Y[chosen]

    def on_epoch_end(self):
        np.random.shuffle(self.order)


class Augmented(Shuffled):
    def __getitem__(self, index):
        inputs, targets = super().__getitem__(index)
        return inputs + np.random.rand(), targets


@pytest.mark.parametrize("kind", [Shuffled, Augmented])
def test_data_that_are_shuffled_again_after_each_epoch_continue_in_their_order_or_are_named(process, caplog, kind):
    def program(killed_at):
        net = compiled()
        net.fit(kind(), epochs=4, verbose=0, callbacks=[KillAt(killed_at)])
        return weights_of(net)

    whole = process(program, 99)
    assert process(program, 2) is None
    end = process(program, 99)
    assert (end == whole) != ("continues in another order than without a restart" in caplog.text)
    assert (end == whole) == (kind is Shuffled)


def of_best_weights(killed_at, set_dtype):
    set_dtype("bfloat16")
    try:
        model = compiled()
        best = keras.callbacks.EarlyStopping("loss", mode="max", patience=9, restore_best_weights=True)
        model.fit(X, Y, epochs=4, verbose=0, callbacks=[best, KillAt(killed_at)])
        return weights_of(model)
    finally:
        set_dtype("float32")


@pytest.mark.parametrize("set_dtype", [keras.config.set_dtype_policy, keras.config.set_floatx])
def test_the_best_weights_and_logs_may_be_bfloat16(process, set_dtype):
    whole = process(of_best_weights, 9, set_dtype)
    assert process(of_best_weights, 2, set_dtype) is None
    assert process(of_best_weights, 9, set_dtype) == whole


class Draws(keras.layers.Layer):
    """Draws numbers without a seed: from the generator that Keras makes for the process."""

    def call(self, x, training=False):
        return x + keras.random.normal(keras.ops.shape(x)) if training else x


class NoisyUpdates(keras.optimizers.SGD):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.generator = keras.random.SeedGenerator(3)

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate)
        self.assign_add(variable, keras.random.normal(variable.shape, seed=self.generator))


def of_drawn_numbers(killed_at, layers, optimizer):
    keras.utils.clear_session()  # A new process has no generator.
    keras.utils.set_random_seed(5)
    model = keras.Sequential([*layers(), keras.layers.Dense(1)])
    model.compile(optimizer(0.01), "mse", run_eagerly=True)
    model.fit(X, Y, epochs=4, verbose=0, callbacks=[KillAt(killed_at)])
    return weights_of(model)


@pytest.mark.parametrize("kind", [(lambda: [Draws()], keras.optimizers.SGD), (list, NoisyUpdates)], ids=["layer", "optimizer"])
def test_numbers_that_a_layer_draws_without_a_seed_and_an_optimizer_with_one_continue(process, kind):
    whole = process(of_drawn_numbers, 9, *kind)
    assert process(of_drawn_numbers, 2, *kind) is None
    assert process(of_drawn_numbers, 9, *kind) == whole


def test_a_program_may_change_the_history_of_a_fit_that_is_passed_over(process):
    def program(killed_at=99):
        model = compiled()
        histories = [model.fit(X, Y, epochs=2, verbose=0).history]
        weights = weights_of(model)
        for epochs in (2, 4):
            histories.append(model.fit(X, Y, epochs=epochs, verbose=0, callbacks=[KillAt(killed_at)]).history)
            histories[0]["loss"] += histories[-1]["loss"]
        return histories, weights, weights_of(model)

    whole = process(program)
    for killed_at in (2, 3):
        assert process(lambda killed_at=killed_at: program(killed_at)) is None
    assert process(program) == whole


class OwnFile(keras.layers.Dense):
    def save_own_variables(self, store):
        store["all"] = np.zeros(1)


@pytest.mark.parametrize("case", ["of the chief", "alone", "own method", "summed over the replicas"])
def test_a_task_that_is_not_the_chief_saves_only_what_may_need_all_tasks(monkeypatch, case):
    monkeypatch.setattr(model_backup, "is_chief", lambda: case == "of the chief")
    strategy, written = Mirrored(["CPU:0"], Partition()), []
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), (OwnFile if case == "own method" else keras.layers.Dense)(1)])
        model.compile("adam", "mse")
        model.optimizer.build(model.trainable_variables)
        if case == "summed over the replicas":
            model.layers[0].count = tf.Variable(
                0, synchronization=tf.VariableSynchronization.ON_READ, aggregation=tf.VariableAggregation.SUM, trainable=False
            )
    ModelBackup(SimpleNamespace(write=lambda *_: written.append(1)), 1)._save(model, 1, 0, None)
    assert bool(written) == (case != "alone")


class Notes(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        logs["notes"] = [datetime.date(2026, 1, epoch + 1), b"x", {epoch}, 1j, ((1,), (2, 3))][epoch]


def test_logs_of_any_kind_end_no_training_and_come_back_as_texts_where_json_lacks_them(process):
    def program(at=99):
        model = compiled()
        return model.fit(X, Y, epochs=5, verbose=0, callbacks=[Notes(), KillAt(at)]).history["notes"]

    assert process(lambda: program(at=4)) is None
    assert process(program) == ["2026-01-01", "b'x'", "{2}", "1j", ((1,), (2, 3))]
    assert process(program)[3] == 1j


def test_recurrent_layers_with_a_state_continue_with_it(process):
    def program(at=99):
        inner = keras.layers.LSTM(2, stateful=True, return_sequences=True)
        hidden = [keras.layers.Bidirectional(inner), keras.layers.GRU(2, stateful=True)]
        model = keras.Sequential([keras.Input(batch_shape=(8, 3, 1)), *hidden, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(X[..., None], Y, batch_size=8, epochs=3, shuffle=False, verbose=0, callbacks=[KillAt(at)])
        return weights_of(model)

    whole = process(program)
    assert process(lambda: program(at=2)) is None
    assert process(program) == whole
