"""The bytes that worker groups and ps exchange, as the live view shows them."""

from types import SimpleNamespace

import pytest
import tensorflow as tf

from tfdist.strategies.hogwild.strategy import Hogwild
from tfdist.strategies.hogwild.synchronization.local_variable import Kind
from tfdist.strategies.hogwild.traffic import bytes_per_period
from tfdist.synchronization import Synchronization


def strategy(compression=None, affords=True):
    kinds = [each for each in Kind if each is not Kind.SYNCHRONIZED]
    blocks = [
        SimpleNamespace(kind=Kind.SYNCHRONIZED, dtype=tf.float32, sizes=[256, 512], compressed=bool(compression and affords)),
        SimpleNamespace(kind=Kind.SYNCHRONIZED, dtype=tf.float64, sizes=[10], compressed=False),
        SimpleNamespace(kind=Kind.SYNCHRONIZED, dtype=tf.float32, sizes=[20_000], compressed=False),  # Frozen.
        SimpleNamespace(kind=kinds[0], dtype=tf.float32, sizes=[10_000]),
    ]
    return SimpleNamespace(
        synchronization=Synchronization(compression=compression, fragments=2),
        delay=SimpleNamespace(updates=3, between=8),  # The period has grown.
        local_replicas=SimpleNamespace(blocks=blocks),
        synchronized_blocks=blocks[:2],
        steps_per_synchronization=4,
    )


@pytest.mark.parametrize(("compression", "of_float32"), [(None, 4 * 768), ("bf16", 2 * 768), ("int8", 768 + 4 * 3)])
def test_a_period_pushes_and_pulls_every_value_of_the_training_once(compression, of_float32):
    assert bytes_per_period(strategy(compression)) == 2 * (of_float32 + 8 * 10)


def test_the_speed_follows_from_the_steps_of_all_groups():
    shown = Hogwild.exchange(strategy(), 32.0)
    assert shown == {"period": 16, "delay": 3, "compression": None, "bytes_per_second": 2.0 * 2 * (4 * 768 + 80)}
    assert Hogwild.exchange(strategy(), None)["bytes_per_second"] is None


def test_compression_that_the_ps_cannot_afford_is_not_shown():
    assert Hogwild.exchange(strategy("int8"), None)["compression"] == "int8"
    assert Hogwild.exchange(strategy("int8", affords=False), None)["compression"] == "float32"
