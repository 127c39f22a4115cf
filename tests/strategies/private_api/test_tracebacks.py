"""An error in a program shows the program's own frames, as it does under Keras alone."""

import traceback

import keras
import numpy as np
import pytest

import tfdist
from tfdist.cluster import Cluster, Task
from tfdist.errors import Source, UnsupportedVersionError
from tfdist.strategies.private_api.checks import need_attributes
from tfdist.strategies.private_api.patch_point import PatchPoint

ONES = np.ones((8, 1), "float32")


def fit(strategy, callback):
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(ONES, ONES, verbose=0, callbacks=[callback])


def fails(epoch, logs=None):
    raise KeyError("mine")


def functions_in(error):
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


@pytest.fixture
def strategy():
    return tfdist.strategy(Cluster((Task("chief", 0),), source=Source("python", "a test")))


def test_an_error_in_a_callback_has_one_frame_more_than_under_keras_alone(strategy):
    with pytest.raises(KeyError) as caught:
        fit(strategy, keras.callbacks.LambdaCallback(on_epoch_begin=fails))
    assert functions_in(caught.value)[1:] == ["fit", "replaced", "error_handler", "fails"]


def test_all_frames_are_shown_if_the_user_asks_keras_for_them(strategy):
    keras.config.disable_traceback_filtering()
    try:
        with pytest.raises(KeyError) as caught:
            fit(strategy, keras.callbacks.LambdaCallback(on_epoch_begin=fails))
    finally:
        keras.config.enable_traceback_filtering()
    assert len(functions_in(caught.value)) > 10


def test_an_error_of_tfdist_says_where_it_was_raised():
    class Trainer:
        def fit(self):
            pass

    Trainer.__module__ = "keras.fake"
    PatchPoint(Trainer, "fit", "self", "a test").patch(lambda original, trainer: need_attributes(Trainer, "_renamed"))
    with pytest.raises(UnsupportedVersionError) as caught:
        Trainer().fit()
    assert functions_in(caught.value) == [*functions_in(caught.value)[:1], "replaced", "<lambda>", "need_attributes"]
