"""Strategies of TensorFlow that a program makes beside tfdist's."""

import pytest
import tensorflow as tf

from tfdist.strategies.private_api import patches
from tfdist.strategies.runtime import other_strategies


@pytest.fixture
def refused(monkeypatch):
    extended, name = patches.STRATEGY_EXTENDED.owner, patches.STRATEGY_EXTENDED.name
    monkeypatch.setattr(extended, name, getattr(extended, name))
    monkeypatch.setattr(patches.STRATEGY_EXTENDED, "_replacements", [])
    other_strategies.refuse()


@pytest.mark.usefixtures("refused")
def test_strategies_that_would_crash_or_wait_are_refused():
    with pytest.raises(ValueError, match="a cluster, of which MirroredStrategy knows nothing; in its place use "):
        tf.distribute.MirroredStrategy()
    assert tf.distribute.OneDeviceStrategy("/cpu:0").num_replicas_in_sync == 1


@pytest.mark.usefixtures("refused")
def test_those_of_tfdist_are_not():
    own = type("Mirrored", (tf.distribute.MirroredStrategy,), {"__module__": "tfdist.strategies.data_parallel.mirrored"})
    assert own(["/cpu:0"]).num_replicas_in_sync == 1


def test_those_that_were_made_before_and_hold_the_address_of_the_task_are_named():
    other_strategies.refuse_earlier()
    earlier = tf.distribute.MultiWorkerMirroredStrategy()
    with pytest.raises(ValueError, match="has made a MultiWorkerMirroredStrategy of TensorFlow's before "):
        other_strategies.refuse_earlier()
    assert earlier.num_replicas_in_sync == 1
