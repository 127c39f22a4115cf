"""Backups that a program finds after a restart and cannot simply load: of other models and optimizers, or of other versions.

The processes run here one after the other, with an exception in place of the kill.
"""

import json

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from backup_processes import KillAt

from tfdist.errors import ClusterError
from tfdist.strategies.checkpoint import generations, job_backup
from tfdist.strategies.checkpoint.environment import FOLDER

pytestmark = pytest.mark.slow

X = np.random.default_rng(1).random((32, 3), "float32")
Y = X.sum(axis=1, keepdims=True)


class Part(keras.Model):
    """A model whose optimizer of `compile` updates one of its layers; one of its own, the other: a GAN in small."""

    def __init__(self):
        super().__init__(name="part")
        self.first, self.second = keras.layers.Dense(2), keras.layers.Dense(1)
        self.own = keras.optimizers.Adam(0.02)

    def call(self, x):
        return self.second(self.first(x))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        for optimizer, layer in ((self.optimizer, self.first), (self.own, self.second)):
            optimizer.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)
        return {"loss": loss}


def states(model):
    held = [*model.weights, *model.optimizer.variables, *getattr(getattr(model, "own", None), "variables", ())]
    return [np.asarray(variable.numpy()).tolist() for variable in held]


def trained(make, optimizer, killed_at=99, epochs=3):
    def program():
        keras.utils.set_random_seed(5)
        model = make()
        model.compile(optimizer(), "mse", run_eagerly=True)
        model.fit(X, Y, epochs=1, verbose=0)
        between = states(model)
        model.fit(X, Y, epochs=epochs, verbose=0, callbacks=[KillAt(killed_at)])
        return between, states(model)

    return program


def dense(*units):
    return lambda: keras.Sequential([keras.layers.Dense(each) for each in units], name="net")


@pytest.mark.parametrize("ema", [False, True])
def test_an_optimizer_that_updates_a_part_of_a_model_that_is_not_built_continues(process, ema):
    def adam():
        return keras.optimizers.Adam(0.01, use_ema=ema)

    whole = process(trained(Part, adam))
    assert process(trained(Part, adam, killed_at=1)) is None
    assert process(trained(Part, adam)) == whole
    assert whole[1][4] == 4  # Updates: one for each epoch.


class WithoutCall(Part):
    """The same whose `train_step` calls the layers: the model itself has no `call`, and Keras cannot build it."""

    call = keras.Model.call

    def __init__(self):
        super().__init__()
        self.first.build((None, 3))
        self.second.build((None, 2))

    def __call__(self, x):
        return self.second(self.first(x))


def test_a_model_without_call_continues(process):
    def program(killed_at=99):
        keras.utils.set_random_seed(5)
        model = WithoutCall()
        model.compile(keras.optimizers.Adam(0.01), run_eagerly=True)
        model.fit(X, Y, epochs=3, verbose=0, callbacks=[KillAt(killed_at)])
        return states(model)

    whole = process(program)
    assert process(lambda: program(1)) is None
    assert process(program) == whole
    assert whole[4] == 3  # Updates: one for each epoch.


class Autoencoder(keras.Model):
    """Its `train_step` takes no targets."""

    def __init__(self):
        super().__init__(name="autoencoder")
        self.dense = keras.layers.Dense(3)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - x) ** 2)
        variables = self.dense.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


class AutoencoderWithoutCall(Autoencoder):
    """As that of Keras' guide."""

    call = keras.Model.call

    def __init__(self):
        super().__init__()
        self.dense.build((None, 3))

    def __call__(self, x):
        return self.dense(x)


@pytest.mark.parametrize(
    "make, targets, loss",
    [(Autoencoder, None, None), (AutoencoderWithoutCall, None, None), (Autoencoder, X[:, :2], "categorical_crossentropy")],
)
def test_a_model_whose_own_step_gets_no_targets_or_others_than_its_loss_takes_continues(process, make, targets, loss):
    def program(killed_at=99):
        model = make()
        model.compile(keras.optimizers.Adam(0.01), loss, run_eagerly=True)
        model.fit(X, targets, epochs=3, verbose=0, callbacks=[KillAt(killed_at)])
        return states(model)

    whole = process(program)
    assert process(lambda: program(1)) is None
    assert process(program) == whole


ADAM = keras.optimizers.Adam


@pytest.mark.parametrize(
    "before, after, message",
    [
        ((dense(2, 1), ADAM), (dense(2, 1), lambda: keras.optimizers.SGD(0.001)), "was trained with Adam and has SGD"),
        ((dense(2, 1), ADAM), (dense(2, 1), keras.optimizers.Adamax), "was trained with Adam and has Adamax"),
        ((dense(2, 1), ADAM), (dense(2, 1), lambda: ADAM(amsgrad=True)), "Adam had 10 variables and has 14"),
        ((dense(2, 1, 1), ADAM), (dense(2, 1), ADAM), "it had 6 weights and has 4"),
        (
            (dense(2, 1), ADAM),
            (dense(4, 1), ADAM),
            r"it had weights of the shapes \(2, 1\), \(2,\), \(3, 2\) and has \(3, 4\), \(4, 1\), \(4,\) in their place",
        ),
    ],
)
def test_a_backup_of_another_model_or_optimizer_is_refused(process, before, after, message):
    assert process(trained(*before, killed_at=1)) is None
    with pytest.raises(ClusterError, match=f"not of this model .*{message}.*remove"):
        process(trained(*after))


def test_a_second_call_may_have_another_optimizer_than_the_first(process):
    def program(killed_at=99):
        keras.utils.set_random_seed(5)
        model = dense(1)()
        for optimizer, epoch in (("adam", 99), ("sgd", killed_at)):
            model.compile(optimizer, "mse", run_eagerly=True)
            model.fit(X, Y, epochs=3, verbose=0, callbacks=[KillAt(epoch)])
        return states(model)

    whole = process(program)
    assert process(lambda: program(1)) is None
    assert process(program) == whole


def test_the_learning_rate_of_the_backup_stays_and_a_warning_says_so(process, caplog):
    def program(rate, killed_at=99):
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)], name="net")
        model.compile(keras.optimizers.SGD(rate), "mse", run_eagerly=True)
        model.fit(X, Y, epochs=2, verbose=0, callbacks=[KillAt(killed_at)])
        return float(model.optimizer.learning_rate)

    assert process(lambda: program(0.5, 1)) is None
    assert process(lambda: program(0.25)) == 0.5
    assert (
        "fit 1 of net differs from the one before the restart (learning_rate was 0.5 and is 0.25), which was not finished: it "
        "continues, with the learning rate of the backup" in caplog.text
    )


def test_the_backup_before_the_latest_is_used_if_the_latest_is_gone(process, tmp_path, caplog):
    program = trained(dense(1), ADAM)
    whole = process(program)
    assert process(trained(dense(1), ADAM, killed_at=2)) is None
    (tmp_path / "backup" / "tfdist-model-1.weights.h5").unlink()
    assert process(program) == whole
    assert "continues after 1 epochs" in caplog.text


def test_a_backup_of_another_version_is_refused(process, tmp_path):
    assert process(trained(dense(1), ADAM, killed_at=2)) is None
    path = tmp_path / "backup" / "tfdist-model-1.weights.h5"
    path.write_bytes(path.read_bytes()[: -generations._SEAL_BYTES])
    with h5py.File(path, "a") as file:
        values = {**json.loads(file["tfdist_progress"][()]), "later": 1}
        del file["tfdist_progress"]
        file["tfdist_progress"] = json.dumps(values)
    with pytest.raises(ValueError, match="written by another version of tfdist"):
        process(trained(dense(1), ADAM))


def test_other_files_of_the_program_in_the_folder_stay(tmp_path):
    backups = job_backup._Backups(tf.distribute.get_strategy(), str(tmp_path), None)
    own = {
        "model-1.weights.h5",
        "tfdist-model-best.weights.h5",
        "tfdist-model-1.best.weights.h5",
        "tfdist-model-2.weights.h5.old",
    }
    for name in (*own, *(f"tfdist-model-1.{each}weights.h5" for each in ("", "earlier.", "fit-12."))):
        (tmp_path / name).touch()
    backups.end(failed=False)
    assert {path.name for path in tmp_path.iterdir()} == own


def of_two_strategies(killed_at):
    model = keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(1)], name="first")
    model.compile("sgd", "mse", run_eagerly=True)
    model.fit(X, Y, epochs=2, verbose=0)
    other = tf.distribute.OneDeviceStrategy("/cpu:0")  # As `tfdist.strategy()`, called again, returns another `mirrored`.
    job_backup.install(other)
    with other.scope():
        second = keras.Sequential([keras.layers.Dense(1)], name="second")
        second.compile("sgd", "mse", run_eagerly=True)
    begun = []
    note = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: begun.append(epoch))
    second.fit(X, Y, epochs=4, verbose=0, callbacks=[note, KillAt(killed_at)])
    return begun


def test_a_notebook_that_names_the_folder_again_trains_again(process, monkeypatch):
    """Who runs a cell once more has no earlier process."""

    def program(killed_at=99):
        epochs = []
        for _ in range(2):
            monkeypatch.setenv(FOLDER, job_backup._backups.folder)
            job_backup.install(tf.distribute.get_strategy())
            model = dense(1)()
            model.compile("sgd", "mse", run_eagerly=True)
            epochs.append(model.fit(X, Y, epochs=3, verbose=0, callbacks=[KillAt(killed_at if epochs else 99)]).epoch)
            epochs.append(int(model.optimizer.iterations))
        return epochs

    assert process(program) == [[0, 1, 2], 3] * 2
    assert process(lambda: program(killed_at=1)) is None
    assert process(program) == [[0, 1, 2], 3] * 2


def test_models_of_each_strategy_of_a_program_have_backups(process):
    assert process(lambda: of_two_strategies(2)) is None
    assert process(lambda: of_two_strategies(9)) == [2, 3]
