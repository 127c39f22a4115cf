"""Steps in flight are counted before a counter is saved or assigned, without a cluster."""

import contextlib
from types import SimpleNamespace

from tfdist.strategies.hogwild.replicas import checkpoint_state
from tfdist.strategies.hogwild.replicas.local_replicas import LocalReplicas
from tfdist.strategies.hogwild.strategy import Hogwild
from tfdist.strategies.hogwild.synchronization.local_variable import Kind


def test_they_are_counted_before_a_counter_is_assigned():
    """As when a file is loaded: else its count would grow by steps that its weights do not have."""
    replicas, made = LocalReplicas.__new__(LocalReplicas), []

    @contextlib.contextmanager
    def assigning(variable):
        made.append(variable.kind)
        yield

    replicas.count_steps, replicas._chief = lambda: made.append("counted"), SimpleNamespace(assigning=assigning)
    for kind in (Kind.SYNCHRONIZED, Kind.COUNTER):
        with replicas.assigning(SimpleNamespace(kind=kind)):
            pass
    assert made == [Kind.SYNCHRONIZED, "counted", Kind.COUNTER]


def test_they_are_counted_before_a_save(monkeypatch):
    made = []

    def noting(name):
        return lambda *_: made.append(name)

    monkeypatch.setattr(checkpoint_state, "state_of", noting("saved"))
    replicas = SimpleNamespace(count_steps=noting("counted"), publish=noting("published"))
    strategy = SimpleNamespace(executions=SimpleNamespace(wait_until_idle=noting("idle")), local_replicas=replicas)
    Hogwild.training_state(strategy, None)
    assert made == ["idle", "counted", "published", "saved"]
