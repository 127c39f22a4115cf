"""The optimizer slots with which a group begins whose workers were restarted."""

import threading
from types import SimpleNamespace

import pytest
import tensorflow as tf

from tfdist.strategies.coordinator.members.membership import Membership
from tfdist.strategies.hogwild.replicas import slots_of_others
from tfdist.strategies.hogwild.replicas.local_replicas import LocalReplicas
from tfdist.strategies.hogwild.synchronization.local_variable import Kind


class Replicas:
    """Stands for the replicas of a variable, by device."""

    def __init__(self, values):
        self.values = values

    def read(self, device):
        if device not in self.values:
            raise tf.errors.UnavailableError(None, None, "gone")
        return tf.constant(self.values[device])

    def assign(self, value, device):
        self.values[device] = value.numpy().tolist()


class Block:
    """Stands for a block of one variable with these values, by device."""

    generation, assigned, rates = 0, {}, (1.0, 0.0)

    def __init__(self, kind, is_slot=True):
        self.kind, self.values, self.dirty = kind, {}, set()
        self.on_ps = [7.0, 7.0] if kind is Kind.SYNCHRONIZED else [0.0, 0.0]
        parameters = SimpleNamespace(assign=lambda value: self.on_ps.__setitem__(slice(None), value.numpy().tolist()))
        self.shards, self.sizes, self.dtype = [[SimpleNamespace(parameters=parameters)]], [2], tf.float32
        self.retried = lambda action: action()
        variable = SimpleNamespace(kind=kind, is_slot=is_slot, replica=Replicas(self.values), shape=[2], dtype=tf.float32)
        variable.restored, variable.place = {}, lambda leader: leader
        self.variables = [variable]

    def pull(self, task, owner):
        self.values[f"worker{owner}"] = list(self.on_ps)


@pytest.fixture
def replicas(monkeypatch):
    """`LocalReplicas` of three groups, without a cluster: to pull anew gives zeros."""
    monkeypatch.setattr(slots_of_others.chief_device, "fetched", lambda value: value)
    groups = [SimpleNamespace(number=number, tasks=(number,), devices=[f"worker{number}"]) for number in range(3)]
    made = LocalReplicas.__new__(LocalReplicas)
    made._strategy, made._membership = SimpleNamespace(worker_groups=groups), Membership(groups)
    made.owners = made._membership.owners
    made._locks, made._pulled = [threading.RLock() for _ in groups], {}
    made.control = lambda owner, rates: None
    made.functions = SimpleNamespace(call=lambda task, block, owner, control: block.pull(task, owner))
    return made


def trained(replicas, *blocks):
    """Lets all groups begin, and train until each has its own values."""
    for owner in range(3):
        replicas.refresh(owner, blocks)
    for each in blocks:
        each.values.update({f"worker{owner}": [owner + 1.0, 5.0] for owner in range(3)})


def test_a_restarted_group_gets_the_slots_of_one_that_answers_and_nothing_else_of_it(replicas, caplog):
    slots, others = Block(Kind.OWN), Block(Kind.OWN, is_slot=False)
    trained(replicas, slots, others)
    assert slots.values["worker1"] == [2.0, 5.0]
    replicas._membership.restart(1)
    del slots.values["worker0"]  # That is gone, too, and nobody knows it yet.
    replicas.refresh(1, [slots, others])
    assert slots.values["worker1"] == [3.0, 5.0] and others.values["worker1"] == [0.0, 0.0]
    slots.generation += 1  # The chief has assigned a slot.
    replicas.refresh(1, [slots, others])
    assert slots.values["worker1"] == [0.0, 0.0] and not caplog.records


def test_where_no_group_has_slots_the_averaged_momentum_begins_anew_with_a_warning(replicas, caplog):
    slots, momentum = Block(Kind.OWN), Block(Kind.SYNCHRONIZED)
    trained(replicas, slots, momentum)
    for owner in range(3):
        replicas._membership.restart(owner)
        replicas._membership.leave(owner)
    replicas.refresh(1, [slots, momentum])
    assert "worker group 1 was restarted, and no other one has optimizer slots" in caplog.text
    assert "with those that were loaded or assigned last" in caplog.text  # What is on the ps, not what the chief has read.
    assert (slots.values["worker1"], momentum.values["worker1"]) == ([0.0, 0.0], [0.0, 0.0])
    slots.values["worker1"] = [4.0, 4.0]
    caplog.clear()
    replicas.refresh(2, [slots, momentum])
    assert (slots.values["worker2"], momentum.values["worker2"]) == ([4.0, 4.0], [0.0, 0.0]) and not caplog.records


def test_the_slots_come_with_the_counter_of_their_updates(replicas, caplog):
    """Adam corrects the bias of slots that begin with zeros; it would correct that of slots of thousands of updates."""
    slots, counter = Block(Kind.OWN), Block(Kind.COUNTER, is_slot=False)
    trained(replicas, slots, counter)
    replicas._membership.restart(1)
    replicas.refresh(1, [slots, counter])
    assert (slots.values["worker1"], counter.values["worker1"]) == ([1.0, 5.0], [1.0, 5.0])
    for owner in (0, 2):
        del counter.values[f"worker{owner}"]
    replicas._membership.restart(1)
    replicas.refresh(1, [slots, counter])  # Nobody has one: it begins anew, and this alone needs no warning.
    assert counter.values["worker1"] == [0.0, 0.0] and not caplog.records


def test_a_restarted_group_draws_other_random_numbers_than_before(replicas):
    seeds = Block(Kind.SEED, is_slot=False)
    trained(replicas, seeds)
    drawn = [replicas.refresh(owner, [seeds]) or tuple(seeds.values[f"worker{owner}"]) for owner in range(3)]
    for _ in range(2):
        replicas._membership.restart(1)
        replicas.refresh(1, [seeds])
        drawn.append(tuple(seeds.values["worker1"]))
    assert len(set(drawn)) == len(drawn)
