"""Steps in flight are counted before a counter is saved or assigned, without a cluster."""

import contextlib
import signal
from types import SimpleNamespace

import pytest

from tfdist.strategies.hogwild.replicas import checkpoint_state
from tfdist.strategies.hogwild.replicas.local_replicas import LocalReplicas
from tfdist.strategies.hogwild.strategy import Hogwild
from tfdist.strategies.hogwild.synchronization.local_variable import Kind, LocalVariable
from tfdist.strategies.hogwild.training_loop import Steps
from tfdist.strategies.runtime import interrupts


def test_they_are_counted_before_a_counter_is_assigned():
    """As when a file is loaded: else its count would grow by steps that its weights do not have."""
    replicas, made = LocalReplicas.__new__(LocalReplicas), []

    @contextlib.contextmanager
    def assigning(variable):
        made.append(variable.kind)
        yield

    replicas.count_steps, replicas.chief = lambda: made.append("counted"), SimpleNamespace(assigning=assigning)
    for kind in (Kind.SYNCHRONIZED, Kind.COUNTER):
        with replicas.assigning(SimpleNamespace(kind=kind)):
            pass
    assert made == [Kind.SYNCHRONIZED, "counted", Kind.COUNTER]


def test_they_are_counted_before_a_save(monkeypatch):
    made = []

    def noting(name):
        return lambda *_: made.append(name)

    monkeypatch.setattr(checkpoint_state, "state_of", noting("saved"))
    replicas = SimpleNamespace(count_steps=noting("counted"), chief=SimpleNamespace(publish=noting("published")))
    strategy = SimpleNamespace(executions=SimpleNamespace(wait_until_idle=noting("idle")), local_replicas=replicas)
    Hogwild.training_state(strategy, None)
    assert made == ["idle", "counted", "published", "saved"]


@pytest.mark.parametrize("is_in_time", [True, False])
def test_a_step_of_train_on_batch_counts_although_ctrl_c_comes_meanwhile(is_in_time):
    done, added = [SimpleNamespace(result=["row"])], []

    def interrupted(execution, seconds):
        raise KeyboardInterrupt

    executions = SimpleNamespace(
        result_of=interrupted,
        wait_for=lambda owner, seconds: is_in_time and seconds > 0,
        wait_for_any=lambda owner: done.pop() if done else None,
    )
    steps = Steps.__new__(Steps)
    steps._trains, steps._executions, steps._add_one = True, executions, added.append
    steps._replicas = SimpleNamespace(train_alone=lambda one: None)
    steps._membership = SimpleNamespace(has_lost_alone=lambda: False, alone=0)
    steps._schedule = lambda batches, owner, group: done[0]
    with pytest.raises(KeyboardInterrupt):
        steps.one_batch("batch")
    assert len(added) == is_in_time
    steps.reset()  # Before the next call nothing is in flight.
    assert len(added) == 1


def test_ctrl_c_while_they_are_added_to_the_counter_of_the_chief_adds_them_once():
    added = []

    def assign_add(updates):
        added.append(updates)
        if len(added) == 1:
            signal.raise_signal(signal.SIGINT)

    counter = LocalVariable.__new__(LocalVariable)
    counter._uncounted, counter._on_chief = 3, SimpleNamespace(assign_add=assign_add)
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        interrupts.keep_out_of_tensorflow()
        with pytest.raises(KeyboardInterrupt):
            counter._counted()
        counter._counted()
    finally:
        signal.signal(signal.SIGINT, previous)
    assert added == [3]
