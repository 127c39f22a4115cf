"""The training loop hands each result to Keras once, in epochs that callbacks and errors interrupt."""

import functools
import signal
import weakref
from collections import deque
from types import SimpleNamespace

import pytest

from tfdist.strategies.coordinator.training_loop import OpenEpochs, TrainingLoop
from tfdist.strategies.inputs.source import BatchIterator
from tfdist.strategies.keras_hooks import calls
from tfdist.strategies.runtime import interrupts


class Batches(BatchIterator):
    """Batches 0, 1, ... of one epoch."""

    def __init__(self, count):
        super().__init__(SimpleNamespace(steps_per_epoch=None))
        self._left = deque(range(count))

    def __next__(self):
        raise NotImplementedError

    def _next_batches(self, count):
        return [self._left.popleft() for _ in range(min(count, len(self._left)))]


class Executions:
    """Executions that finish in order when somebody waits."""

    limit = 2

    def __init__(self):
        self.waiting = []
        self.drained = 0

    def drain(self):
        self.drained += 1

    def pending(self, owner):
        return sum(each == owner for each, _ in self.waiting)

    def await_any(self, owner):
        pass

    def wait_for_any(self, owner):
        found = next((entry for entry in self.waiting if entry[0] is owner), None)
        if found is not None:
            self.waiting.remove(found)
        return found and found[1]

    def wait_until_idle(self):
        pass

    def wait_for(self, owner, seconds):
        del owner
        return seconds > 0


class Steps:
    """Steps of one batch each. Keras gets logs after every second."""

    def __init__(self, executions, logs):
        self.executions = executions
        self.logs = logs
        self.odd = False

    def schedule(self, iterator, readers):
        del readers
        batches = iterator.take(1)
        self.executions.waiting += [(iterator, batch) for batch in batches]
        return bool(batches)

    def add(self, execution):
        self.logs.logs = execution
        self.odd = not self.odd
        return [] if self.odd else [execution]

    def rest(self):
        odd, self.odd = self.odd, False
        return [self.logs.logs] if odd else []

    def one_batch(self, batch):
        return batch

    def count_read(self, are_all=False):
        pass

    def begin(self):
        pass

    def reset(self):
        pass


@pytest.fixture
def make():
    executions, epochs = Executions(), OpenEpochs()

    def loop():
        logs = SimpleNamespace(logs=None, calls=[], publish_sums=lambda read: None, note_read=lambda logs: None)
        logs.come_back = lambda: None
        for name in ("reset", "carry", "begin_anew", "pause", "go_on"):
            setattr(logs, name, functools.partial(logs.calls.append, name))
        return TrainingLoop(Steps(executions, logs), logs, executions, epochs)

    return SimpleNamespace(loop=loop, executions=executions, epochs=epochs)


def test_an_epoch_ends_with_the_logs_of_its_last_steps(make):
    loop, batches = make.loop(), Batches(5)
    assert [loop(batches) for _ in range(3)] == [1, 3, 4]
    with pytest.raises(StopIteration):
        loop(batches)
    assert loop.finish() == 4 and make.epochs.of(loop) is None and make.executions.drained


def test_an_epoch_that_is_stopped_lets_what_is_in_flight_know_that_nothing_follows(make):
    loop, batches = make.loop(), Batches(50)
    loop(batches)
    assert make.executions.waiting and not make.executions.drained
    loop.finish()
    assert make.executions.drained and not make.executions.waiting


def test_an_epoch_goes_on_after_one_within_it(make):
    train, test = make.loop(), make.loop()
    model = SimpleNamespace(train_function=train, test_function=test)
    batches, validation = Batches(6), Batches(2)
    assert train(batches) == 1
    for loop in (train, test):
        loop.reset(None)
    assert test(validation) == 1 and make.epochs.innermost_of(model) is test
    test.finish()
    assert [train(batches), train(batches)] == [3, 5] and make.epochs.innermost_of(model) is train


def test_an_epoch_that_was_interrupted_ends_with_the_one_around_it(make):
    train, test = make.loop(), make.loop()
    batches = Batches(6)
    train(batches)
    test(Batches(4))
    assert train(batches) == 3
    assert make.epochs.of(test) is None and all(owner is batches for owner, _ in make.executions.waiting)


def test_a_new_epoch_adds_what_is_left_of_the_interrupted_one_before_it_starts(make):
    loop = make.loop()
    first, second = Batches(6), Batches(2)
    assert loop(first) == 1
    assert loop(second) == 1
    assert not make.executions.pending(first)


def during(function):
    return calls._during(calls.Call("fit"), function)


def test_steps_of_a_call_of_fit_are_unread_until_keras_asks_for_their_logs(make):
    loop, batches = make.loop(), Batches(6)
    loop._steps.add = lambda execution: [execution, execution]  # Two steps in each.

    def two_steps():
        unread = []
        for _ in range(2):
            loop(batches)
            unread.append(make.epochs.have_unread())
        return unread

    assert during(two_steps) == [True, False]


def interrupted(loop, batches):
    def first_step_and_interrupt():
        loop(batches)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        during(first_step_and_interrupt)


def test_an_epoch_that_was_interrupted_ends_and_frees_its_loop_when_the_next_fit_of_another_model_begins(make):
    loop, batches = make.loop(), Batches(6)
    steps, freed = loop._steps, weakref.ref(loop)
    interrupted(loop, batches)
    del loop
    assert freed() is not None and make.executions.pending(batches) == 1
    assert during(lambda: make.loop()(Batches(2))) == 1
    assert freed() is None and not make.executions.pending(batches)
    assert steps.logs.logs == 2  # The step that was in flight counts.


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_an_epoch_ends_when_an_exception_leaves_its_fit_if_its_steps_finish_in_time(make, seconds):
    train, test, batches = make.loop(), make.loop(), Batches(6)

    def fit():
        train(batches)
        interrupted(test, Batches(4))
        make.epochs.leave_interrupted(seconds)
        assert (make.epochs.of(test) is None) == (seconds > 0) and make.epochs.of(train) is not None
        return train(batches)

    assert during(fit) == 3
    assert make.epochs.end_interrupted()  # Models may be gone.
    assert not make.epochs.end_interrupted()


def test_an_interrupted_epoch_within_another_one_ends_without_it(make):
    train, test, batches = make.loop(), make.loop(), Batches(6)

    def fit():
        assert train(batches) == 1
        interrupted(test, Batches(4))
        assert during(lambda: make.loop()(Batches(2))) == 1  # A callback evaluates another model.
        assert make.epochs.of(test) is None and make.epochs.of(train) is not None
        return [train(batches), train(batches)]

    assert during(fit) == [3, 5]


def test_the_error_of_a_step_is_raised_by_the_next_call_and_only_by_that(make):
    loop, batches = make.loop(), Batches(6)
    loop(batches)
    loop.reset(ValueError("a step"))
    with pytest.raises(ValueError, match="a step"):
        loop(batches)
    assert loop(batches) == 3


def test_metrics_that_a_callback_resets_start_anew_and_those_of_an_evaluation_within_the_epoch_do_not(make):
    loop, batches = make.loop(), Batches(6)

    def fit():
        loop(batches)
        loop.reset(None)  # `reset_metrics` in a callback.
        during(lambda: loop.reset(None))  # `evaluate` in a callback.

    during(fit)
    assert loop.metric_logs.calls == ["begin_anew", "carry"]


def test_an_epoch_goes_on_after_train_on_batch_within_it_also_if_that_fails(make, monkeypatch):
    loop, batches = make.loop(), Batches(6)

    def fit():
        assert loop(batches) == 1 and loop(iter([7.0])) == 7.0
        monkeypatch.setattr(loop._steps, "one_batch", lambda batch: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            loop(iter([7.0]))
        return loop(batches)

    assert during(fit) == 3
    assert loop.metric_logs.calls == ["begin_anew", "pause", "go_on"] * 2


def test_an_epoch_goes_on_after_a_fit_of_the_same_model_within_it(make):
    loop, batches, inner = make.loop(), Batches(6), Batches(3)

    def inner_fit():
        loop.reset(None)
        assert loop(inner) == 1
        assert loop.finish() == 2
        return len(inner._left)

    def fit():
        assert loop(batches) == 1
        assert during(inner_fit) == 0
        seen = [loop(batches), loop(batches)]
        loop.finish()
        return seen

    assert during(fit) == [2, 4]  # The step that was in flight counts before the inner epoch begins.
    assert loop.metric_logs.calls == ["carry", "pause", "go_on"]
    assert make.epochs.of(loop) is None and not make.executions.waiting


def test_a_fit_within_an_epoch_of_the_same_model_that_was_interrupted_ends_when_the_outer_one_goes_on(make):
    loop, batches = make.loop(), Batches(6)

    def fit():
        loop(batches)
        interrupted(loop, Batches(4))
        return [loop(batches), loop(batches)]

    assert during(fit) == [3, 5]
    assert loop.metric_logs.calls == ["pause", "go_on"]


def test_an_interrupted_epoch_whose_steps_took_long_is_over_for_the_metrics_that_start_next(make):
    """Else the logs of `train_on_batch` after Ctrl-C would be means over the steps of that epoch, too."""
    loop, batches = make.loop(), Batches(6)
    interrupted(loop, batches)
    make.epochs.leave_interrupted(0.0)
    assert make.epochs.of(loop) is not None
    during(lambda: loop.reset(None))
    assert loop.metric_logs.calls == ["reset"] and make.epochs.of(loop) is None and not make.executions.waiting
    assert make.epochs.end_interrupted()  # Its model may be gone.


def test_ctrl_c_while_the_steps_of_an_execution_are_added_comes_after_it(make, monkeypatch):
    """Else counters of updates would lack steps that the weights have."""
    loop, batches, added = make.loop(), Batches(6), []
    add = loop._steps.add

    def interrupted_add(execution):
        signal.raise_signal(signal.SIGINT)
        added.append(execution)
        return add(execution)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # Of a shell's background job it is ignored.
    interrupts.keep_out_of_tensorflow()
    try:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(loop._steps, "add", interrupted_add)
            loop(batches)
    finally:
        signal.signal(signal.SIGINT, before)
    assert added == [0] and loop(batches) == 1
