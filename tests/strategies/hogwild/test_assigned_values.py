"""What the chief assigns stays its value until the groups have it, without a cluster."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from running import Running

from tfdist.strategies.coordinator.calls.tracing import tracing_lock
from tfdist.strategies.coordinator.edits import Edits
from tfdist.strategies.hogwild.replicas.chief_values import ChiefValues
from tfdist.strategies.hogwild.synchronization.global_parameters import ParameterBlock
from tfdist.strategies.hogwild.synchronization.local_variable import Kind
from tfdist.strategies.hogwild.synchronization.outer_optimizers import Average
from tfdist.strategies.keras_hooks import calls


class Variable:
    """What a block and the chief need of a `LocalVariable` of one number."""

    dtype, shape, replica, path, is_slot = tf.float32, tf.TensorShape([]), None, "dense/weight", False

    def __init__(self, value, kind=Kind.SYNCHRONIZED):
        self.value, self.kind, self.version = np.float32(value), kind, 0
        self.restored, self.restored_outer = {}, {}
        self.count_before, self.group_count = 0, None

    def value_on_chief(self):
        return np.asarray(self.value)

    def set_on_chief(self, value):
        self.value = np.float32(value)


def block_of(*variables):
    block = ParameterBlock(variables, [["/job:ps/task:0"]], Average(), 2, False)
    block._initialize_shards = block._assign_shards = lambda: None
    block.initialize()
    return block


def chief_of(block, found, *others):
    """The values on a chief that finds these numbers in the groups whenever it collects a block, and idle groups."""

    def collect(blocks, others=()):
        for each in blocks:
            if each.is_ahead:
                each.set_values(np.float32(found))
                each.dirty.clear()
                each.has_progress = False
        return {each: each.of_groups for each in others}

    replicas = {"blocks": [block, *others], "collect": collect, "current_owners": lambda block: [0, 1]}
    nothing = ("before_read", "before_assignment", "warn_if_late")
    replicas["edits"] = SimpleNamespace(**dict.fromkeys(nothing, lambda *_: None))
    return ChiefValues(SimpleNamespace(**replicas, in_flight=lambda: 0, wait_until_idle=lambda: None))


def assign(chief, variable, value):
    with chief.assigning(variable):
        variable.value = np.float32(value)


def chief_that_has_assigned():
    """Returns a chief that has assigned 7 to the first of two variables, of which groups have other values, and both."""
    weight, other = Variable(1.0), Variable(2.0)
    block = block_of(weight, other)
    chief = chief_of(block, [1.5, 2.5])
    assign(chief, weight, 7.0)
    block.dirty = {0, 1}
    return chief, block, weight, other


def test_a_collection_before_the_next_step_does_not_take_back_what_was_assigned_within_an_epoch():
    """As that before `train_on_batch` in a callback, which lets one group train alone."""
    chief, block, weight, other = chief_that_has_assigned()
    chief.synchronize_groups()
    chief.refresh(weight)
    assert (weight.value, chief.newer(weight)) == (7.0, None) and chief.newer(other) == 2.5
    chief.publish()
    assert block.values.tolist() == [7.0, 2.5] and not block.assigned
    chief.refresh(weight)
    chief.refresh(other)
    assert (weight.value, other.value) == (7.0, 2.5)


def test_progress_since_an_assignment_is_collected_and_the_assigned_value_stays():
    chief, block, _, _ = chief_that_has_assigned()
    chief.publish()
    assert block.values.tolist() == [7.0, 2.5]


@pytest.mark.parametrize(
    ("before", "assigned", "by_groups", "begin"),
    [
        (800, 0, {0: 0, 1: 0}, 0),
        (800, 400, {0: 150, 1: 250}, 200),
        (0, 400, {}, 400),  # Slots that are assigned before the first update have all of them.
    ],
)
def test_groups_count_on_in_proportion_where_the_chief_assigns_a_counter_of_two_optimizers(before, assigned, by_groups, begin):
    first, second = Variable(0, Kind.COUNTER), Variable(0, Kind.COUNTER)
    block = block_of(first, second)
    chief = chief_of(block, [400, 400])
    block.dirty, block.of_groups = {0, 1}, {0: np.float32([min(before, 300), 300]), 1: np.float32([min(before, 500), 500])}
    first.value, second.value = np.float32(before), np.float32(800)  # As the chief has counted.
    assign(chief, first, assigned)
    chief.publish()
    assert block.values.tolist() == [begin, 400]  # With which a group begins that has not trained.
    assert first.restored == by_groups and second.restored == {0: 300, 1: 500}
    assert (first.value, second.value) == (assigned, 800)


def test_the_only_group_that_has_trained_counts_what_is_assigned_and_others_begin_with_it():
    """As after train_on_batch. Slots that are assigned beside the counter are those of all groups."""
    counter = Variable(0, Kind.COUNTER)
    block = block_of(counter)
    chief = chief_of(block, [3])
    block.dirty, block.of_groups, counter.value = {0}, {0: np.float32([3]), 1: np.float32([0])}, np.float32(3)
    assign(chief, counter, 500)
    chief.publish()
    assert block.values.tolist() == [500] and counter.restored == {0: 500, 1: 500}


def test_a_variable_that_leaves_its_block_keeps_what_was_assigned():
    chief, block, weight, other = chief_that_has_assigned()
    chief.release(block)
    assert (weight.value, other.value) == (7.0, 2.5) and weight.block is None


def test_what_is_assigned_after_a_load_before_the_first_step_has_no_outer_momentum():
    weight = Variable(1.0)
    weight.block, weight.restored_outer = None, {"momentum": np.float32(3.0)}  # As a file that holds it has set it.
    assign(ChiefValues(SimpleNamespace(blocks=[])), weight, 7.0)
    assert weight.restored_outer == {}


@pytest.mark.parametrize("changes", [False, True])
def test_what_is_synchronized_is_collected_together(changes):
    """A block without progress, pushed with others that have some, would make a round: its outer momentum moves it."""
    weight, beside, slot = Variable(1.0), Variable(2.0), Variable(3.0, Kind.OWN)
    block, other, own = block_of(weight), block_of(beside), block_of(slot)
    chief = chief_of(block, [1.5], other, own)
    if changes:
        assign(chief, weight, 7.0)
    for each in (block, other, own):
        each.dirty = {0, 1}
    chief.publish()
    chief.refresh(weight)
    assert (block.dirty, other.dirty, own.dirty) == (set(), set(), {0, 1})
    assert (weight.value, beside.value) == (7.0 if changes else 1.5, 2.0) and chief.newer(beside) == 1.5


@pytest.mark.parametrize("is_read", [False, True])
def test_what_groups_have_pushed_before_they_were_lost_is_read_and_an_assignment_beside_it_keeps_it(is_read):
    weight, beside = Variable(1.0), Variable(2.0)
    block = block_of(weight, beside)
    chief = chief_of(block, [1.5, 2.5])
    block.note_progress(0)
    block.dirty.discard(0)
    if is_read:
        chief.refresh(beside)
        assert beside.value == 2.5
    assign(chief, weight, 7.0)
    chief.publish()
    assert block.values.tolist() == [7.0, 2.5] and not block.is_ahead


@pytest.mark.parametrize("is_dirty", [False, True])
def test_groups_keep_their_own_slots_when_another_variable_of_the_block_is_assigned(is_dirty):
    """They pull the whole block, in which the chief has the mean of the slots."""
    assigned, slot = Variable(1.0, Kind.OWN), Variable(0.0, Kind.OWN)
    block = block_of(assigned, slot)
    block.of_groups = {0: np.float32([1.0, 2.0]), 1: np.float32([1.0, 4.0])}
    chief = chief_of(block, [1.0, 3.0])
    assign(chief, assigned, 7.0)
    block.dirty = {0, 1} if is_dirty else set()
    chief.publish()
    assert slot.restored == {0: 2.0, 1: 4.0} and assigned.restored == {}
    assert block.values.tolist() == [7.0, 3.0 if is_dirty else 0.0] and not block.assigned


@pytest.fixture
def ahead():
    """A weight of which groups have trained more than the ps know, in steps that are in flight, and its values on the chief."""
    weight, running = Variable(1.0), Running()
    block = block_of(weight)
    chief, block.fetch, block.trained_by = chief_of(block, [1.5]), lambda: np.float32([1.25]), object()
    chief._replicas.in_flight, chief._replicas.wait_until_idle = running.__len__, running.wait_until_idle
    chief._replicas.edits = Edits(running, lambda: False)

    def train(has_begun=True):
        running.count, running.taken = 2, running.taken + 1
        block.dirty = {0, 1} if has_begun else set()
        chief.note_execution()

    train()
    return SimpleNamespace(weight=weight, chief=chief, train=train, running=running)


def test_a_callback_that_computes_weights_from_what_it_reads_loses_what_groups_have_trained_once(ahead, caplog):
    weight, chief = ahead.weight, ahead.chief
    chief.refresh(weight)
    assert weight.value == 1.25 and not caplog.records
    assign(chief, weight, weight.value)
    assert "reads and assigns dense/weight within an epoch" in caplog.text
    chief.publish()
    for has_begun in (True, False):
        ahead.train(has_begun)
        chief.refresh(weight)
        assert weight.value == 1.5 and not len(ahead.running)
        assign(chief, weight, weight.value)
        chief.publish()
    assert len(caplog.records) == 1


def test_a_callback_that_only_reads_or_only_assigns_weights_waits_for_no_step_when_it_reads(ahead, caplog):
    weight, chief = ahead.weight, ahead.chief
    assign(chief, weight, 7.0)
    chief.publish()
    for _ in range(2):
        ahead.train()
        chief.refresh(weight)
        assert weight.value == 1.25 and len(ahead.running)
    assert not caplog.records


def test_what_a_callback_adds_to_a_weight_is_added_to_what_groups_have_trained(ahead, caplog):
    ahead.chief.finish_steps_on(ahead.weight)
    assign(ahead.chief, ahead.weight, ahead.chief.newer(ahead.weight) + 1.0)
    ahead.chief.publish()
    assert ahead.weight.block.values == [2.5] and not caplog.records


def test_a_step_that_reads_a_weight_while_it_is_traced_gets_that_of_the_ps():
    """Groups that flush would wait for the lock of the thread that traces, and it for them. TensorFlow traces replicas in other threads."""
    weight = Variable(1.0)
    block = block_of(weight)
    chief, block.fetch = chief_of(block, [1.5]), lambda: np.float32([1.25])
    block.dirty = {0, 1}
    with tracing_lock:
        replica = threading.Thread(target=chief.refresh, args=(weight,))
        replica.start()
        replica.join()
        assert weight.value == 1.25 and block.dirty == {0, 1}
    chief.refresh(weight)
    assert weight.value == 1.5 and not block.dirty


@pytest.mark.parametrize(
    ("is_slot", "kind", "named"), [(True, Kind.OWN, "slots of an optimizer"), (False, Kind.FROM_CHIEF, "rate")]
)
def test_a_warning_names_what_a_callback_assigns_while_steps_in_flight_read_it(ahead, caplog, is_slot, kind, named):
    value = Variable(1.0, kind)
    value.path, value.is_slot, value.block = "rate", is_slot, None
    if is_slot:
        block_of(value)
    assign(ahead.chief, value, 0.0)
    assert len(ahead.running) and f"a callback assigns {named} within an epoch" in caplog.text


def test_a_read_of_what_only_groups_have_waits_in_the_thread_of_the_program(ahead, monkeypatch):
    """Not in threads of groups, for which it would wait, nor while this thread traces a step: groups would wait for its lock."""
    slot = Variable(0.0, Kind.OWN)
    block = block_of(slot)
    monkeypatch.setattr(calls, "is_in_this_thread", lambda: threading.current_thread() is threading.main_thread())
    block.dirty = {0, 1}
    other = threading.Thread(target=ahead.chief.refresh, args=(slot,))
    other.start()
    other.join()
    with tracing_lock:
        ahead.chief.refresh(slot)
    assert slot.value == 0.0 and len(ahead.running)
    ahead.chief.refresh(slot)
    assert slot.value == 1.5 and not len(ahead.running)
