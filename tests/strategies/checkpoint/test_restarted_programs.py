"""Programs with several calls of `fit`, callbacks with a memory and odd data, that are killed and started again with a backup.

The processes run here one after the other, with an exception in place of the kill.
"""

import gc
import random
import re
import signal
import weakref
from types import SimpleNamespace

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from backup_processes import KillAt, Killed

from tfdist.errors import WorkersGoneError
from tfdist.strategies.checkpoint import backup_file, job_backup, model_backup
from tfdist.strategies.checkpoint.environment import FOLDER

pytestmark = pytest.mark.slow

X = np.random.default_rng(1).random((64, 3), "float32")
Y = X.sum(axis=1, keepdims=True)


class AtEnd(keras.callbacks.Callback):
    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def on_train_end(self, logs=None):
        self.seen += [logs, values(self.model), self.model.history.history]


def values(model):
    return [*(weight.tolist() for weight in model.get_weights()), int(model.optimizer.iterations.numpy())]


def dense(optimizer="sgd"):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dropout(0.2), keras.layers.Dense(1)], name="net")
    model.compile(optimizer, "mse")
    return model


def phases(seen, killed_at=99):
    """A program that keeps what a user would save: at the end of training, and between two calls of `fit`."""
    model = dense(keras.optimizers.Adam(0.1))
    early = keras.callbacks.EarlyStopping("loss", patience=50, restore_best_weights=True)
    model.fit(X, Y, epochs=3, verbose=0, callbacks=[early, AtEnd(seen)])
    seen += [values(model), np.random.random()]
    model.fit(X, Y + 5, epochs=2, verbose=0)
    seen += [values(model)]
    model.fit(X, Y, epochs=3, verbose=0, callbacks=[KillAt(killed_at)])
    return values(model)


def test_a_fit_that_is_passed_over_gives_the_model_the_weights_of_its_end(process, tmp_path):
    whole, first, again = [], [], []
    end = process(lambda: phases(whole))
    assert process(lambda: phases(first, killed_at=2)) is None
    names = ("", "earlier.", "fit-1.", "fit-2.")
    assert {path.name for path in (tmp_path / "backup").iterdir()} == {f"tfdist-model-1.{name}weights.h5" for name in names}
    assert process(lambda: phases(again)) == end
    assert first == whole[: len(first)] and again == whole


def test_weights_that_are_not_kept_or_belong_to_another_training_are_named(process, tmp_path, monkeypatch, caplog):
    for module in (backup_file, model_backup):
        monkeypatch.setattr(module, "KEEP", 1)
    whole, again = [], []
    end = process(lambda: phases(whole))
    assert process(lambda: phases([], killed_at=2)) is None
    ends = [tmp_path / "backup" / f"tfdist-model-1.fit-{number}.weights.h5" for number in (1, 2)]
    assert [path.exists() for path in ends] == [False, True]
    ends[0].write_bytes(ends[1].read_bytes())
    assert process(lambda: phases(again)) == end
    assert "has no weights of net" in caplog.text and caplog.text.count("at the end of fit") == 1
    assert again[1] != whole[1] and again[5] == whole[5]


class Raise(keras.callbacks.Callback):
    def __init__(self, raises):
        super().__init__()
        self.raises = raises

    def on_train_batch_begin(self, batch, logs=None):
        if self.raises:
            raise MemoryError


def retries(killed_at=99, raises=True):
    model, epochs = dense(), []
    for size in (64, 16):
        callbacks = [Raise(raises and size == 64), KillAt(killed_at)]
        try:
            history = model.fit(X, Y, batch_size=size, epochs=4, verbose=0, callbacks=callbacks)
        except MemoryError:
            continue
        epochs.append(history.epoch)
    return epochs, values(model)


def test_a_fit_that_raised_runs_again_and_the_one_after_it_continues(process, caplog):
    whole = process(retries)
    assert process(lambda: retries(killed_at=2)) is None
    assert process(lambda: retries(killed_at=3)) is None
    assert process(retries) == whole
    assert whole[0] == [[0, 1, 2, 3]] and "fit 1 of net raised an exception before the restart" in caplog.text
    assert caplog.text.count("fit 2 of net continues after") == 2


def test_if_it_does_not_raise_again_the_calls_after_it_begin_anew(process, caplog):
    whole = process(lambda: retries(raises=False))
    assert process(lambda: retries(killed_at=2)) is None
    assert process(lambda: retries(raises=False)) == whole
    assert "now it has not: the calls of fit after it begin anew" in caplog.text


def test_averaged_weights_are_swapped_after_a_restart_as_without_one(process):
    def program(killed_at=99):
        model = dense(keras.optimizers.SGD(0.05, use_ema=True, ema_momentum=0.9))
        callbacks = [keras.callbacks.SwapEMAWeights(swap_on_epoch=True), KillAt(killed_at)]
        history = model.fit(X, Y, epochs=5, verbose=0, callbacks=callbacks, validation_data=(X, Y))
        return history.history, values(model)

    whole = process(program)
    assert process(lambda: program(killed_at=3)) is None
    assert process(program) == whole


def test_an_epoch_whose_batches_are_all_in_the_backup_has_its_metrics(process):
    def program(killed_at=99):
        model = dense()
        data = tf.data.Dataset.from_tensor_slices((X, Y)).filter(lambda x, y: True).batch(8)
        callbacks = [KillAt(killed_at, in_validation=True)]
        history = model.fit(data, epochs=3, verbose=0, callbacks=callbacks, validation_data=(X, Y))
        return history.history, values(model)

    whole = process(program, frequency=4)
    for epoch in range(2):
        assert process(lambda epoch=epoch: program(killed_at=epoch), frequency=4) is None
    assert process(program, frequency=4) == whole and len(whole[0]["loss"]) == 3


class Pair(keras.Model):
    """A model whose two optimizers update a layer each, as those of a GAN do. That of `compile` updates nothing."""

    def __init__(self):
        super().__init__(name="pair")
        self.layers_of_pair = [keras.layers.Dense(2), keras.layers.Dense(1)]
        self.first, self.others = keras.optimizers.Adam(0.01), {"second": keras.optimizers.SGD(0.01, momentum=0.9)}

    def call(self, x):
        return self.layers_of_pair[1](self.layers_of_pair[0](x))

    def train_step(self, data):
        x, y = data
        for optimizer, layer in zip((self.first, self.others["second"]), self.layers_of_pair, strict=True):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x) - y) ** 2)
            optimizer.apply_gradients(zip(tape.gradient(loss, layer.variables), layer.variables, strict=True))
        return {"loss": loss}


def test_optimizers_of_a_models_own_continue(process):
    def program(killed_at=99):
        model = Pair()
        model(X[:1])
        model.compile("adam")
        model.fit(X, Y, epochs=4, verbose=0, callbacks=[KillAt(killed_at)])
        return values(model), int(model.first.iterations), int(model.others["second"].iterations)

    whole = process(program)
    assert process(lambda: program(killed_at=2)) is None
    assert process(program) == whole and whole[1:] == (8, 8)


def test_validations_of_a_part_of_a_shuffled_dataset_continue_with_the_next_part(process):
    def program(killed_at=99, **arguments):
        data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(64)
        model = dense()
        callbacks = [KillAt(killed_at)]
        history = model.fit(X, Y, epochs=6, verbose=0, callbacks=callbacks, validation_data=data.batch(8), **arguments)
        return history.history, random.random(), np.random.random()

    for arguments in ({"validation_steps": 2}, {"validation_steps": 3, "validation_freq": 2}):
        whole = process(lambda arguments=arguments: program(**arguments))
        assert process(lambda arguments=arguments: program(killed_at=3, **arguments)) is None
        assert process(lambda arguments=arguments: program(**arguments)) == whole
        assert len(set(whole[0]["val_loss"])) == len(whole[0]["val_loss"])


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("killed_in", [0, 1])
def test_training_and_validation_data_that_are_cut_from_one_shuffled_dataset_continue_together(process, killed_in, cached):
    """Each has another part of it in each epoch, or the validation always that of the first."""

    def program(killed_at=99):
        data, model, histories = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(64), dense(), []
        training, validation = data.take(48).batch(8), data.skip(48).batch(8)
        arguments = {"validation_data": validation.cache() if cached else validation, "epochs": 4, "verbose": 0}
        for call in range(2):
            kill = KillAt(killed_at if call == killed_in else 99)
            histories.append(model.fit(training, validation_freq=call + 1, callbacks=[kill], **arguments).history)
        return histories, values(model)

    whole = process(program)
    assert process(lambda: program(killed_at=2)) is None
    assert process(program) == whole


def test_a_model_that_nobody_needs_is_not_kept(process):
    def program():
        model = dense()
        model.fit(X, Y, epochs=2, verbose=0)
        return weakref.ref(model)

    model = process(program)
    keras.backend.clear_session()
    gc.collect()
    assert model() is None


class Text(keras.Model):
    def __init__(self, pool):
        super().__init__()
        self.embed, self.pool, self.dense = keras.layers.Embedding(50, 4), pool(), keras.layers.Dense(1)

    def call(self, x):
        return self.dense(self.pool(self.embed(x)))


def read(pool, killed_at=99):
    numbers = np.random.default_rng(1)

    def examples():
        for n in range(24):
            yield numbers.integers(0, 50, 3 + n // 8), np.float32([n % 2])

    shapes = (tf.TensorSpec((None,), tf.int64), tf.TensorSpec((1,)))
    data = tf.data.Dataset.from_generator(examples, output_signature=shapes).padded_batch(8)
    model = Text(pool)
    model.compile("adam", "mse")
    return model.fit(data, epochs=3, verbose=0, callbacks=[KillAt(killed_at)]).epoch


def test_a_model_without_variables_and_data_of_variable_length_continue(process):
    pool = keras.layers.GlobalAveragePooling1D
    assert process(lambda: read(pool, killed_at=2)) is None
    assert process(lambda: read(pool)) == [0, 1, 2]


def test_where_the_variables_cannot_be_made_the_message_says_what_to_do(process):
    assert process(lambda: read(keras.layers.GlobalAveragePooling1D, killed_at=2)) is None
    with pytest.raises(ValueError, match=r"text.* makes its variables with its first batch.*build it before fit"):
        process(lambda: read(keras.layers.Flatten))


@pytest.mark.cluster
def test_sigterm_in_the_last_step_of_an_epoch_saves_its_end_and_needs_no_launcher(start, script, tmp_path):
    program = script(
        """
        import os, signal, sys
        import tfdist
        strategy = tfdist.strategy()
        import keras, numpy as np
        x = np.ones((40, 3), "float32")
        with strategy.scope():
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        class Terminate(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                self.epoch = epoch
                print("epoch", epoch, "step", int(model.optimizer.iterations.numpy()), flush=True)
            def on_train_batch_begin(self, batch, logs=None):
                if self.epoch == int(sys.argv[1]) and batch == 4: os.kill(os.getpid(), signal.SIGTERM)
        history = model.fit(x, x[:, :1], batch_size=8, epochs=4, verbose=0, callbacks=[Terminate()])
        print("done", history.epoch, int(model.optimizer.iterations.numpy()), flush=True)
        """
    )

    def run(epoch):
        job = start(program, str(epoch), environment={FOLDER: str(tmp_path / "backup")})
        return job.wait(120), job

    code, job = run(1)
    assert code == 128 + signal.SIGTERM, job.output
    assert "tfdist: SIGTERM: the backup is saved, and the program ends" in job.output
    assert "epoch 1 step 5" in job.output
    with h5py.File(tmp_path / "backup" / "tfdist-model-1.weights.h5") as file:
        assert b'"epoch": 2, "batch": 0' in file["tfdist_progress"][()]
    code, job = run(3)
    assert code == 128 + signal.SIGTERM, job.output
    assert "epoch 2 step 10" in job.output and "done" not in job.output and "the backup is saved" in job.output
    code, job = run(9)
    assert code == 0 and "done [0, 1, 2, 3] 20" in job.output and "step" not in job.output, job.output


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (tf.errors.UnavailableError(None, None, "no answer\nfrom ps:0"), r"fit has lost a task \(no answer from ps:0\)"),
        (WorkersGoneError("worker:0 is gone"), r"fit has lost a task \(worker:0 is gone\)"),
        (SystemExit(143), "fit was ended by a signal"),
        (SystemExit(0), "fit was ended by sys.exit"),
    ],
)
def test_a_program_that_goes_on_after_the_loss_of_a_task_keeps_its_backup(process, tmp_path, caplog, error, why):
    fails = [False, True]

    def program():
        for _ in range(2):
            callback = keras.callbacks.LambdaCallback(
                on_epoch_begin=lambda epoch, logs: raise_if(fails.pop(0) if fails else False, error)
            )
            try:
                dense().fit(X, Y, epochs=1, verbose=0, callbacks=[callback])
            except BaseException as caught:
                assert caught is error

    with pytest.raises(AssertionError, match="exists"):
        process(program)
    assert re.search(f"the backup in .*/backup stays: {why}. The next start of this program continues", caplog.text)
    process(program)
    assert "fit 1 of net was finished before the restart" in caplog.text


def test_a_program_that_does_not_call_fit_keeps_the_backup_of_an_interrupted_one(process, caplog):
    seen = []
    process(lambda: phases(seen, killed_at=1))
    with pytest.raises(AssertionError, match="exists"):
        process(lambda: dense().evaluate(X, Y, verbose=0))
    assert "stays: it is of a fit that was interrupted, and this program has not called fit. The next start" in caplog.text
    process(lambda: phases(seen))
    assert "fits 1 to 2 of net were finished before the restart" in caplog.text


def test_a_backup_that_cannot_be_removed_is_said(process, monkeypatch, caplog):
    def program():
        dense().fit(X, Y, epochs=1, verbose=0)
        monkeypatch.setattr(job_backup.os, "remove", lambda path: raise_if(True, OSError(30, "Read-only file system")))

    with pytest.raises(AssertionError, match="exists"):
        process(program)
    assert "stays: it could not be removed (Read-only file system)" in caplog.text


def test_the_backup_stays_until_the_programs_of_all_tasks_have_finished(process, monkeypatch, caplog):
    unfinished = ["worker:1"]
    calls = SimpleNamespace(await_ends=lambda: unfinished)
    monkeypatch.setattr(tf.distribute.get_strategy(), "calls", calls, raising=False)

    def program():
        dense().fit(X, Y, epochs=1, verbose=0)

    with pytest.raises(AssertionError, match="exists"):
        process(program)
    assert "/backup stays: worker:1 has not finished. The next start" in caplog.text
    unfinished.clear()
    process(program)


def raise_if(condition, error):
    if condition:
        raise error


@pytest.mark.parametrize("is_passed_over", [True, False])
def test_a_csv_file_has_each_row_once_and_loses_none_of_another_call(process, tmp_path, is_passed_over):
    path, at = tmp_path / "log.csv", [3]
    path.write_text("" if is_passed_over else "epoch,loss\n0,9.0\n1,9.0\n")  # Rows of another training.
    kill = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: raise_if(epoch in at, Killed()))

    def program():
        model = dense()
        if is_passed_over:
            model.fit(X, Y, epochs=2, verbose=0, callbacks=[keras.callbacks.CSVLogger(path)])
        model.fit(X, Y, epochs=5, verbose=0, callbacks=[keras.callbacks.CSVLogger(path, append=True), kill])

    assert process(program) is None
    at.clear()
    process(program)
    assert [line.partition(",")[0] for line in path.read_text().split()] == ["epoch", *"01", *"01234"]
