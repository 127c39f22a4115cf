"""What a ps that has been restarted gets back, by what the groups know."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from tfdist.cluster import Task
from tfdist.strategies.coordinator.members import server_recovery
from tfdist.strategies.coordinator.members.server_recovery import ServerRecovery
from tfdist.strategies.hogwild.replicas import lost_shards
from tfdist.strategies.hogwild.replicas.local_replicas import LocalReplicas
from tfdist.strategies.hogwild.synchronization.global_parameters import ParameterBlock
from tfdist.strategies.hogwild.synchronization.local_variable import Kind

PS = [Task("ps", index, host=f"p{index}", port=1) for index in range(2)]


class Variable:
    """Stands for a variable on a ps."""

    def __init__(self):
        self.value = None

    def assign(self, value):
        self.value = np.array(value)


class Shard:
    """Stands for a shard."""

    def __init__(self, device, in_rounds):
        self.device = device
        self.parameters = Variable()
        self.state = {"momentum": Variable(), "round": Variable()} if in_rounds else {}
        self.initialized = 0

    def initialize(self):
        self.initialized += 1


def cluster(monkeypatch, known, kind=Kind.SYNCHRONIZED, in_rounds=True, servers=PS, restarted=None, pulled=(0, 1, 2)):
    """Returns a strategy with one block of 4 values on 2 servers, which `pulled` have pulled and the groups know as `known`."""
    restarted = [] if restarted is None else restarted
    shards = [Shard(server_recovery.device_of(task), in_rounds) for task in servers]
    values = np.arange(4, dtype="float32")
    block = SimpleNamespace(kind=kind, values=values, parts=[slice(0, 2), slice(2, 4)], shards=[shards], generation=0)
    monkeypatch.setattr(lost_shards, "_ask", lambda strategy, block, groups: known if groups else {})
    return shards, SimpleNamespace(
        local_replicas=SimpleNamespace(blocks=[block], have_pulled=lambda block: pulled),
        servers_of=lambda group: 0,
        worker_groups=[SimpleNamespace(number=0, tasks=(0,)), SimpleNamespace(number=1, tasks=(1, 2))],
        membership=SimpleNamespace(restart=restarted.append),
        steps_per_synchronization=4,
        synchronization=SimpleNamespace(fragments=2),
    )


def known(values, rounds):
    return SimpleNamespace(values=np.float32(values), rounds=np.int64(rounds))


def test_the_lost_shard_is_the_mean_of_the_groups_that_know_the_latest_round(monkeypatch, caplog):
    groups = {0: known([9, 9, 1, 2], [8, 5]), 1: known([9, 9, 3, 4], [8, 5]), 2: known([9, 9, 70, 70], [8, 4])}
    shards, strategy = cluster(monkeypatch, groups)
    lost_shards.restore(strategy, PS[1:])
    assert shards[1].parameters.value.tolist() == [2.0, 3.0] and shards[1].state["round"].value == 5
    assert shards[1].initialized == 1  # Its momentum begins at zero.
    assert shards[0].parameters.value is None and shards[0].initialized == 0
    assert strategy.local_replicas.blocks[0].generation == 1  # All groups pull anew.
    assert (
        "ps:1 (p1:1) was restarted: its part of the global parameters comes back from what 3 worker groups have" in caplog.text
    )
    assert (
        "at most one sync period of each (8 updates) is lost; the momentum of the outer optimizer begins at zero" in caplog.text
    )


def test_without_a_group_that_knows_it_the_shard_is_what_the_chief_has_read_last(monkeypatch, caplog):
    shards, strategy = cluster(monkeypatch, {}, in_rounds=False)
    lost_shards.restore(strategy, PS)
    assert [shard.parameters.value.tolist() for shard in shards] == [[0.0, 1.0], [2.0, 3.0]]
    assert "from what the chief has read last, because no worker group has it: all updates since then" in caplog.text


def test_a_shard_that_no_group_has_pulled_since_the_chief_had_it_comes_back_from_the_chief(monkeypatch, caplog):
    """As after `load_weights`: the groups know the parameters of before."""
    shards, strategy = cluster(monkeypatch, {0: known([9, 9, 9, 9], [3, 3])}, pulled=())
    lost_shards.restore(strategy, PS[1:])
    assert shards[1].parameters.value.tolist() == [2.0, 3.0]
    assert "its part of the global parameters comes back from the chief, and no update is lost" in caplog.text


def test_groups_know_a_block_that_they_have_pulled_since_the_chief_collected_or_assigned_it_if_one_has_trained():
    block, replicas = ParameterBlock.__new__(ParameterBlock), LocalReplicas.__new__(LocalReplicas)
    block.generation = block.of_values = 0
    block.dirty, block.has_progress = set(), False
    replicas._pulled = {(0, block): (1, 0), (1, block): (0, 0), (1, "another"): (1, 0)}
    assert replicas.have_pulled(block) == []
    block.note_progress(1)
    assert replicas.have_pulled(block) == [0, 1] and block.dirty == {1}
    block.dirty.discard(1)  # It is lost.
    assert replicas.have_pulled(block) == [0, 1]
    block.begin_generation()
    assert replicas.have_pulled(block) == []
    block.note_progress(0)
    assert replicas.have_pulled(block) == [0]
    block.generation += 1  # A ps was restored.
    assert replicas.have_pulled(block) == [0]


def test_values_from_which_new_groups_start_come_from_the_chief_and_no_group_pulls_anew(monkeypatch):
    shards, strategy = cluster(monkeypatch, {0: known([9, 9, 9, 9], [0, 0])}, kind=Kind.OWN, in_rounds=False)
    lost_shards.restore(strategy, PS[:1])
    assert shards[0].parameters.value.tolist() == [0.0, 1.0] and strategy.local_replicas.blocks[0].generation == 0


def test_a_worker_that_holds_a_shard_has_lost_its_local_replica_too(monkeypatch):
    restarted, workers = [], [Task("worker", index, host=f"w{index}", port=1) for index in (0, 2)]
    shards, strategy = cluster(monkeypatch, {0: known([9, 9, 1, 2], [8, 5])}, servers=workers, restarted=restarted)
    lost_shards.restore(strategy, workers[1:])
    assert shards[0].initialized == 0 and shards[1].parameters.value.tolist() == [1.0, 2.0]
    assert restarted == [1]  # Its group pulls its replica, slots and counters anew.


@pytest.fixture
def recovery(monkeypatch):
    """A `ServerRecovery` with the ps that answer, those that still have their variables, and what has happened."""
    found = SimpleNamespace(answers=set(PS), have=set(PS), waits=0, restored=[])
    monkeypatch.setattr(server_recovery, "NamedVariable", lambda *args: SimpleNamespace(assign=lambda value: None, args=args))
    monkeypatch.setattr(server_recovery, "answering", lambda tasks, deadline: found.answers)
    monkeypatch.setattr(
        server_recovery, "_has_value", lambda marker: marker.args[3] in map(server_recovery.device_of, found.have)
    )

    def wait():
        found.waits += 1
        found.answers, restarted = set(PS), set(PS) - found.have
        found.recovery.restore()
        found.have |= restarted

    found.recovery = ServerRecovery(PS, found.restored.append, wait)
    return found


LOST = tf.errors.UnavailableError(None, None, "from /job:ps/replica:0/task:1")


def test_a_call_waits_for_a_ps_that_is_gone_or_was_restarted_and_is_made_again(recovery):
    recovery.answers = {PS[0]}
    assert recovery.recovery.wait_if_lost(LOST) and recovery.waits == 1 and recovery.restored == []  # Only its link was cut.
    recovery.have = {PS[0]}
    assert recovery.recovery.wait_if_lost(ValueError()) and recovery.restored == [[PS[1]]]
    # Errors of calls that began before arrive late.
    assert recovery.recovery.wait_if_lost(LOST) and recovery.waits == 2
    assert not recovery.recovery.wait_if_lost(ValueError("of the user"))


def test_an_error_that_no_ps_has_caused_is_raised(recovery):
    assert not recovery.recovery.wait_if_lost(LOST) and recovery.waits == 0
    calls = []

    def action():
        calls.append(1)
        if len(calls) == 1:
            recovery.have = set()
            raise LOST
        return "done"

    assert recovery.recovery.retried(action) == "done" and recovery.restored == [PS]
    with pytest.raises(tf.errors.InvalidArgumentError):
        recovery.recovery.retried(lambda: (_ for _ in ()).throw(tf.errors.InvalidArgumentError(None, None, "of the user")))
