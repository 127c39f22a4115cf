"""The order in which worker groups begin their steps: which one is tried, kept and told, and that training goes on meanwhile."""

import contextlib
import json

import pytest
from reserved import free_ports

from tfdist.step_order import APART, StepOrder
from tfdist.strategies.parameter_server.turns import CHANGED, MEASURED, REPEAT, SETTLE, SOONEST, TRIED, Turns

CALLS = SETTLE + MEASURED


class Machine:
    """A clock, and worker groups that call one after the other."""

    def __init__(self):
        self.now, self.slept, self.lines = 100.0, [], []
        self.turns = Turns(lambda: self.now, self.wait, self.lines.append)

    def wait(self, condition, seconds):
        self.slept.append(seconds)
        self.now += seconds

    def call(self, group, seconds, steps=1):
        with self.turns.call(group, steps):
            self.now += seconds

    def train(self, calls, seconds, groups=(0, 1), steps=1):
        """Lets each group make calls; a call takes the seconds of its order."""
        for _ in range(calls):
            for group in groups:
                self.call(group, seconds[self.turns.order], steps)


@pytest.fixture
def machine():
    return Machine()


def times(free, together, turns):
    return {StepOrder.FREE: free, StepOrder.TOGETHER: together, StepOrder.TURNS: turns}


@pytest.mark.parametrize(
    ("seconds", "kept"),
    [(times(2, 3, 1), StepOrder.TURNS), (times(2, 1, 3), StepOrder.TOGETHER), (times(2, 2.2, 2.1), StepOrder.FREE)],
)
def test_each_order_is_tried_and_the_fastest_is_kept_and_told(machine, seconds, kept):
    orders = []
    for _ in range(4 * CALLS):
        machine.train(1, seconds)
        orders += [machine.turns.order] if machine.turns.order not in orders[-1:] else []
    assert orders[: len(TRIED)] == list(TRIED) and machine.turns.order is kept
    if kept is StepOrder.FREE:
        assert machine.lines == []
    else:
        (line,) = machine.lines
        assert f"begin their steps {kept.value}, which makes 1 steps per second" in line and StepOrder.FREE.value in line


def test_the_orders_are_tried_again_after_a_while_and_a_new_one_is_told(machine):
    machine.train(4 * CALLS, times(2, 3, 1))
    assert machine.turns.order is StepOrder.TURNS
    machine.train(REPEAT * len(TRIED) * CALLS + 4 * CALLS, times(2, 1, 3))
    assert machine.turns.order is StepOrder.TOGETHER and len(machine.lines) == 2


def test_the_orders_are_tried_again_soon_after_a_link_has_changed_its_rate_and_not_after_a_small_change(machine):
    machine.train(4 * CALLS, times(2, 3, 1))
    machine.train(SOONEST * len(TRIED) * CALLS, times(1, 1, 1 * (CHANGED - 0.1)))
    assert machine.turns.order is StepOrder.TURNS
    machine.train(6 * CALLS, times(3.2, 1.6, 3.2))
    assert machine.turns.order is StepOrder.TOGETHER and len(machine.lines) == 2
    machine.train(6 * CALLS, times(3.2, 1.6 * 4, 0.1))  # Too soon.
    assert machine.turns.order is StepOrder.TOGETHER


def test_a_group_waits_for_its_turn_at_most_a_step_of_another_one(machine):
    machine.train(2 * CALLS + 1, times(1, 1, 1))
    assert machine.turns.order is StepOrder.TURNS
    machine.slept.clear()
    with machine.turns.call(0, 1):
        machine.call(1, 0.3)
        assert sum(machine.slept) == pytest.approx(APART / 2)
        machine.slept.clear()
        machine.turns.order = StepOrder.TOGETHER
        machine.call(1, 0.1)
        assert 0 < sum(machine.slept) <= 1


def test_nobody_waits_for_a_call_that_has_no_end(machine):
    machine.train(2 * CALLS + 1, times(1, 1, 1))
    with machine.turns.call(0, 1):
        machine.now += 60.0
        machine.slept.clear()
        machine.call(1, 1)
    assert machine.slept == []


def test_the_end_of_an_epoch_and_a_failed_call_do_not_count(machine):
    for number in range(4 * CALLS):
        machine.train(1, times(2, 3, 1))
        if number % 4 == 0:
            machine.now += 100.0
        if number % 5 == 0:
            with contextlib.suppress(ValueError), machine.turns.call(0, 1):
                raise ValueError
    assert machine.turns.order is StepOrder.TURNS


def test_a_group_that_is_alone_or_that_has_left_keeps_nobody_waiting(machine):
    machine.train(10 * CALLS, times(1, 1, 1), groups=(0,))
    assert machine.turns.order is StepOrder.FREE and machine.slept == []
    machine.train(1, times(1, 1, 1))
    with contextlib.suppress(ValueError), machine.turns.call(0, 1):
        raise ValueError  # It is gone.
    machine.train(10 * CALLS, times(1, 1, 1), groups=(1,))
    assert machine.slept == []


def test_a_group_that_leaves_while_orders_are_tried_leaves_nobody_in_one_of_them(machine):
    machine.train(CALLS + 2, times(2, 3, 1), groups=(0, 1, 2))
    assert machine.turns.order is StepOrder.TOGETHER
    machine.train(6 * CALLS, times(2, 3, 1))  # The third one was idle when it left.
    assert machine.turns.order is StepOrder.TURNS and len(machine.lines) == 1


PROGRAM = """
    import json, pathlib
    import tfdist
    strategy = tfdist.strategy()
    import keras, numpy as np
    from tfdist.strategies.parameter_server import turns

    tried, begin = [], turns.Turns._try
    turns.Turns._try = lambda self, order: (tried.append(order.name), begin(self, order))
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse", steps_per_execution=2)
    x = np.ones([640, 4], "float32")
    history = model.fit(x, x[:, :2], batch_size=4, epochs=2, validation_data=(x, x[:, :2]), verbose=0)
    steps, predicted = int(model.optimizer.iterations), len(model.predict(x, verbose=0))
    pathlib.Path("seen.json").write_text(json.dumps([tried, steps, predicted, history.history]))
"""


@pytest.mark.cluster
def test_training_on_two_machines_makes_every_step_once_while_orders_are_tried(start, script, read_json):
    program = script(PROGRAM)
    chief, worker, other, ps = free_ports(4)
    cluster = {
        "chief": [f"127.0.0.1:{chief}"],
        "worker": [f"127.0.0.1:{worker}", f"127.0.0.2:{other}"],
        "ps": [f"127.0.0.1:{ps}"],
    }
    jobs = {}
    for job, addresses in cluster.items():
        for index in range(len(addresses)):
            config = {"cluster": cluster, "task": {"type": job, "index": index}}
            jobs[job, index] = start(program, environment={"TF_CONFIG": json.dumps(config)})
    assert jobs["chief", 0].wait(200) == 0, jobs["chief", 0].output
    tried, steps, predicted, history = read_json("seen.json")
    assert tried[:3] == [order.name for order in TRIED]
    assert steps == 2 * 160 and predicted == 640
    assert history["loss"][1] < history["loss"][0] and len(history["val_loss"]) == 2
