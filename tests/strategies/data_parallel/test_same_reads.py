"""Tasks of a replica that do not all read a sharded variable are told so; they do not wait for ever."""

import threading

import keras
import pytest
import tensorflow as tf
from local_board import LocalBoard, same_calls_of

from tfdist.errors import DifferentCallsError
from tfdist.strategies.data_parallel import same_calls, same_reads
from tfdist.strategies.data_parallel.lost_tasks import TaskLostError
from tfdist.strategies.data_parallel.same_reads import SameReads

NAMES = ["worker:0", "worker:1"]
FIT = {"call": "fit"}


@pytest.fixture
def results():
    """A function that lets two tasks do things, in threads, and returns the message of the error of each, None without one."""

    def results(*tasks):
        board, found = LocalBoard(), {}

        def run(name, task):
            calls = same_calls_of(name, NAMES, board)
            reads = SameReads(calls, NAMES, board)
            try:
                task(calls, reads)
                found[name] = None
            except DifferentCallsError as error:
                found[name] = str(error)
            finally:
                calls.end()

        threads = [threading.Thread(target=run, args=pair) for pair in zip(NAMES, tasks, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        results.board = board
        return [found[name] for name in NAMES]

    return results


def test_reads_of_all_tasks_meet_and_leave_little(results):
    def task(calls, reads):
        for name in ("kernel", "bias", "kernel"):
            reads.meet(name, 20)

    assert results(task, task) == [None, None]
    assert sorted(name for name in results.board.values if name.startswith("reads")) == ["reads/3/worker:0", "reads/3/worker:1"]


@pytest.mark.parametrize("reader", [0, 1])
def test_a_read_that_another_task_does_not_make_names_its_call(results, reader):
    def read(calls, reads):
        with pytest.raises(DifferentCallsError, match=r"reads kernel, which .* calls fit; all tasks of a replica have to make"):
            reads.meet("kernel", 20)
        fit(calls, reads)

    def fit(calls, reads):
        calls.agree(FIT)
        reads.meet("kernel", 20)  # As if the failed read had not been.

    assert results(*((read, fit) if reader == 0 else (fit, read))) == [None, None]


def test_other_variables_are_named(results):
    one, other = results(lambda calls, reads: reads.meet("kernel", 20), lambda calls, reads: reads.meet("bias", 20))
    assert one.startswith("worker:0 reads kernel while worker:1 reads bias; all tasks of a replica")
    assert other.startswith("worker:1 reads bias while worker:0 reads kernel; all tasks of a replica")


def test_the_end_of_another_task_is_named(results):
    one, other = results(lambda calls, reads: reads.meet("kernel", 20), lambda calls, reads: None)
    assert "worker:0 reads kernel, which is sharded over tasks, and worker:1 has ended its program; " in one and other is None


def test_a_step_of_another_task_is_named(results, monkeypatch):
    monkeypatch.setattr(same_calls, "EXECUTION_SECONDS", 0.02)
    is_over = threading.Event()

    def read(calls, reads):
        try:
            reads.meet("kernel", 20)
        finally:
            is_over.set()

    def step(calls, reads):
        with calls.executing():
            assert is_over.wait(20)

    assert "and worker:1 is in a step; all tasks of a replica" in results(read, step)[0]


def test_without_a_sign_of_the_others_a_read_ends(monkeypatch):
    monkeypatch.setattr(same_reads, "POLL_SECONDS", 0.01)
    reads = SameReads(same_calls_of("worker:0", NAMES, LocalBoard()), NAMES, LocalBoard())
    with pytest.raises(DifferentCallsError, match="and worker:1 does not make this call within 0 s; all tasks"):
        reads.meet("kernel", 0)


def test_a_task_that_is_lost_is_named_instead_of_a_call_that_the_program_should_make():
    lost = TaskLostError(None, None, "lost worker:1")
    calls = same_calls_of("worker:0", NAMES, LocalBoard(), watch=lambda name, may_end: lambda: lost)
    with pytest.raises(TaskLostError, match="lost worker:1"):
        SameReads(calls, NAMES, LocalBoard()).meet("kernel", 20)

    class Gone(LocalBoard):  # The first task, which keeps what is told.
        def take(self, name, seconds):
            raise DifferentCallsError("the first task has ended") from tf.errors.UnavailableError(None, None, "no answer")

    calls = same_calls_of("worker:1", NAMES, Gone(), explain=lambda error: TaskLostError(None, None, f"lost: {error.message}"))
    reads = SameReads(calls, NAMES, Gone())

    class Layer(keras.layers.Layer):  # Keras makes the error anew, with its arguments in the text.
        def call(self, inputs):
            reads.meet("kernel", 20)

    with pytest.raises(TaskLostError, match="lost: no answer"):
        Layer()(tf.zeros([2, 3]))


def test_the_first_task_outlasts_the_readers_of_other_replicas():
    board = LocalBoard()
    first, second = (same_calls_of(name, NAMES, board) for name in NAMES)
    reads = SameReads(first, NAMES[:1], board)
    ended = []
    threading.Timer(0.3, lambda: (ended.append(True), second.end())).start()
    reads.outlast(NAMES[1:], 20)
    assert ended

    now = iter(range(100))
    SameReads(first, NAMES[:1], board, clock=lambda: next(now)).outlast(["worker:2"], 3)  # It ends never.
