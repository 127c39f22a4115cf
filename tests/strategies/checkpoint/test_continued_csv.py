"""A CSVLogger writes its rows below the columns that it has, also after a restart."""

import keras
import numpy as np
import pytest
from backup_processes import KillAt, Killed

pytestmark = pytest.mark.slow

X = np.random.default_rng(1).random((64, 3), "float32")


@pytest.mark.parametrize("killed_at", [1, 2])
def test_the_columns_stay_as_they_are_if_a_restart_is_before_an_epoch_with_other_logs(process, tmp_path, killed_at):
    """A name after "val_" in the alphabet: Keras puts the columns of a validation last if the first epoch has none."""

    def program(name, at=99):
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=[keras.metrics.MeanAbsoluteError(name="word_error")], run_eagerly=True)
        callbacks = [keras.callbacks.CSVLogger(tmp_path / name), KillAt(at)]
        model.fit(X, X[:, :1], epochs=4, verbose=0, callbacks=callbacks, validation_data=(X, X[:, 1:2]), validation_freq=2)
        return (tmp_path / name).read_text()

    whole = process(lambda: program("whole.csv"))
    assert process(lambda: program("continued.csv", killed_at)) is None
    assert process(lambda: program("continued.csv")) == whole
    assert whole.startswith("epoch,loss,word_error,val_loss,val_word_error")


@pytest.mark.parametrize("note", ["", "the second call\n"])
def test_a_later_call_that_is_killed_before_its_backup_has_each_row_once(process, tmp_path, note):
    """A row may be written, and the backup of that epoch not yet. What the program writes between its calls stays."""

    class Kill(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise Killed

    def program(name, *last):
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=True)
        for callbacks in ([], last):
            logger = keras.callbacks.CSVLogger(tmp_path / name, append=True)
            model.fit(X, X[:, :1], epochs=2, verbose=0, callbacks=[logger, *callbacks])
            if not callbacks:
                with open(tmp_path / name, "a") as file:
                    file.write(note)
        return (tmp_path / name).read_text()

    whole = process(lambda: program("whole.csv"))
    assert process(lambda: program("continued.csv", Kill())) is None
    expected = whole.splitlines()
    if note:
        expected[4:4] = [expected[4], note.strip()]
    assert process(lambda: program("continued.csv")).splitlines() == expected
