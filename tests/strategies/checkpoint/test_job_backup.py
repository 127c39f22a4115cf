"""tfdist's own backup: a job that is started again goes on as if nothing had happened.

The data and the files are tested in this process, with an exception in place of the kill, and the restart on clusters.
"""

import json
import os
import shutil
import subprocess
from types import SimpleNamespace

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from backup_processes import Killed
from support_paths import PROGRAMS

from tfdist.errors import ClusterError
from tfdist.strategies.checkpoint import callback_states, generations, memory_file, strategy_state
from tfdist.strategies.checkpoint.backup_file import Arrays, BackupFile, Progress
from tfdist.strategies.checkpoint.fit_start import FitStart
from tfdist.strategies.checkpoint.model_backup import ModelBackup

X = np.random.default_rng(1).random((50, 3), "float32")
Y = X.sum(axis=1, keepdims=True)


class Kill(keras.callbacks.Callback):
    """Raises after some steps."""

    def __init__(self, steps):
        super().__init__()
        self.left = steps

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            raise Killed


class Sequence(keras.utils.PyDataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return X[index * 6 : index * 6 + 6], Y[index * 6 : index * 6 + 6]


class Noise(keras.layers.Layer):
    """Adds random numbers of TensorFlow's generator, the more the later the step is."""

    def __init__(self):
        super().__init__()
        self.generator = tf.random.Generator.from_seed(3)
        self.steps = tf.Variable(0, trainable=False)

    def call(self, x, training=False):
        if not training:
            return x
        self.steps.assign_add(1)
        return x + 0.001 * tf.cast(self.steps, x.dtype) * self.generator.normal(tf.shape(x))


def generator():
    while True:
        for begin in range(0, 44, 5):
            yield X[begin : begin + 6], Y[begin : begin + 6]


def shuffled():
    return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(50)


DATA = {
    "arrays": lambda: {"x": X, "y": Y, "batch_size": 8},
    "a shuffled dataset": lambda: {"x": shuffled().batch(8)},
    "a dataset that repeats": lambda: {"x": shuffled().batch(8).repeat(), "steps_per_epoch": 5},
    "a dataset of unknown size": lambda: {"x": shuffled().filter(lambda x, y: True).batch(8)},
    "a PyDataset": lambda: {"x": Sequence()},
    "a generator": lambda: {"x": generator(), "steps_per_epoch": 6},
}


@pytest.fixture
def program(process, tmp_path, monkeypatch):
    """`program(folder, frequency, data, killed_after)`: a process that trains; returns what it has, None if it was killed."""

    def train(folder, data, killed_after, epochs=5, steps_per_execution=1, callbacks=()):
        hidden = [keras.layers.Dense(4), keras.layers.Dropout(0.2), Noise()]
        model = keras.Sequential([keras.Input((3,)), *hidden, keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"], steps_per_execution=steps_per_execution)
        early = keras.callbacks.EarlyStopping("loss", patience=50, restore_best_weights=True)
        fall = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.9 * rate)
        callbacks = [keras.callbacks.CSVLogger(f"{folder}.csv"), early, fall, *callbacks, Kill(killed_after)]
        history = model.fit(epochs=epochs, verbose=0, callbacks=callbacks, **data())
        again = model.fit(X, Y, epochs=2, verbose=0, callbacks=[callbacks[-1]])
        return {
            "epochs": [history.epoch, again.epoch],
            "history": [history.history, again.history],
            "weights": [weight.tolist() for weight in model.get_weights()],
            "iterations": int(model.optimizer.iterations.numpy()),
            "best": early.best_epoch,
            "csv": (tmp_path / f"{folder}.csv").read_text(),
        }

    def run(folder, frequency, data, killed_after=0, **options):
        monkeypatch.chdir(tmp_path)
        return process(lambda: train(folder, data, killed_after, **options), folder=folder, frequency=frequency)

    return run


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("kind", "frequency"),
    [
        ("arrays", 3),
        ("a shuffled dataset", 3),
        ("a generator", 3),
        ("a dataset that repeats", "epoch"),
        *(
            pytest.param(kind, 3, marks=pytest.mark.release)
            for kind in ("a dataset that repeats", "a dataset of unknown size", "a PyDataset")
        ),
    ],
)
def test_a_training_that_is_started_again_ends_as_one_that_was_not_interrupted(program, kind, frequency):
    whole = program("whole", frequency, DATA[kind])
    assert program("interrupted", frequency, DATA[kind], killed_after=19) is None
    assert program("interrupted", frequency, DATA[kind]) == whole


@pytest.mark.cluster
def test_it_may_be_killed_often_and_in_a_later_fit_and_several_steps_may_be_one_execution(program, caplog):
    data = DATA["a shuffled dataset"]
    whole = program("whole", 4, data, steps_per_execution=2)
    for steps in (3, 12, 9, 2):
        assert program("interrupted", 4, data, killed_after=steps, steps_per_execution=2) is None
    assert "fit 1 of " in caplog.text and "was finished before the restart" in caplog.text
    assert program("interrupted", 4, data, steps_per_execution=2) == whole


def test_the_state_of_a_strategy_is_in_the_backup_and_in_weights_that_are_saved(tmp_path):
    strategy_state.install()
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model._distribute_strategy = SimpleNamespace(training_state=lambda model: {"own/1": np.arange(3)})
    file = BackupFile(tf.distribute.get_strategy(), str(tmp_path / "backup" / "model"))
    file.write(model, Progress(1, {}), Arrays())
    file.wait()
    (tmp_path / "model.weights.h5").write_bytes(memory_file.save_weights(model).getvalue())
    assert generations.damage(file.path) is None
    for path in (file.path, tmp_path / "model.weights.h5"):
        with h5py.File(path) as saved:
            assert saved[f"{strategy_state.NAME}/own/1"][()].tolist() == [0, 1, 2], path


def test_a_state_of_any_dtype_comes_back_as_it_was(tmp_path):
    strategy_state.install()
    dtypes = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "bool"]
    values = np.array([[1.0, -3.0], [0.0, 0.0078125]])
    saved = {f"own/{name}": values.astype(tf.as_dtype(name).as_numpy_dtype) for name in dtypes}
    saved["own/scalar"] = saved["own/bfloat16"][0, 1]
    model, restored = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]), {}
    model.compile("sgd", "mse")
    model._distribute_strategy = SimpleNamespace(
        training_state=lambda model: saved, set_training_state=lambda model, state: restored.update(state)
    )
    path = tmp_path / "model.weights.h5"
    path.write_bytes(memory_file.save_weights(model).getvalue())
    with h5py.File(path, "a") as file:
        file[f"{strategy_state.NAME}/without_attribute"] = saved["own/bfloat16"]  # As earlier versions saved them.
    model.load_weights(path)
    np.testing.assert_array_equal(restored.pop("without_attribute"), saved["own/bfloat16"])
    assert restored.keys() == saved.keys()
    for name, value in saved.items():
        assert restored[name].dtype == value.dtype, name
        np.testing.assert_array_equal(restored[name], value, name)


@pytest.mark.cluster
def test_a_damaged_backup_gives_way_to_the_one_before_it_and_two_damaged_ones_to_a_new_beginning(program, tmp_path, caplog):
    data = DATA["arrays"]
    whole = program("whole", 3, data)
    assert program("interrupted", 3, data, killed_after=19) is None
    latest, earlier = (tmp_path / "interrupted" / f"tfdist-model-1.{name}weights.h5" for name in ("", "earlier."))
    content = latest.read_bytes()
    latest.write_bytes(content[:5000] + b"\0\xff" + content[5002:])
    assert program("interrupted", 3, data, killed_after=1) is None
    assert f"{latest} was changed after it was written: its checksum differs; the training continues from" in caplog.text
    for path in (latest, earlier):
        path.write_bytes(path.read_bytes()[:3000])
    assert program("interrupted", 3, data) == whole
    assert f"{latest} cannot be read (" in caplog.text and "the training begins anew" in caplog.text


@pytest.mark.cluster
def test_a_full_disk_leaves_the_backup_whole_and_the_training_goes_on(program, tmp_path, caplog):
    data = DATA["arrays"]
    whole = program("whole", "epoch", data)
    assert program("interrupted", "epoch", data, killed_after=19) is None
    (tmp_path / "interrupted").rename(tmp_path / "copy")
    (tmp_path / "interrupted").mkdir()
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", "interrupted"], cwd=tmp_path).returncode
    ):
        pytest.skip("a small file system needs root")
    try:
        shutil.copytree(tmp_path / "copy", tmp_path / "interrupted", dirs_exist_ok=True)
        assert program("interrupted", "epoch", data, killed_after=19) is None
        left = {path.name: path.read_bytes() for path in (tmp_path / "interrupted").iterdir()}
    finally:
        subprocess.run(["umount", "--lazy", "interrupted"], cwd=tmp_path, check=True)  # This process has it locked.
    assert left == {path.name: path.read_bytes() for path in (tmp_path / "copy").iterdir()}
    (tmp_path / "interrupted").rmdir()
    (tmp_path / "copy").rename(tmp_path / "interrupted")
    assert "cannot be written, and stays as it was: " in caplog.text
    assert program("interrupted", "epoch", data) == whole


def test_a_folder_that_cannot_be_written_is_named_before_the_training(tmp_path, process, caplog):
    (tmp_path / "file").touch()
    assert "/file/backup cannot be written: as long" in process(lambda: caplog.text, folder="file/backup")
    caplog.clear()
    assert process(lambda: caplog.text, folder="folder/backup") == ""


def test_a_folder_that_can_never_be_written_is_not_named_after_every_step(tmp_path, caplog):
    (tmp_path / "file").touch()
    backup = BackupFile(tf.distribute.get_strategy(), str(tmp_path / "file" / "model"))
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    for _ in range(9):
        backup.write(model, Progress(1, {}), Arrays())
    assert not backup.wait()
    warned = [
        record.getMessage() for record in caplog.records if "cannot be written, and stays as it was" in record.getMessage()
    ]
    assert len(warned) == 4 and "stays as it was (8 times in sequence): " in warned[-1]


@pytest.mark.cluster
def test_a_backup_of_another_fit_is_left_alone(program, caplog):
    data = DATA["arrays"]
    assert program("interrupted", "epoch", data, killed_after=19) is None
    assert program("interrupted", "epoch", data, epochs=3) == program("whole", "epoch", data, epochs=3)
    assert "of a fit with epochs=5, initial_epoch=0, and this one has epochs=3, initial_epoch=0: it begins anew" in caplog.text


class Stops(keras.callbacks.Callback):
    """Stops a fit in the middle of its second epoch. The validation of that is killed."""

    def on_train_batch_end(self, batch, logs=None):
        if self.model.optimizer.iterations == 10:
            self.model.stop_training = True

    def on_test_begin(self, logs=None):
        if self.model.stop_training:
            raise Killed


def test_a_fit_that_has_stopped_in_an_epoch_stops_there_again_after_a_restart(program, monkeypatch):
    data = {"x": X, "y": Y, "batch_size": 8, "validation_data": (X, Y)}
    stops = Stops()
    assert program("stopped", 3, lambda: data, callbacks=[stops]) is None
    monkeypatch.setattr(Stops, "on_test_begin", lambda *_: None)
    result = program("stopped", 3, lambda: data, callbacks=[stops])
    assert result["epochs"][0] == [0, 1] and result["iterations"] == 10 + 2 * 2


class Losses(keras.callbacks.History):
    """Keras returns it from `fit` in place of its own."""


def test_a_history_of_a_class_of_the_users_own_is_saved(tmp_path):
    backup = ModelBackup(BackupFile(tf.distribute.get_strategy(), str(tmp_path / "model-1")), None)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    history = model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0, callbacks=[Losses()])
    assert isinstance(history, Losses)
    backup.begin(FitStart(1, 0))
    backup.end(model, history)
    assert backup.file.wait()
    assert backup.file.progress().finished_fits[0][:2] == [[0], history.history]


@pytest.mark.parametrize("is_exact", [True, False])
def test_a_backup_of_another_optimizer_is_refused_although_its_variables_have_the_same_shapes(tmp_path, is_exact):
    backup = ModelBackup(BackupFile(tf.distribute.get_strategy(), str(tmp_path / "model-1")), None)
    models = [keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]) for _ in range(2)]
    for model, optimizer in zip(models, (keras.optimizers.SGD(momentum=0.9), keras.optimizers.Adagrad()), strict=True):
        model.compile(optimizer, "mse")
        model.optimizer.build(model.trainable_variables)
    backup._save(models[0], 1, 0, None)
    assert backup.file.wait()
    backup.file.load(models[0], is_exact=is_exact)
    if is_exact:
        with pytest.raises(
            ClusterError, match=r"model-1\S+ is not of this model \(it was trained with SGD and has Adagrad\); name another"
        ):
            backup.file.load(models[1])
    else:  # The weights of a call of `fit` that is over, which only the program reads.
        backup.file.load(models[1], is_exact=False)


@pytest.mark.cluster
def test_a_model_that_cannot_be_saved_trains_with_a_warning(program, tmp_path, monkeypatch, caplog):
    def refuse(*_, **__):
        raise NotImplementedError("no weights")

    monkeypatch.setattr(keras.layers.Dense, "save_own_variables", refuse)
    program("whole", 3, DATA["arrays"], epochs=2)
    assert caplog.text.count("trains without a backup, because its weights cannot be saved: no weights") == 1


CLUSTERS = {
    "multi_worker_mirrored": (["-n", "2"], "worker:1", ["worker-0", "worker-1"]),
    "mirrored": (
        ["--cluster", "cluster { nworker_groups: 1 nworkers_per_group: 2 nworkers_per_procs: 2 }"],
        "worker:0",
        ["worker-0"],
    ),
    "parameter_server": (["--cluster", '{"chief": 1, "worker": 2, "ps": 1}'], "ps:0", ["chief-0"]),
    "hogwild": (
        ["--cluster", '{"chief": 1, "worker": 2, "ps": 1}', "--strategy", "hogwild", "--sync_period", "2"],
        "chief:0",
        ["chief-0"],
    ),
}


@pytest.mark.cluster
@pytest.mark.parametrize(
    "strategy",
    [pytest.param(name, marks=pytest.mark.release) if "mirrored" in name else name for name in CLUSTERS],
)
def test_a_job_is_started_again_by_itself_and_nothing_is_lost(start, tmp_path, read_json, strategy):
    flags, killed, trained = CLUSTERS[strategy]
    program = str(PROGRAMS / "restarted.py")
    flags = [*flags, "--max_restarts", "1", "--backup_freq", "3", "--log_dir", "logs", "--summary", "summary.json"]
    job = start("-m", "tfdist", "run", *flags, program, killed, "26")
    assert job.wait(120) == 0, job.output
    assert f"{killed} failed first: it was killed by SIGKILL; all tasks are started again (restart 1 of 1)" in job.output
    assert "fit 1 of net continues after 2 epochs" in job.output
    for task in trained:
        out = read_json(f"out-{task}.json")
        interrupted, whole = out["interrupted"], out["whole"]
        assert interrupted["epochs"] == [0, 1, 2, 3] and interrupted["iterations"] == 40
        assert interrupted["own_iterations"] == 40
        assert interrupted["history"]["examples"] == [60.0] * 4
        if "mirrored" in strategy:
            assert interrupted == whole
    if "mirrored" in strategy:
        assert (tmp_path / "interrupted.csv").read_text() == (tmp_path / "whole.csv").read_text()
    assert not (tmp_path / "logs" / "backup").exists()
    assert out["resumed_at"] - float((tmp_path / "killed").read_text()) < 30
    assert json.loads((tmp_path / "summary.json").read_text())["restarts"] == 1
    assert job.left() == {}


@pytest.mark.skipif(not hasattr(keras.callbacks, "OrbaxCheckpoint"), reason="an older version of Keras")
def test_the_counters_of_an_orbax_checkpoint_are_saved():
    before, after = (keras.callbacks.OrbaxCheckpoint.__new__(keras.callbacks.OrbaxCheckpoint) for _ in range(2))
    before.best, before._batches_seen_since_last_saving, before._last_batch_seen, before._total_batches_seen = 0.5, 3, 7, 27
    callback_states.restore([after], *callback_states.states([before]))
    assert vars(after) == vars(before)
