"""Which models are refused when they begin to train, because groups cannot synchronize a weight of theirs."""

from types import SimpleNamespace

import pytest
import tensorflow as tf

from tfdist.strategies.hogwild.replicas import refused_weights
from tfdist.strategies.hogwild.replicas.refused_weights import check_are_real, check_not_own
from tfdist.strategies.hogwild.synchronization.local_variable import Kind


def test_a_weight_of_which_each_group_has_its_own_is_named_when_its_model_begins_to_train(monkeypatch):
    monkeypatch.setattr(refused_weights, "local_variables", lambda value: [value])

    def weight(path, kind, dtype=tf.float32, block=None):
        return SimpleNamespace(path=path, _value=SimpleNamespace(kind=kind, dtype=dtype, block=block))

    fine = [weight("new", Kind.OWN), weight("kernel", Kind.SYNCHRONIZED, block=1), weight("count", Kind.OWN, tf.int32, block=1)]
    check_not_own(SimpleNamespace(name="judge", weights=fine))
    with pytest.raises(ValueError, match=r"judge/mean cannot be synchronized .* train judge first"):
        check_not_own(SimpleNamespace(name="judge", weights=[*fine, weight("judge/mean", Kind.OWN, block=1)]))


def test_a_complex_weight_is_named_where_several_groups_would_each_train_it_by_itself():
    weights = [SimpleNamespace(path="kernel", dtype="float32"), SimpleNamespace(path="waves/phase", dtype="complex64")]
    model = SimpleNamespace(trainable_weights=weights)
    check_are_real(model, 1)
    check_are_real(SimpleNamespace(trainable_weights=weights[:1]), 2)
    with pytest.raises(ValueError, match="waves/phase has the dtype complex64"):
        check_are_real(model, 2)
