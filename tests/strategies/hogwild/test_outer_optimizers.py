"""Each outer optimizer, as a pure function on tensors, computes what the models in periodic_oracles.py compute."""

import concurrent.futures
import dataclasses

import numpy as np
import periodic_oracles as oracles
import pytest
import tensorflow as tf
from waits import wait_until

from tfdist import Synchronization, outer_options
from tfdist.strategies.hogwild.synchronization import rounds
from tfdist.strategies.hogwild.synchronization import shard as shard_module
from tfdist.strategies.hogwild.synchronization.control import Control
from tfdist.strategies.hogwild.synchronization.outer_optimizers import (
    OUTER_OPTIMIZERS,
    Average,
    DelayedNesterov,
    Elastic,
    Nesterov,
    OuterOptimizer,
    Scaled,
    Sum,
    Update,
)
from tfdist.strategies.hogwild.synchronization.shard import Shard

GROUPS, SIZE = 3, 5
RATE, BETA = 0.7, 0.9
HERE = "/job:localhost/replica:0/task:0/device:CPU:0"
PUSHES = np.random.default_rng(0).normal(size=(12, SIZE))
ORDER = [0, 1, 2, 2, 0, 1, 1, 0, 2, 0, 1, 2]
"""The group of each push: once per round, in changing order."""


def control(group=0, weight=1 / GROUPS, live=GROUPS):
    numbers = (tf.constant(value, tf.float64) for value in (weight, RATE, BETA))
    weight, rate, momentum = numbers
    return Control(tf.constant(group), weight, tf.constant(live), tf.constant(0, tf.int64), rate, momentum, tf.constant(0.0))


class Simulation:
    """Applies updates to global parameters and state in plain variables, as `Shard.apply` does on a ps."""

    def __init__(self, optimizer, start=0.0):
        self.optimizer = optimizer
        self.parameters = tf.fill([SIZE], tf.constant(start, tf.float64))
        self.state = optimizer.init([SIZE], tf.float64)

    def push(self, push, **numbers):
        parameters = self.parameters if self.optimizer.reads_parameters else None
        update = self.optimizer.update(parameters, self.state, tf.constant(push, tf.float64), control(**numbers))
        assert set(update.state) <= set(self.state)
        self.state |= {name: added(self.state[name], new) for name, new in update.state.items()}
        self.parameters = added(self.parameters, update.increment, is_increment=True)
        if update.round is not None and update.round[1]:
            increment, momentum = rounds.nesterov(self.state["sum"], self.state["momentum"], RATE, BETA)
            self.parameters += increment
            self.state |= {"momentum": momentum, "sum": tf.zeros_like(momentum)}
        return update


def added(before, new, is_increment=False):
    if isinstance(new, Scaled):
        return before + tf.cast(new.factor, before.dtype) * new.vector
    return before + (0 if new is None else new) if is_increment else new


def test_every_outer_optimizer_has_a_class_and_options():
    assert set(OUTER_OPTIMIZERS) == set(outer_options.OUTER_OPTIMIZERS)
    for name, options in outer_options.OUTER_OPTIMIZERS.items():
        assert OUTER_OPTIMIZERS[name](Synchronization(outer=name), GROUPS).pushes_parameters == options.pushes_parameters


def test_average_adds_the_weighted_progress():
    simulation, oracle = Simulation(Average()), oracles.Average(np.zeros(SIZE), RATE)
    for number, push in enumerate(PUSHES):
        weight = 1 / (number + 1)
        update = simulation.push(push, weight=weight)
        oracle.take(push, weight)
        np.testing.assert_allclose(simulation.parameters, oracle.parameters, rtol=1e-12)
        assert update.reply is None and update.state == {}


def test_sum_adds_the_progress_as_it_is():
    simulation = Simulation(Sum())
    for push in PUSHES:
        simulation.push(push)
    np.testing.assert_allclose(simulation.parameters, PUSHES.sum(axis=0), rtol=1e-12)


def test_delayed_nesterov_updates_the_momentum_once_per_round():
    simulation = Simulation(DelayedNesterov())
    oracle = oracles.DelayedNesterov(np.zeros(SIZE), RATE, BETA, every=GROUPS)
    for group, push in zip(ORDER, PUSHES, strict=True):
        simulation.push(push, group=group)
        oracle.take(push)
        np.testing.assert_allclose(simulation.parameters, oracle.parameters, rtol=1e-12)


def test_nesterov_steps_when_every_live_group_has_pushed():
    simulation, oracle = Simulation(Nesterov(GROUPS)), oracles.Nesterov(np.zeros(SIZE), RATE, BETA)
    for number, (group, push) in enumerate(zip(ORDER, PUSHES, strict=True), start=1):
        update = simulation.push(push, group=group)
        completes = number % GROUPS == 0
        if completes:
            oracle.take_round(PUSHES[number - GROUPS : number], [1 / GROUPS] * GROUPS)
        assert update.round.numpy().tolist() == [number // GROUPS, completes]
        np.testing.assert_allclose(simulation.parameters, oracle.parameters, rtol=1e-12)


@pytest.mark.parametrize(
    ("round_", "last_round", "expected"),
    [
        ([4, 1], 3, "parameters"),  # This push completed the round.
        ([4, 0], 3, "parameters + pushed"),  # Another group completed a round since; this push is in the next one.
        ([4, 0], 4, "baseline + pushed"),  # Nothing has changed; this push waits in the current round.
    ],
)
def test_progress_in_an_open_round_counts_as_pushed(round_, last_round, expected):
    values = {name: tf.constant(PUSHES[number]) for number, name in enumerate(("parameters", "baseline", "pushed"))}
    got = Nesterov(GROUPS).baseline(*values.values(), tf.constant(round_, tf.int64), tf.constant(last_round, tf.int64))
    np.testing.assert_array_equal(got, sum(values[name].numpy() for name in expected.split(" + ")))


@pytest.mark.parametrize("optimizer", [Average(), Sum(), DelayedNesterov()], ids=lambda optimizer: type(optimizer).__name__)
def test_the_baseline_is_otherwise_what_the_group_pulls(optimizer):
    assert optimizer.baseline("parameters", "baseline", "pushed", None, None) == "parameters"


def test_elastic_moves_replica_and_parameters_toward_each_other():
    simulation, parameters = Simulation(Elastic(0.3)), np.zeros(SIZE)
    for replica in PUSHES:
        update = simulation.push(replica)
        moved, parameters = oracles.elastic(replica, parameters, 0.3)
        np.testing.assert_allclose(simulation.parameters, parameters, rtol=1e-12)
        np.testing.assert_allclose(replica - update.reply, moved, rtol=1e-12)


@pytest.mark.parametrize("name", OUTER_OPTIMIZERS)
@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64], ids=lambda dtype: dtype.name)
def test_updates_keep_shapes_and_dtypes(name, dtype):
    optimizer = OUTER_OPTIMIZERS[name](Synchronization(outer=name), GROUPS)
    state = optimizer.init([SIZE], dtype)
    push = tf.ones([SIZE], dtype)
    update = optimizer.update(push if optimizer.reads_parameters else None, state, push, control())
    assert (update.increment is None) == optimizer.in_rounds == (update.round is not None)
    for key, new in [("increment", update.increment), *update.state.items()]:
        if new is not None:
            value = new.vector if isinstance(new, Scaled) else new
            assert (value.dtype, value.shape) == (
                (dtype, [SIZE]) if key == "increment" else (state[key].dtype, state[key].shape)
            )
    for key, value in state.items():  # As checkpoints expect them.
        assert key in optimizer.not_saved or value.shape in ([SIZE], [])


# On variables, in this process.


def applied(shard, pushes, beta=BETA):
    """The replies of a shard to pushes of the groups in turn."""
    apply = tf.function(lambda push, numbers: shard.apply(push, Control.of(numbers))[:2], autograph=False)
    replies = []
    for number, push in enumerate(pushes):
        numbers = tf.constant([number % GROUPS, 1 / GROUPS, GROUPS, 0, RATE, beta, 0.0, 1, 0], tf.float64)
        replies.append([value.numpy() for value in apply(tf.constant(push, tf.float32), numbers)])
    return replies


def shard_of(optimizer):
    shard = Shard(tf.float32, SIZE, HERE, optimizer)
    shard.initialize()
    shard.parameters.assign(tf.zeros([SIZE]))
    return shard


@pytest.mark.parametrize("name", OUTER_OPTIMIZERS)
def test_a_shard_applies_updates_to_its_variables(name):
    optimizer = OUTER_OPTIMIZERS[name](Synchronization(outer=name), GROUPS)
    shard, simulation = shard_of(optimizer), Simulation(optimizer)
    for number, (reply, round_) in enumerate(applied(shard, PUSHES)):
        update = simulation.push(PUSHES[number], group=number % GROUPS)
        expected = simulation.parameters if update.reply is None else update.reply
        np.testing.assert_allclose(reply, expected, rtol=1e-4, atol=1e-6)
        assert round_.tolist() == ([0, 0] if update.round is None else update.round.numpy().tolist())
    np.testing.assert_allclose(shard.parameters.read(), simulation.parameters, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["nesterov", "delayed_nesterov"])
def test_a_round_without_momentum_leaves_the_momentum_to_the_others(name):
    """As that of a group that trains alone, in `train_on_batch`."""
    shard = shard_of(OUTER_OPTIMIZERS[name](Synchronization(outer=name), GROUPS))
    applied(shard, PUSHES[:GROUPS])
    momentum, before = shard.state["momentum"].read(), shard.parameters.read()
    applied(shard, PUSHES[GROUPS : 2 * GROUPS], beta=0.0)
    np.testing.assert_array_equal(shard.state["momentum"].read(), momentum)
    progress = RATE * PUSHES[GROUPS : 2 * GROUPS].mean(axis=0)
    np.testing.assert_allclose(shard.parameters.read() - before, progress, rtol=1e-3, atol=1e-6)
    applied(shard, PUSHES[:GROUPS])  # The next round begins with nothing of that.
    total = PUSHES[:GROUPS].mean(axis=0)
    np.testing.assert_allclose(shard.state["momentum"].read(), BETA * momentum + total, rtol=1e-4, atol=1e-6)


def test_only_updates_that_read_what_others_write_hold_a_lock():
    optimizers = {name: make(Synchronization(outer=name), GROUPS) for name, make in OUTER_OPTIMIZERS.items()}
    without = {name for name, optimizer in optimizers.items() if shard_of(optimizer).lock is None}
    assert without == {"average", "sum"}


def test_the_lock_is_held_until_the_step_of_a_round_has_been_made():
    shard = shard_of(Nesterov(GROUPS))

    def settle(numbers):
        shard.change_round(rounds.settle, Control.of(numbers), tf.zeros([GROUPS], tf.int32))

    operations = tf.function(settle, autograph=False).get_concrete_function(Control.SPEC).graph.get_operations()
    (release,) = [op for op in operations if op.type == "ConsumeMutexLock"]
    (step,) = [op for op in operations if op.type == "If"]
    before, new = set(), [release]
    while new:
        op = new.pop()
        found = {*(tensor.op for tensor in op.inputs), *op.control_inputs} - before
        before |= found
        new += found
    assert step in before


class Waiting:
    """Groups that push to a shard and wait for the end of the round, as a worker makes a ps do it."""

    def __init__(self, grace, quorum=1):
        self.shard, self.grace = shard_of(Nesterov(GROUPS, quorum)), grace
        self.function = tf.function(self._push, autograph=False).get_concrete_function(
            tf.TensorSpec([SIZE]), tf.TensorSpec([], tf.int64), Control.SPEC
        )

    def _push(self, push, wanted, numbers):
        control = dataclasses.replace(Control.of(numbers), wanted=wanted)
        _, *round_ = self.shard.apply(push, control)
        return self.shard.await_round(*round_, control)

    def push(self, group, wanted):
        """Returns parameters, the number of complete rounds, and whether they include the push."""
        numbers = tf.constant([group, 1 / GROUPS, GROUPS, 0, 1.0, 0.0, self.grace, 1, 0], tf.float64)
        parameters, round_ = self.function(tf.fill([SIZE], 3.0), tf.constant(wanted, tf.int64), numbers)
        return parameters.numpy()[0], *round_.numpy()

    def pushed(self):
        return self.shard.state["pushed"].read_now().numpy().tolist()


def test_a_push_waits_on_the_ps_until_its_round_has_ended():
    waiting = Waiting(grace=60.0)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(waiting.push, group, 1) for group in (0, 1)]
        wait_until(lambda: waiting.pushed() == [rounds.IN_TIME, rounds.IN_TIME, 0])
        assert not concurrent.futures.wait(calls, 0.3, concurrent.futures.FIRST_COMPLETED).done
        last = waiting.push(2, 1)
        ends = *(call.result(10) for call in calls), last
    assert [*ends] == [(3.0, 1, 1)] * 3


def test_at_the_end_of_an_epoch_a_push_waits_only_for_groups_that_still_make_calls():
    waiting = Waiting(grace=60.0)
    numbers = tf.constant([0, 0, 1, 0, 1.0, 0.0, 0.0, 0, 0], tf.float64)

    @tf.function(autograph=False)
    def finish(numbers, pushing):
        waiting.shard.change_round(rounds.finish, Control.of(numbers), pushing)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        first = pool.submit(waiting.push, 0, 1)
        wait_until(lambda: any(waiting.pushed()))
        for pushing in ([1, 1, 0], [1, 0, 0]):
            assert not first.done()
            finish(numbers, tf.constant(pushing))
        assert first.result(10) == (1.0, 1, 1)


def test_a_push_ends_its_round_after_the_grace_time_and_a_late_one_does_not_wait():
    waiting = Waiting(grace=0.5)
    assert waiting.push(0, 1) == (1.0, 1, 1)
    assert waiting.push(1, 1) == (1.0, 1, 0)  # After a wait it would have ended the second round.
    assert waiting.push(1, 2) == (3.0, 2, 1)  # Group 2 is absent; group 0 is missing.


def test_a_round_ends_after_the_grace_time_only_with_its_quorum():
    waiting = Waiting(grace=0.2, quorum=2)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        first = pool.submit(waiting.push, 0, 1)
        wait_until(lambda: any(waiting.pushed()))
        assert not concurrent.futures.wait([first], 0.8).done
        second = waiting.push(1, 1)
        assert second == first.result(10) == (2.0, 1, 1)


def test_a_round_without_a_quorum_ends_in_the_end(monkeypatch):
    monkeypatch.setattr(shard_module, "QUORUM_SECONDS", 0.4)
    assert Waiting(grace=0.2, quorum=3).push(0, 1) == (1.0, 1, 1)


def test_a_new_outer_optimizer_is_one_class():
    class Signs(OuterOptimizer):
        """Moves by the sign of the mean progress, and counts."""

        def init(self, shape, dtype):
            return {"count": tf.zeros([], tf.int32)}

        def update(self, parameters, state, push, control):
            return Update(tf.sign(push) * tf.cast(control.rate, push.dtype), {"count": state["count"] + 1})

    shard = shard_of(Signs())
    assert shard.lock is not None
    applied(shard, PUSHES[:4])
    np.testing.assert_allclose(shard.parameters.read(), RATE * np.sign(PUSHES[:4]).sum(axis=0), rtol=1e-6)
    assert shard.state["count"].read().numpy() == 4
