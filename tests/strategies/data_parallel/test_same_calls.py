"""Tasks of multi_worker_mirrored that make different calls, or read different data, are told so; they do not wait for ever."""

import threading

import pytest
import tensorflow as tf
from local_board import LocalBoard, same_calls_of

from tfdist.errors import DifferentCallsError
from tfdist.strategies.data_parallel import same_calls
from tfdist.strategies.data_parallel.same_calls import difference

NAMES = ["worker:0", "worker:1", "worker:2"]
FIT = {"call": "fit", "epochs": "0 to 2", "batches": 8, "spec": "(None, 4)"}


def agree(board, facts, executions=None):
    """Lets tasks agree, in threads: name -> facts. Returns name -> the message of the error, or None."""
    results = {}

    def task(name):
        calls = same_calls_of(name, NAMES[: len(facts)], board)
        for _ in range((executions or {}).get(name, 0)):
            with calls.executing():
                pass
        try:
            for each in facts[name]:
                calls.agree(each)
            results[name] = None
        except DifferentCallsError as error:
            results[name] = str(error)
        finally:
            calls.end()

    threads = [threading.Thread(target=task, args=(name,)) for name in facts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return results


def test_equal_calls_go_on_and_leave_nothing_behind_but_the_last():
    board = LocalBoard()
    assert agree(board, {name: [FIT] * 5 for name in NAMES}) == dict.fromkeys(NAMES)
    assert {key for key in board.values if key.startswith("calls/")} == {
        *(f"calls/5/{name}" for name in NAMES),
        "calls/5/verdict",
    }


def test_all_tasks_learn_which_of_them_calls_something_else():
    results = agree(LocalBoard(), {"worker:0": [FIT], "worker:1": [FIT], "worker:2": [{"call": "predict"}]})
    (message,) = set(results.values())
    assert message.startswith("worker:0 calls fit while worker:2 calls predict; under multi_worker_mirrored every task")


def test_a_task_that_has_ended_is_named_to_those_that_call():
    results = agree(LocalBoard(), {"worker:0": [FIT, FIT], "worker:1": [FIT]})
    assert results["worker:1"] is None
    assert results["worker:0"].startswith("worker:1 has ended its program, and worker:0 calls fit; ")


def test_a_task_that_waits_for_one_in_a_later_execution_knows_that_both_wait():
    board = LocalBoard()
    now = [0.0]
    other = same_calls_of("worker:1", NAMES[:2], board, clock=lambda: now[0])
    with other.executing():
        other.look()
        assert "executing/worker:1" not in board.values  # It has not lasted long enough to be told.
        now[0] += same_calls.EXECUTION_SECONDS
        other.look()
        assert board.values["executing/worker:1"] == "1"
        waiting = same_calls_of("worker:0", NAMES[:2], board)
        with pytest.raises(
            DifferentCallsError, match="worker:0 begins to read data for fit while worker:1 is in a step and waits"
        ):
            waiting.agree(FIT)
    other.look()
    assert "executing/worker:1" not in board.values  # Taken back after its end.
    with other.executing():
        now[0] += same_calls.EXECUTION_SECONDS
        other.look()
        other.look()
    assert board.values["executing/worker:1"] == "2"


def test_an_execution_ends_although_what_is_told_of_it_waits_for_the_first_task():
    """The first task keeps what is told. While it is stopped, or its link is cut, a call of the board does not return."""

    class Stopped(LocalBoard):
        def __init__(self):
            super().__init__()
            self.asked, self.answers = threading.Event(), threading.Event()

        def put(self, name, value):
            self.asked.set()
            assert self.answers.wait(20)
            super().put(name, value)

    board, now = Stopped(), [0.0]
    calls = same_calls_of("worker:1", NAMES, board, clock=lambda: now[0])
    with calls.executing():
        now[0] += same_calls.EXECUTION_SECONDS
        watcher = threading.Thread(target=calls.look)
        watcher.start()
        assert board.asked.wait(20)
    assert watcher.is_alive() and not board.answers.is_set()  # The step has ended first.
    board.answers.set()
    watcher.join(20)
    assert board.values == {"executing/worker:1": "1"}
    calls.look()
    assert board.values == {}


def test_an_execution_that_this_task_has_begun_too_is_no_reason():
    board = LocalBoard()
    board.put("executing/worker:1", "1")
    results = agree(board, {"worker:0": [FIT], "worker:1": [FIT]}, executions={"worker:0": 1, "worker:1": 1})
    assert results == {"worker:0": None, "worker:1": None}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"call": "evaluate"}, "worker:0 calls fit while worker:1 calls evaluate; "),
        ({"epochs": "0 to 3"}, "fit makes the epochs 0 to 2 on worker:0 and 0 to 3 on worker:1; give every task the same"),
        (
            {"batches": 9},
            "fit has 8 batches on worker:0 and 9 on worker:1; under multi_worker_mirrored every task reads the whole",
        ),
        ({"spec": "(None, 5)"}, "fit gets batches of (None, 4) on worker:0 and of (None, 5) on worker:1; "),
        ({"batches": None}, ""),
    ],
)
def test_a_difference_is_a_sentence(change, sentence):
    found = difference({"worker:0": FIT, "worker:1": FIT | change})
    assert found.startswith(sentence) if sentence else found == ""


PROGRAM = """
    import tfdist
    with tfdist.strategy().scope():
        import keras, numpy as np
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x, y = np.ones((64, 4)), np.arange(64.0)[:, None]
    rank, chief = tfdist.rank(), tfdist.is_chief()
    def attempt(name, call):
        try:
            call()
        except Exception as error:
            print(name, rank, str(error).partition(";")[0], flush=True)
        else:
            print(name, rank, "went on", flush=True)
    fit = lambda n=64, **more: model.fit(x[:n], y[:n], verbose=0, **more)
    attempt("evaluate", lambda: model.evaluate(x, y, verbose=0) if chief else fit())
    attempt("predict", lambda: model.predict(x, verbose=0) if chief else fit())
    attempt("epochs", lambda: fit(epochs=1 + rank))
    attempt("lengths", lambda: fit(32 + 32 * rank))
    class Eager(keras.Sequential):
        def train_step(self, data):
            return super().train_step(data) if float(data[1][0, 0]) else {}
    if chief: keras.optimizers.SGD()  # The names of later ones have other numbers in other tasks.
    with tfdist.strategy().scope():
        eager = Eager([keras.Input((4,)), keras.layers.Dense(1)])
        eager.compile("sgd", "mse", run_eagerly=True)
    attempt("numbers", lambda: eager.fit(x, y + 1, shuffle=False, verbose=0))
    attempt("eager", lambda: eager.fit(x, y, shuffle=False, verbose=0))
    attempt("all", lambda: (fit(epochs=2, validation_data=(x, y)), model.evaluate(x, y, verbose=0), model.predict(x, verbose=0)))
    print("divided", flush=True)
    attempt("ranks", lambda: model.fit(x[rank::2], y[rank::2], shuffle=False, verbose=0))
    attempt("batches", lambda: model.train_on_batch(x[rank:8:2], y[rank:8:2]))
    class Evaluates(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if chief: model.evaluate(x, y, verbose=0)
    fit(epochs=2, callbacks=[Evaluates()])
"""


@pytest.mark.cluster
@pytest.mark.timeout(240)
def test_programs_that_treat_tasks_differently_are_told_and_end(start, script, tmp_path):
    (tmp_path / "two.conf").write_text("cluster { nworker_groups: 1 nworkers_per_group: 2 nworkers_per_procs: 1 }")
    job = start("-m", "tfdist.launch", "--cluster", "two.conf", script(PROGRAM))
    assert job.wait(200) == 1
    for rank in (0, 1):
        for line in (
            f"evaluate {rank} worker:0 calls evaluate while worker:1 calls fit",
            f"predict {rank} worker:0 calls predict while worker:1 calls fit",
            f"epochs {rank} fit makes the epochs 0 to 1 on worker:0 and 0 to 2 on worker:1",
            f"lengths {rank} fit has 1 batches on worker:0 and 2 on worker:1",
            f"eager {rank} with run_eagerly=True a step ends on worker:0 and updates with sgd on worker:1",
            f"numbers {rank} went on",
            f"all {rank} went on",
            f"ranks {rank} went on",
            f"batches {rank} went on",
        ):
            assert line in job.output
    before, after = job.output.split("divided", 1)
    assert "read different batches" not in before
    assert after.count("worker:0 | worker:0 and worker:1 read different batches") == 2
    assert "worker:0 begins to read data for evaluate while worker:1 is in a step and waits for it" in after
    assert job.left() == {}


def test_a_task_that_has_lost_another_says_so_and_tells_nobody_anything_more():
    """The one that is lost may be the first, which keeps what is told: a call to it would not return."""
    board, gone = LocalBoard(), RuntimeError("lost worker:0")
    calls = same_calls_of("worker:1", NAMES, board, explain=lambda error: gone if "Unavailable" in str(error) else None)
    with pytest.raises(tf.errors.AbortedError), calls.executing():
        raise tf.errors.AbortedError(None, None, "another reason")
    with pytest.raises(RuntimeError, match="lost worker:0"), calls.executing():
        raise tf.errors.UnavailableError(None, None, "Unavailable")
    calls.end()
    assert board.values == {}


def test_a_program_ends_although_the_first_task_does_not_take_its_word(monkeypatch):
    """A collective in a loop of the program's own, or one whose error it has caught, has failed because that task is stopped."""
    monkeypatch.setenv("TFDIST_LOST_TIMEOUT", "1")
    answer, silences = threading.Event(), []

    class Stopped(LocalBoard):
        def put(self, name, value):
            answer.wait(60)

    monkeypatch.setattr(same_calls, "keep_context", lambda: silences.append(1))
    same_calls_of("worker:1", NAMES, Stopped()).end()
    answer.set()
    assert silences == [1]


def test_the_end_of_a_program_by_an_error_of_a_collective_names_the_lost_task(monkeypatch, caplog):
    lost = tf.errors.UnavailableError(None, None, "Socket closed")
    error = ValueError("the loop failed")
    error.__cause__ = lost
    monkeypatch.setattr("sys.last_value", error, raising=False)
    board = LocalBoard()
    same_calls_of("worker:1", NAMES, board, explain=lambda found: RuntimeError("lost worker:0") if found is lost else None).end(
        True
    )
    assert "lost worker:0" in caplog.text and board.values == {}  # Nobody is told anything more.


def test_a_task_that_finds_the_first_one_lost_when_it_calls_something_says_so():
    class Cut(LocalBoard):
        def put(self, name, value):
            raise tf.errors.UnavailableError(None, None, "recvmsg:Connection timed out")

    calls = same_calls_of("worker:1", NAMES, Cut(), explain=lambda error: RuntimeError("no answer from worker:0"))
    with pytest.raises(RuntimeError, match="no answer from worker:0"):
        calls.agree(FIT)
    calls.end()


def test_a_long_execution_looks_at_the_others_and_a_short_one_does_not(monkeypatch):
    monkeypatch.setattr(same_calls, "LOOK_SECONDS", 1.0)
    looked = threading.Event()
    calls = same_calls_of("worker:1", NAMES, LocalBoard(), look_around=lambda: bool(looked.set()))
    with calls.executing():
        pass
    assert not looked.wait(1.5)
    with calls.executing():
        assert looked.wait(20)
    calls.end()


def test_a_long_execution_looks_often_at_first_and_while_a_look_has_to_be_confirmed():
    now, found, looks = [0.0], [False], []

    def look():
        looks.append(now[0])
        return found[0]

    calls = same_calls_of("worker:1", NAMES, LocalBoard(), clock=lambda: now[0], look_around=look)

    def looks_until(seconds):
        looks.clear()
        while now[0] < seconds:
            now[0] += 0.125  # Exact, and half of LOOK_SECONDS.
            calls.look_at_others()
        return list(looks)

    calls.look_at_others()
    with calls.executing():
        assert looks_until(5.0) == [0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0]
        found[0] = True
        assert looks_until(6.5) == [6.0, 6.125, 6.25, 6.375, 6.5]
    found[0] = False
    with calls.executing():
        assert looks_until(7.5) == [6.75, 7.0, 7.5]
    calls.look_at_others()
    assert len(looks) == 3
    calls.end()


def test_a_task_waits_for_the_ends_of_the_others_and_names_those_that_have_not_finished():
    board, left, now = LocalBoard(), set(), [0.0]
    names = [*NAMES, "worker:3"]

    def clock():
        now[0] += same_calls.END_SECONDS / 4
        return now[0]

    first = same_calls_of(names[0], names, board, clock=clock, has_left=left.__contains__)
    others = [same_calls_of(name, names, board) for name in names[1:]]
    left.add("worker:2")  # Without a word.
    others[0].end()
    timer = threading.Timer(0.2, others[2].end)
    timer.start()
    assert first.await_ends() == [] and board.values["ended/worker:0"] == ""
    timer.join()
    left.clear()
    now[0] = 0.0
    assert first.await_ends() == ["worker:2"]  # It runs on.
    others[1].end(failed=True)
    assert first.await_ends() == ["worker:2"]


def test_a_task_does_not_wait_for_the_end_of_one_that_waits_for_it_in_a_step():
    board = LocalBoard()
    board.put("executing/worker:1", "1")
    assert same_calls_of("worker:0", NAMES[:2], board).await_ends() == ["worker:1"]


def test_a_callback_that_restores_on_one_task_only_is_named():
    one, none = {**FIT, "backups": 1}, {**FIT, "backups": 0}
    text = difference({"worker:0": one, "worker:1": none})
    assert text.startswith("fit has 1 BackupAndRestore on worker:0 and 0 on worker:1; under multi_worker_mirrored every task")


def test_a_task_that_is_lost_before_its_call_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(same_calls, "POLL_SECONDS", 0.01)
    board, looks = LocalBoard(), iter([None, None, tf.errors.UnavailableError(None, None, "no answer from worker:1")])
    calls = same_calls_of("worker:0", NAMES[:2], board, explain=pytest.fail, watch=lambda name, may_end: lambda: next(looks))
    with pytest.raises(tf.errors.UnavailableError, match="no answer from worker:1"):
        calls.agree(FIT)
    calls.end()
    assert "ended/worker:0" not in board.values  # Nobody is told anything more.
