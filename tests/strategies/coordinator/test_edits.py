"""A callback that computes weights from what it reads loses the steps in flight once."""

import logging
import threading

import pytest
from running import Running

from tfdist.strategies.coordinator.edits import Edits
from tfdist.strategies.keras_hooks import calls
from tfdist.strategies.keras_hooks.replicas import warned


@pytest.fixture
def running(monkeypatch, caplog):
    monkeypatch.setattr(warned, "_given", set())
    caplog.set_level(logging.WARNING)
    return Running(2)


@pytest.fixture
def in_fit(monkeypatch):
    """Whether the program is in a callback of `fit`; a call of it begins another `fit`."""
    monkeypatch.setattr(calls, "is_in_this_thread", lambda: True)
    monkeypatch.setattr(calls, "_running", [])
    return lambda: calls._running.append(calls.Call("fit"))


def test_the_first_read_of_a_fit_waits_so_that_an_assignment_after_it_loses_nothing(running, in_fit, caplog):
    edits = Edits(running, lambda: False)
    for step in range(2):
        running.count, running.taken = 2, step
        in_fit()
        edits.before_read()
        assert not len(running)
        edits.before_read()
        edits.before_assignment("kernel:0")
    running.count, running.taken = 2, 2
    edits.before_read()
    assert not len(running) and not caplog.records


def test_later_reads_of_a_fit_do_not_wait_if_no_assignment_followed_the_first(running, in_fit, caplog):
    edits = Edits(running, lambda: False)
    in_fit()
    running.count = 0
    edits.before_read()  # At the end of an epoch nothing is in flight.
    edits.before_assignment("kernel:0")
    running.count, running.taken = 2, 1
    edits.before_read()
    assert not len(running)
    running.count, running.taken = 2, 2
    edits.before_read()
    assert len(running) == 2
    edits.before_assignment("kernel:0")
    assert "is lost, this time" in caplog.text


def test_reads_wait_after_a_weight_was_read_and_assigned_between_two_steps(running, caplog):
    edits = Edits(running, lambda: False)
    edits.before_read()
    assert len(running) == 2
    edits.before_assignment("kernel:0")
    assert not len(running) and "reads and assigns kernel within" in caplog.text
    running.count, running.taken = 2, 1
    other = threading.Thread(target=edits.before_read)  # Threads of groups read, too, and steps wait for them.
    other.start()
    other.join()
    assert len(running) == 2
    edits.before_read()
    assert not len(running)
    edits.before_assignment("kernel:0")
    assert len(caplog.records) == 1


def test_an_assignment_after_a_read_between_other_steps_waits_and_nothing_else(running, caplog):
    edits = Edits(running, lambda: False)
    edits.before_read()
    running.taken += 1
    edits.before_assignment("kernel:0")
    assert not len(running)
    running.count = 2
    edits.before_read()
    assert len(running) == 2 and not caplog.records


def test_steps_in_flight_keep_the_old_value_of_what_they_do_not_train_and_a_warning_names_it_once(running, caplog):
    edits = Edits(running, lambda: False)
    for _ in range(2):
        edits.warn_if_late("learning_rate:0")
    assert len(running) == 2
    assert [record.getMessage().split(",")[0] for record in caplog.records] == [
        "a callback assigns learning_rate within an epoch"
    ]
    running.count = 0
    edits.warn_if_late("alpha")
    assert len(caplog.records) == 1


def test_so_do_steps_that_are_done_before_keras_has_called_its_callbacks_for_them(running, caplog):
    running.count = 0
    Edits(running, lambda: True).warn_if_late("beta:0")
    assert "a callback assigns beta within" in caplog.text
