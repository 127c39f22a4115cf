"""What a task tells the others goes by way of the first one. If that is cut off, nobody waits for TCP and gRPC to notice it."""

import threading

import pytest
import tensorflow as tf
from local_board import same_calls_of

from tfdist.strategies.data_parallel import board as module
from tfdist.strategies.data_parallel.board import Board
from tfdist.strategies.data_parallel.lost_tasks import TaskLostError

LOST = TaskLostError(None, None, "no answer from worker:0 (w0:1): its link is cut")


@pytest.fixture
def service(monkeypatch):
    """Stands for TensorFlow's coordination service: keeps what it is told, once it may."""

    class Service:
        def __init__(self):
            self.told, self.may_answer = [], threading.Event()

        def hear(self, *arguments):
            self.may_answer.wait(60)
            self.told.append(arguments)

    found = Service()
    monkeypatch.setattr(module, "publish", found.hear)
    monkeypatch.setattr(module, "unpublish", found.hear)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    yield found
    found.may_answer.set()


def test_a_call_ends_when_the_first_task_is_lost_and_the_next_one_knows_it(service):
    watched, looks = [], iter([None, None, LOST, LOST])

    def watch():
        watched.append(1)
        return lambda: next(looks)

    board = Board(watch)
    for call in (lambda: board.put("name", "value"), lambda: board.remove("name")):
        with pytest.raises(TaskLostError, match="worker:0"):
            call()
    assert watched == [1] and next(looks, None) is None


def test_a_late_answer_counts_and_errors_of_the_service_arrive(service, monkeypatch):
    def look():
        service.may_answer.set()

    Board(lambda: look).put("name", "value")
    assert service.told == [("name", "value")]

    def fails(*arguments):
        raise tf.errors.UnavailableError(None, None, "Socket closed")

    monkeypatch.setattr(module, "publish", fails)
    with pytest.raises(tf.errors.UnavailableError, match="Socket closed"):
        Board(lambda: look).put("name", "value")


def test_an_agreement_names_the_lost_task_as_the_board_has_found_it(service):
    calls = same_calls_of("worker:1", ["worker:0", "worker:1"], None, watch=lambda name, may_end: lambda: LOST)
    calls.board.take = lambda name, seconds: None
    with pytest.raises(TaskLostError) as caught:
        calls.agree({"call": "fit"})
    assert caught.value is LOST
    calls.end()  # Tells nobody.
