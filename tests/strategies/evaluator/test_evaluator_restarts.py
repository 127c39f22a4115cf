"""What survives restarts of the chief and the evaluator, and what a full disk does. Both run in this process, one after the other."""

import errno
import json
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.cluster import Task
from tfdist.strategies.checkpoint import data_position
from tfdist.strategies.evaluator import checkpoint_evaluator, chief_callback
from tfdist.strategies.evaluator import folder as folder_module
from tfdist.strategies.evaluator.folder import LAUNCH_VARIABLE, EvaluationFolder
from tfdist.strategies.evaluator.progress import Progress, Status, Training

pytestmark = pytest.mark.slow

X, Y = np.ones((2, 1), "float32"), np.zeros((2, 1), "float32")


@pytest.fixture(autouse=True)
def no_wait(monkeypatch):
    monkeypatch.setattr(checkpoint_evaluator, "POLL_SECONDS", 0.0)


@pytest.fixture
def ends(monkeypatch):
    """What the programs of the chief and the evaluator do when they end, the last one last."""
    ends = []
    monkeypatch.setattr(chief_callback, "at_program_end", ends.append)
    monkeypatch.setattr(checkpoint_evaluator, "at_program_end", ends.append)
    return ends


def model_of(weight):
    """A model whose loss on the data is the square of `weight`."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile("sgd", "mse")
    model.set_weights([np.full((1, 1), weight, "float32")])
    return model


def train(folder, ends, weights, failed=False, disk_is_full=(), first=0):
    """A program of the chief with one `fit`: an epoch per weight. Its checkpoints in `disk_is_full` cannot be written.

    `first` epochs are done, as a backup of the chief has it.
    """
    callback = chief_callback._WriteCheckpoints(chief_callback._Writer(EvaluationFolder(folder), expected=True))
    callback.set_model(model_of(100.0))
    callback.on_train_begin()
    for epoch, weight in enumerate(weights, first):
        callback.set_model(model_of(weight))
        if epoch in disk_is_full:
            callback.model.save_weights = lambda path: _raise(OSError(errno.ENOSPC, "No space left on device", path))
        callback.on_epoch_end(epoch)
    if not failed:
        callback.on_train_end()
    ends.pop()(failed)


def _raise(error):
    raise error


def evaluate(folder, ends, starts=1):
    """A program of the evaluator, started anew `starts` times; returns the losses of its History and the best model's."""
    for _ in range(starts):
        evaluator = checkpoint_evaluator.CheckpointEvaluator(
            tf.distribute.get_strategy(), Task("evaluator", 0), EvaluationFolder(folder), 1.0, True
        )
        end = ends.pop()
        best = keras.callbacks.ModelCheckpoint("best.keras", save_best_only=True)
        arguments = dict.fromkeys(("validation_split", "validation_batch_size", "batch_size", "validation_steps"))
        arguments |= {"validation_data": (X, Y), "callbacks": [best], "verbose": 0}
        try:
            history = evaluator.fit(model_of(100.0), arguments).history["val_loss"]
        except SystemExit as error:
            history = error.code
        end(False)
    state = json.loads((folder / "evaluator" / "state.json").read_text())
    kept = keras.models.load_model(folder / "evaluator" / "best.keras").get_weights()[0].item()
    assert state["best"]["1"]["values"] == [kept**2]
    return history, kept


@pytest.mark.parametrize("starts", [1, 2], ids=["", "the evaluator is restarted"])
def test_the_best_model_survives_a_chief_that_fails_and_is_started_again(tmp_path, ends, starts):
    train(tmp_path, ends, [3.0, 2.0], failed=True)
    assert evaluate(tmp_path, ends, starts) == (75, 2.0)
    train(tmp_path, ends, [5.0, 4.0])
    assert evaluate(tmp_path, ends) == ([9.0, 4.0, 25.0, 16.0], 2.0), "a worse model has replaced the best"


def test_checkpoints_of_a_run_that_failed_are_named_if_they_are_deleted_before_they_are_evaluated(tmp_path, ends, caplog):
    train(tmp_path, ends, [9.0], failed=True)
    assert evaluate(tmp_path, ends)[0] == 75
    train(tmp_path, ends, [8.0, 7.0], failed=True, first=1)
    train(tmp_path, ends, [6.0, 5.0, 4.0, 3.0, 2.0], first=3)  # The evaluator comes back only now.
    assert evaluate(tmp_path, ends)[0] == [81.0, 36.0, 25.0, 16.0, 9.0, 4.0]
    assert "deleted before it could be evaluated: the checkpoint after epoch 2, 3\n" in caplog.text


def test_a_training_after_one_that_has_finished_begins_anew(tmp_path, ends):
    for weights in ([2.0, 3.0], [5.0, 4.0], [7.0, 6.0]):
        train(tmp_path, ends, weights)
        assert evaluate(tmp_path, ends) == ([weight**2 for weight in weights], min(weights))


def test_what_nobody_evaluated_of_a_training_that_has_finished_is_not_taken_for_the_next_one(tmp_path, ends):
    folder = EvaluationFolder(tmp_path)
    train(tmp_path, ends, [1.5, 1.2, 1.0])  # Ctrl-C has ended its evaluator.
    folder.forget_training()
    state = Progress(tmp_path / "evaluator" / "state.json")
    assert Training(folder, state, 1.0).checkpoints(1) == [], "the chief of the next one has not begun"
    train(tmp_path, ends, [3.0, 2.0])
    assert evaluate(tmp_path, ends) == ([9.0, 4.0], 2.0)
    train(tmp_path, ends, [2.5, 2.7], disk_is_full=[1])
    with pytest.raises(OSError, match=r"final\.weights\.h5 is of an earlier training, the chief could not write it"):
        evaluate(tmp_path, ends)


def test_the_launcher_forgets_the_status_of_a_run_that_failed_but_not_its_job(tmp_path, ends):
    folder = EvaluationFolder(tmp_path)
    train(tmp_path, ends, [2.0], failed=True)
    evaluate(tmp_path, ends)
    job = folder.training()[0]["job"]
    folder.forget_training()
    assert folder.training()[0]["run"] is None
    train(tmp_path, ends, [3.0])
    assert folder.training()[0]["job"] == job and evaluate(tmp_path, ends) == ([4.0, 9.0], 2.0)
    folder.forget_training()
    assert folder.training() is None


def test_an_evaluator_that_is_killed_while_it_ends_does_not_wait_for_another_training(tmp_path, ends, monkeypatch):
    def status():
        state = Progress(tmp_path / "evaluator" / "state.json")
        return Training(EvaluationFolder(tmp_path), state, start_timeout=1000.0).look(1)

    monkeypatch.setenv(LAUNCH_VARIABLE, "first")
    train(tmp_path, ends, [2.0])
    assert evaluate(tmp_path, ends) == ([4.0], 2.0)
    assert status() == Status(has_ended=True)
    monkeypatch.setenv(LAUNCH_VARIABLE, "second")
    assert status() == Status(), "the chief of the next launch has not begun"
    monkeypatch.delenv(LAUNCH_VARIABLE)
    assert status() == Status(), "nobody knows whether another training follows"


def test_weights_that_the_chief_could_not_write_for_a_full_disk_are_an_error_that_names_it(tmp_path, ends, caplog):
    train(tmp_path, ends, [2.0, 3.0], disk_is_full=[0, 1])
    with pytest.raises(OSError, match=rf"fit has no trained weights to return: .*could not write it \(OSError: .*No space left on device.*The disk of {tmp_path} has .* GB free; make room"):  # fmt: skip
        evaluate(tmp_path, ends)
    assert "evaluator:0: the chief could not write it (OSError: [Errno 28] No space left" in caplog.text
    assert "the checkpoint after epoch 1, 2" in caplog.text and "deleted" not in caplog.text


def test_a_disk_that_is_full_at_the_end_of_the_training_lets_no_evaluator_wait(tmp_path, ends, monkeypatch):
    on_train_end = chief_callback._WriteCheckpoints.on_train_end

    def after_the_disk_is_full(callback):
        full = OSError(errno.ENOSPC, "No space left on device")
        context.setattr(folder_module, "write_json", lambda path, content: _raise(full))
        on_train_end(callback)

    with monkeypatch.context() as context:
        context.setattr(chief_callback._WriteCheckpoints, "on_train_end", after_the_disk_is_full)
        train(tmp_path, ends, [2.0, 3.0])
    monkeypatch.setattr("tfdist.strategies.evaluator.progress.CHIEF_GONE_SECONDS", 0.0)
    with pytest.raises(OSError, match="of an earlier training, the chief could not write it"):
        evaluate(tmp_path, ends)
    state = json.loads((tmp_path / "evaluator" / "state.json").read_text())
    assert [entry["epoch"] for entry in state["evaluated"]] == [1, 2]
    train(tmp_path, ends, [5.0])  # The next training in this folder.
    assert evaluate(tmp_path, ends)[0] == [25.0]
    assert not list((tmp_path / "tfdist_checkpoints").glob(".*"))


def test_a_fit_in_a_callback_of_another_is_not_counted_because_the_evaluator_does_not_make_it(tmp_path, ends, monkeypatch):
    """As of a probe that is trained on the features of the model after each epoch."""
    data_position.install()
    monkeypatch.setattr(chief_callback, "_writer", chief_callback._Writer(EvaluationFolder(tmp_path), expected=True))
    monkeypatch.setattr(chief_callback, "_strategies", [tf.distribute.get_strategy()])

    def fit(model, **arguments):
        return chief_callback._fit(keras.Model.fit, model, X, Y, verbose=0, **arguments)

    probe = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: fit(model_of(1.0)))
    fit(model_of(2.0), epochs=2, callbacks=[probe])
    assert EvaluationFolder(tmp_path).fit(1)["ended"] and EvaluationFolder(tmp_path).fit(2) is None
    ends.pop()(False)


def test_a_fit_that_is_passed_over_after_a_restart_leaves_the_final_weights_as_they_are(tmp_path, ends, monkeypatch):
    train(tmp_path, ends, [3.0, 2.0])
    final = EvaluationFolder(tmp_path).final(1)
    content = final.read_bytes()
    monkeypatch.setattr(chief_callback.data_position, "current", lambda: SimpleNamespace(is_passed_over=True))
    train(tmp_path, ends, [])
    assert final.read_bytes() == content and EvaluationFolder(tmp_path).fit(1)["ended"]
    final.unlink()
    train(tmp_path, ends, [])
    assert final.exists()
