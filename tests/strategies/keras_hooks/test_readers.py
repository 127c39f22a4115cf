"""Who reads the logs of each step of `fit`, as Keras' list of callbacks tells a strategy."""

from types import SimpleNamespace

import keras
import pytest

from tfdist.strategies.keras_hooks import trainer
from tfdist.strategies.keras_hooks.interface import Readers


class Uncounted(keras.callbacks.Callback):
    tfdist_reads_batches = False

    def on_train_batch_end(self, batch, logs=None):
        pass


def progress_bar(verbose):
    bar = keras.callbacks.ProgbarLogger()
    bar.set_params({"verbose": verbose, "epochs": 1, "steps": 1})
    return bar


@pytest.mark.parametrize(
    ("callbacks", "readers"),
    [
        ([], Readers.NOBODY),
        ([progress_bar(0)], Readers.NOBODY),
        ([progress_bar(2), Uncounted(), keras.callbacks.EarlyStopping()], Readers.NOBODY),
        ([progress_bar(1), Uncounted()], Readers.PROGRESS_BAR),
        ([keras.callbacks.LambdaCallback(on_train_batch_end=print), progress_bar(1)], Readers.CALLBACKS),
        ([keras.callbacks.LambdaCallback(on_epoch_end=print), progress_bar(1)], Readers.PROGRESS_BAR),
    ],
)
def test_a_strategy_hears_who_reads_the_logs_of_each_step(callbacks, readers):
    heard = []
    hooks = SimpleNamespace(begin_epoch=lambda model, who: heard.append(who))
    strategy = SimpleNamespace(tfdist_hooks=hooks)
    listed = SimpleNamespace(callbacks=callbacks, model=SimpleNamespace(distribute_strategy=strategy))
    trainer._begin_epoch(lambda *_: None, listed, 0)
    assert heard == [readers]
