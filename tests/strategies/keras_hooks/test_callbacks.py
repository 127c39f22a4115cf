"""A callback of tfdist runs after the user's, in whatever form `fit` gets these."""

import keras
import pytest

from tfdist.strategies.keras_hooks import trainer
from tfdist.strategies.keras_hooks.callbacks import with_callback
from tfdist.strategies.keras_hooks.interface import Readers


class Ours(keras.callbacks.Callback):
    pass


@pytest.mark.parametrize("form", [list, tuple])
def test_several_callbacks(form):
    user, ours = keras.callbacks.TerminateOnNaN(), Ours()
    assert with_callback(ours, None, form([user])) == [user, ours]


def test_one_callback_and_none():
    user, ours = keras.callbacks.TerminateOnNaN(), Ours()
    assert with_callback(ours, None, user) == [user, ours]
    assert with_callback(ours, None, None) == [ours]


def test_a_callback_list_stays_the_same_and_has_the_last_one_only():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    user, first, second = keras.callbacks.TerminateOnNaN(), Ours(), Ours()
    callbacks = keras.callbacks.CallbackList([user], model=model, epochs=2)
    assert with_callback(first, model, callbacks) is callbacks
    assert with_callback(second, model, callbacks) is callbacks
    assert callbacks.callbacks == [user, second]
    assert second.model is model and second.params["epochs"] == 2


class EachBatch(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        pass


@pytest.mark.parametrize(
    ("verbose", "callback", "readers"),
    [
        (0, None, Readers.NOBODY),
        (2, keras.callbacks.EarlyStopping(), Readers.NOBODY),
        (1, None, Readers.PROGRESS_BAR),
        ("auto", None, Readers.PROGRESS_BAR),
        (1, EachBatch(), Readers.CALLBACKS),
        (0, EachBatch(), Readers.CALLBACKS),
        (0, keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None), Readers.NOBODY),
        (0, keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: None), Readers.CALLBACKS),
        (0, keras.callbacks.ModelCheckpoint("model.keras", save_freq=10), Readers.CALLBACKS),
    ],
)
def test_who_reads_the_logs_of_each_step(verbose, callback, readers):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    user = [callback] if callback else []
    callbacks = keras.callbacks.CallbackList(
        user, model=model, add_history=True, add_progbar=verbose != 0, verbose=verbose, epochs=1, steps=3
    )
    assert max(map(trainer._reader, callbacks.callbacks)) == readers
