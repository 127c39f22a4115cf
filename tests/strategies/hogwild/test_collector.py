"""What the chief has, and from where groups continue, after a collection. Blocks and groups are replaced by simple objects."""

import contextlib
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.coordinator.calls.tracing import tracing_lock
from tfdist.strategies.hogwild.replicas import collector
from tfdist.strategies.hogwild.replicas.collector import Collector
from tfdist.strategies.hogwild.synchronization.global_parameters import ParameterBlock
from tfdist.strategies.hogwild.synchronization.local_variable import Kind
from tfdist.strategies.hogwild.synchronization.outer_optimizers import Average, Elastic, Nesterov

GLOBAL = np.float32([10.0, 20.0])


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch):
    monkeypatch.setattr("tfdist.strategies.runtime.chief_device.DEVICE", "/job:localhost/replica:0/task:0/device:CPU:0")


class Block:
    """A block of two values with the global parameters `GLOBAL`, and the groups 0 and 1 with progress."""

    variables, assigned = (), {}
    is_ahead = ParameterBlock.is_ahead

    def __init__(self, kind=Kind.SYNCHRONIZED, optimizer=None, dtype=tf.float32, server_groups=1):
        self.kind, self.optimizer, self.dtype = kind, optimizer or Average(), dtype
        self.shards = [None] * server_groups
        self.size, self.generation, self.published = 2, 0, 0
        self.dirty, self.values, self.has_progress = {0, 1}, None, True

    def fetch(self, server_group):
        return GLOBAL + (server_group or 0)

    def set_values(self, values):
        self.values = values

    def begin_generation(self):
        self.generation += 1
        self.has_progress = False

    def publish(self):
        self.published += 1


def collected(block, server_group=None, **options):
    """Collects the block from groups with the replicas [1, 1] and [2, 2]; returns the calls of the collector."""
    calls = SimpleNamespace(lost=[], rounds=[], collected={})

    def flush(block, group, is_over):
        if group in options.get("failing", ()):
            raise tf.errors.UnavailableError(None, None, "gone")
        return tf.fill([2], tf.cast(group + 1, block.dtype))

    calls.collected = Collector(flush, calls.lost.append, calls.rounds.append).collect([block], server_group)
    assert block.dirty == set()
    return calls


def answers_of(collector, block, groups):
    """What groups return that flush a block, by group, without those that failed."""
    return collector._answers(collector._begin({block: groups}), block)


def test_what_groups_have_pushed_before_they_were_lost_is_collected_once_and_what_is_their_own_is_gone():
    shared, own = Block(optimizer=Nesterov(0.7, 0.5)), Block(Kind.OWN)
    shared.dirty, own.dirty = set(), set()
    calls = collected(shared)
    np.testing.assert_array_equal(shared.values, GLOBAL)
    assert calls.rounds == [shared] and shared.generation == 1
    assert collected(shared).rounds == [] and collected(own).collected == {}


def test_all_groups_continue_from_the_global_parameters():
    block = Block()
    collected(block)
    np.testing.assert_array_equal(block.values, GLOBAL)
    assert (block.generation, block.published) == (1, 0)


def test_all_server_groups_get_the_mean_of_their_parameters():
    block = Block(server_groups=3)
    collected(block)
    assert (block.generation, block.published) == (1, 1)


def test_what_the_program_has_assigned_is_not_published_by_a_collection():
    """Its publication follows, and forgets the outer momentum of what was assigned."""
    block = Block(server_groups=3)
    block.assigned = {1: None}
    collected(block)
    assert (block.generation, block.published) == (1, 0)


def test_a_group_that_trained_alone_counts_in_full():
    block = Block(server_groups=3)
    collected(block, server_group=2)
    np.testing.assert_array_equal(block.values, GLOBAL + 2)


def test_elastic_groups_continue_from_the_mean_of_their_replicas():
    block = Block(optimizer=Elastic(0.5))
    collected(block)
    np.testing.assert_array_equal(block.values, [1.5, 1.5])
    assert block.published == 1


def test_a_collection_completes_the_round():
    block = Block(optimizer=Nesterov(2))
    assert collected(block).rounds == [block]
    assert collected(Block()).rounds == []


@pytest.mark.parametrize(("dtype", "expected"), [(tf.float32, 1.5), (tf.int64, 1)])
def test_the_chief_has_the_mean_of_what_belongs_to_groups_or_the_first_groups_value(dtype, expected):
    block = Block(Kind.OWN, dtype=dtype)
    calls = collected(block)
    np.testing.assert_array_equal(block.values, [expected] * 2)
    assert (block.generation, block.published) == (0, 0)
    block.values[...] = 9  # Others may assign a part of them.
    assert {group: replica.tolist() for group, replica in calls.collected[block].items()} == {0: [1, 1], 1: [2, 2]}


def test_a_group_that_fails_is_left_out():
    block = Block(Kind.OWN)
    assert collected(block, failing=[0]).lost == [0]
    np.testing.assert_array_equal(block.values, [2.0, 2.0])


def test_a_group_that_does_not_answer_in_time_is_lost(monkeypatch, caplog):
    monkeypatch.setattr(collector, "ANSWER_SECONDS", 0.1)
    answer, lost = threading.Event(), []

    def flush(block, group, is_over):
        answer.wait(10)
        return tf.zeros([2])

    assert answers_of(Collector(flush, lost.append, lambda block: None), Block(Kind.OWN), [0]) == {}
    assert lost == [0] and "worker group 0 has not sent its progress in time" in caplog.text
    answer.set()


def test_a_group_that_takes_long_is_asked_for_an_answer_and_not_waited_for_without_one(monkeypatch):
    monkeypatch.setattr(collector, "ANSWER_SECONDS", 1e6)
    asked, lost, ended = [], [], threading.Event()

    def flush(block, group, is_over):
        if group == 1:
            assert ended.wait(60)
            raise tf.errors.UnavailableError(None, None, "its connection was shut down")
        return tf.zeros([2])

    def give_up(groups):
        asked.append(groups)
        if len(asked) == 2:
            ended.set()

    assert answers_of(Collector(flush, lost.append, lambda block: None, give_up), Block(Kind.OWN), [0, 1]).keys() == {0}
    assert asked == [[1], [1]] and lost == [1]


def test_the_time_for_which_another_thread_traces_does_not_count(monkeypatch):
    monkeypatch.setattr(collector, "ANSWER_SECONDS", 1.0)
    lost = []

    def flush(block, group, is_over):
        with tracing_lock:
            return tf.zeros([2])

    def ask():
        answers.update(answers_of(Collector(flush, lost.append, lambda block: None), Block(Kind.OWN), [0, 1]))

    answers = {}
    thread = threading.Thread(target=ask)
    with tracing_lock:
        thread.start()
        time.sleep(1.5)
    thread.join(10)
    assert lost == [] and answers.keys() == {0, 1}


def test_each_group_is_asked_with_an_executor_of_its_own(monkeypatch):
    owners, asked = [], []

    @contextlib.contextmanager
    def own_executor():
        owners.append(threading.current_thread())
        yield

    monkeypatch.setattr(collector, "own_executor", own_executor)

    def flush(block, group, is_over):
        asked.append(threading.current_thread())
        return tf.zeros([2])

    answers_of(Collector(flush, lambda group: None, lambda block: None), Block(Kind.OWN), [0, 1])
    assert set(owners) == set(asked) and len(set(asked)) == 2


def test_the_chief_works_on_the_global_parameters_while_the_groups_send_what_is_their_own():
    own, shared, fetched = Block(Kind.OWN), Block(), threading.Event()

    def flush(block, group, is_over):
        if block is own:
            assert fetched.wait(10)
        return tf.ones([2])

    def meanwhile():
        np.testing.assert_array_equal(shared.values, GLOBAL)
        assert own.values is None
        fetched.set()

    found = Collector(flush, lambda group: None, lambda block: None).collect([own, shared], None, meanwhile)
    assert found.keys() == {own} and own.dirty == shared.dirty == set()
    np.testing.assert_array_equal(own.values, [1, 1])


def test_groups_without_progress_send_what_is_asked_for_and_it_is_not_merged():
    part, counter = Block(Kind.OWN), Block(Kind.COUNTER)
    part.dirty, counter.dirty = {1}, {0}
    flush = lambda block, group, is_over: tf.fill([2], group + 1.0)  # noqa: E731
    others = {part: [0, 1], counter: [0]}
    found = Collector(flush, lambda group: None, lambda block: None).collect([part], None, others=others)
    assert {group: value.tolist() for group, value in found[part].items()} == {0: [1, 1], 1: [2, 2]}
    np.testing.assert_array_equal(part.values, [2, 2])
    assert found[counter].keys() == {0} and counter.values is None and counter.dirty == {0} and not part.dirty


def test_a_constraint_projects_only_variables_that_were_moved():
    class Constrained(Block):
        variables = tuple(
            SimpleNamespace(place=place, keras_constraint=lambda values: np.minimum(values, 3)) for place in (0, 1)
        )

        def cut(self, vector, variable):
            return vector[variable.place : variable.place + 1]

    block = Constrained()
    block.values = np.float32([9.0, 20.0])  # The groups moved the first variable, to 10. The second is frozen at 20.
    collected(block)
    assert block.values.tolist() == [3.0, 20.0]


@pytest.mark.parametrize("kind", [Kind.SYNCHRONIZED, Kind.OWN])
def test_after_ctrl_c_within_a_collection_the_next_one_has_the_progress(kind, monkeypatch):
    """What groups have sent is not what the chief has: a save would have the weights of before."""

    def interrupt(*_):
        raise KeyboardInterrupt

    block = Block(kind, Nesterov(2))
    with monkeypatch.context() as patch:
        patch.setattr(block, "fetch", interrupt)
        patch.setattr(collector, "_merged", interrupt)
        with pytest.raises(KeyboardInterrupt):
            collected(block)
    assert block.dirty == {0, 1} and block.values is None
    collected(block)
    np.testing.assert_array_equal(block.values, GLOBAL if kind is Kind.SYNCHRONIZED else [1.5, 1.5])


@pytest.mark.parametrize("ends", ["by Ctrl-C", "because the group is late"])
def test_after_the_end_of_a_collection_no_flush_begins(ends, monkeypatch):
    """The groups may train by then: a flush and their next push would both push what they have trained before."""
    monkeypatch.setattr(collector, "ASK_SECONDS", 0.05)
    begun, answer, done, flushed = threading.Event(), threading.Event(), threading.Event(), []
    first, second = Block(optimizer=Nesterov(1)), Block(optimizer=Nesterov(1))
    first.dirty, second.dirty = {0}, {0}

    def flush(block, group, is_over):
        if block is second:
            flushed.append(not is_over())
            done.set()
            return None
        begun.set()
        assert answer.wait(10)
        return tf.zeros([2])

    def give_up(groups):
        assert begun.wait(60)
        if ends == "by Ctrl-C":
            raise KeyboardInterrupt

    if ends != "by Ctrl-C":
        monkeypatch.setattr(collector, "ANSWER_SECONDS", 0.2)
    collects = Collector(flush, lambda group: None, lambda block: None, give_up)
    with pytest.raises(KeyboardInterrupt) if ends == "by Ctrl-C" else contextlib.nullcontext():
        collects.collect([first, second], None)
    assert begun.is_set()
    answer.set()
    assert done.wait(10) and flushed == [False]
