"""What the chief writes about its `fit` for the launcher, and what it does on SIGTERM."""

import contextlib
import ctypes
import json
import os
import signal
import time
from types import SimpleNamespace

import keras
import pytest

from tfdist import json_values
from tfdist.launch.jobs.progress import SUFFIX as LAUNCHER_SUFFIX
from tfdist.launch.jobs.progress import path_of, read
from tfdist.strategies.keras_hooks.task_requests import TaskRequests
from tfdist.strategies.runtime import preemption
from tfdist.strategies.runtime.fit_progress import SUFFIX, FitProgress, close_all
from tfdist.strategies.runtime.preemption import EXIT_CODE, SaveOnSignal


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture(autouse=True)
def signals():
    """The handlers of a new process, whatever earlier tests have left; puts them back."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGUSR1)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def fit(tmp_path):
    """A callback with a clock, and a function that returns what it has written."""
    clock, counts = Clock(), {"steps": 0, "examples": 0.0}
    callback = FitProgress(str(tmp_path / "report.json"), counts, clock)
    callback.set_params({"epochs": 3, "steps": 10})
    return callback, clock, counts, lambda: read(tmp_path / "report.json")


def test_both_sides_name_the_file_in_the_same_way():
    assert SUFFIX == LAUNCHER_SUFFIX


def test_progress_speed_and_time_left(fit):
    callback, clock, counts, written = fit
    callback.on_epoch_begin(0)
    for batch in range(10):
        clock.now += 1.0
        callback.on_train_batch_end(batch)
    first = written()
    assert (first.phase, first.epoch, first.epochs, first.step_text, first.batches) == ("fit", 1, 3, "10/10", 10)
    assert (first.steps_per_second, first.examples_per_second, first.seconds_left) == (1.0, None, 20.0)
    callback.on_test_begin()
    clock.now += 5.0
    callback.on_test_batch_begin(0)
    assert (written().phase, written().batches) == ("evaluate", 11)
    callback.on_test_end()
    callback.on_epoch_end(0, {"loss": 0.5, "odd": {"a": 1}})
    counts.update(steps=10, examples=320.0)
    callback.on_epoch_begin(1)
    clock.now += 1.0
    callback.on_train_batch_end(0)
    second = written()
    assert second.metrics == {"loss": 0.5} and second.examples_per_second == pytest.approx(32 * second.steps_per_second)
    # The rest of this epoch, and one epoch with its validation of 5 s.
    assert second.seconds_left == pytest.approx(9 / second.steps_per_second + 15)
    callback.on_train_end()
    assert written().phase == "idle" and written().seconds_left is None


def test_a_fit_that_an_exception_or_the_end_of_the_program_ends_is_not_said_to_go_on(fit):
    callback, _, _, written = fit
    callback.on_epoch_begin(0)
    close_all()
    callback.on_epoch_begin(1)  # In a thread that ends with the program.
    assert written().phase == "idle"


def test_a_fit_that_ends_on_a_full_disk_is_not_said_to_go_on(fit, monkeypatch):
    callback, _, _, written = fit
    callback.on_epoch_begin(0)

    def full(*args, **kwargs):
        raise OSError("No space left on device")

    monkeypatch.setattr(json_values, "open", full, raising=False)
    callback.close()
    assert written() is None


def test_keras_dispatches_the_batches_of_a_validation_as_without_it(fit):
    assert type(fit[0]).on_test_batch_end is keras.callbacks.Callback.on_test_batch_end


def test_it_writes_at_most_twice_a_second_and_survives_a_full_disk(fit, tmp_path):
    callback, clock, _, _ = fit
    callback.on_epoch_begin(0)
    path_of(tmp_path / "report.json").unlink()
    clock.now += 0.3
    callback.on_train_batch_end(0)
    assert not path_of(tmp_path / "report.json").exists()
    os.mkdir(tmp_path / f"report.json{SUFFIX}.part")
    clock.now += 0.3
    callback.on_train_batch_end(1)  # It cannot be written.
    os.rmdir(tmp_path / f"report.json{SUFFIX}.part")
    clock.now += 0.6
    callback.on_train_batch_end(2)
    assert read(tmp_path / "report.json").step == 3


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"epoch": 1}', '{"new": 1}', '{"seconds_left": NaN}', '{"seconds_left": Infinity}']
)
def test_whatever_is_in_the_file_does_not_harm_the_launcher(text, tmp_path):
    path_of(tmp_path / "report.json").write_text(text)
    progress = read(tmp_path / "report.json")
    assert progress is None or progress.describe()


class Backup(keras.callbacks.BackupAndRestore):
    saved = 0

    def _save_model(self):
        self.saved += 1


@pytest.mark.parametrize("save_freq", ["epoch", 5])
@pytest.mark.parametrize("batch", [0, 7])
def test_sigterm_saves_once_after_the_step_and_ends_the_program(tmp_path, save_freq, batch):
    backup = Backup(tmp_path, save_freq=save_freq)
    saver = SaveOnSignal([keras.callbacks.History(), backup], saves=True)
    saver.on_train_begin()
    os.kill(os.getpid(), signal.SIGTERM)
    backup.saved = 0
    with pytest.raises(SystemExit) as end:
        saver.on_train_batch_end(batch)
    assert (end.value.code, backup.saved) == (EXIT_CODE, 1)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize("saves", [True, False])
def test_sigusr1_saves_on_the_chief_and_the_training_goes_on(tmp_path, saves):
    backup = Backup(tmp_path, save_freq="epoch")
    saver = SaveOnSignal(backup, saves)
    saver.on_train_begin()
    assert (signal.getsignal(signal.SIGTERM) == signal.SIG_DFL) == (not saves)
    for batch in range(4):
        if batch == 2:
            os.kill(os.getpid(), signal.SIGUSR1)
        saver.on_train_batch_end(batch)
    assert (backup.saved, backup.save_freq) == (int(saves), "epoch")
    saver.release()
    assert signal.getsignal(signal.SIGUSR1) == signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_where_a_save_takes_all_tasks_they_save_after_the_same_step():
    requests, saved = [TaskRequests() for _ in range(2)], []
    savers = [
        SaveOnSignal([SimpleNamespace(save_on_signal=lambda batch, task=task: saved.append((task, batch)))], saves=task == 0)
        for task in range(2)
    ]
    for saver, each in zip(savers, requests, strict=True):
        strategy = SimpleNamespace(tfdist_hooks=SimpleNamespace(task_requests=each))
        saver.set_model(SimpleNamespace(distribute_strategy=strategy))
        saver.on_train_begin()
    for batch in range(6):
        total = sum(each.own.numpy() for each in requests)  # The step.
        for each in requests:
            each.total.assign(total)
        if batch == 2:
            os.kill(os.getpid(), signal.SIGUSR1)
        for saver in savers[:: 1 if batch % 2 else -1]:
            saver.on_train_batch_end(batch)
    for saver in savers:
        saver.release()
    assert sorted(saved) == [(0, 3), (1, 3)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("is_last_epoch", [False, True])
def test_a_signal_in_the_last_step_of_an_epoch_is_heeded_when_its_end_is_saved(capsys, number, is_last_epoch):
    done = []
    backup = SimpleNamespace(save_on_signal=lambda batch: False, wait_for_save=lambda: done.append("wait") is None)
    saver = SaveOnSignal([backup], saves=True)
    saver.on_train_begin()
    os.kill(os.getpid(), number)
    saver.on_train_batch_end(9)
    assert "saved" not in capsys.readouterr().out
    end = contextlib.nullcontext() if number == signal.SIGUSR1 else pytest.raises(SystemExit, match=str(EXIT_CODE))
    with end:
        if is_last_epoch:
            saver.on_train_end()
            saver.release()
            preemption.end_after_fit(lambda: done.append("wait") is None)
        else:
            saver.on_epoch_begin(1)
    saver.release()
    assert done == ["wait"] and capsys.readouterr().out.startswith(f"tfdist: {number.name}: the backup is saved")
    preemption.end_after_fit(lambda: done.append("again") is None)
    assert done == ["wait"]


def test_sigterm_stays_as_it_is_without_a_backup_or_with_a_handler_of_the_program(tmp_path):
    SaveOnSignal(None, saves=True).on_train_begin()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    own = lambda *_: None  # noqa: E731
    signal.signal(signal.SIGTERM, own)
    try:
        saver = SaveOnSignal(keras.callbacks.CallbackList([Backup(tmp_path)]), saves=True)
        saver.on_train_begin()
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.mark.parametrize("is_of_tensorflow", [False, True])
def test_sigterm_ends_a_fork_of_the_program_as_ever_and_sigusr1_does_not(tmp_path, is_of_tensorflow):
    preemption.install()
    saver = SaveOnSignal(Backup(tmp_path), saves=True)
    saver.on_train_begin()
    library = ctypes.CDLL(None)
    library.signal.restype, library.signal.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p]
    if is_of_tensorflow:  # A handler that Python does not know, and that lets the process live.
        saver.release()
        before = library.signal(signal.SIGTERM, ctypes.cast(library.abs, ctypes.c_void_p))
    child = os.fork()
    if not child:
        time.sleep(20)
        os._exit(0)
    if not is_of_tensorflow:
        os.kill(child, signal.SIGUSR1)  # Slurm sends it to all processes.
    os.kill(child, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    if is_of_tensorflow:
        library.signal(signal.SIGTERM, before)
    saver.release()


@pytest.mark.cluster
def test_a_terminated_job_continues_from_its_backup(start, script, tmp_path):
    program = script(
        """
        import sys, time
        import keras, numpy as np, tfdist
        with tfdist.strategy().scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        class Slow(keras.callbacks.Callback):
            def on_train_begin(self, logs=None): print("from", int(model.optimizer.iterations.numpy()), flush=True)
            def on_train_batch_end(self, batch, logs=None): time.sleep(self.pause)
            def on_epoch_begin(self, epoch, logs=None):
                self.pause = 0.5 if epoch == 2 and sys.argv[1] == "1000" else 0.05  # The signals arrive in this epoch.
                print("epoch", epoch, flush=True)
        callbacks = [keras.callbacks.BackupAndRestore("backup", delete_checkpoint=False), Slow()]
        x = np.ones((64, 4), "float32")
        model.fit(x, x[:, :1], batch_size=4, epochs=int(sys.argv[1]), verbose=0, callbacks=callbacks)
        """
    )
    job = start("-m", "tfdist", "run", "--tier", "BASIC", "--state_file", "state.json", program, "1000")
    job.wait_for("epoch 2")
    job.process.send_signal(signal.SIGUSR1)
    job.wait_for("chief:0 | tfdist: SIGUSR1: the backup is saved")
    job.process.send_signal(signal.SIGTERM)
    assert job.wait() == 143, job.output
    assert "chief:0 | tfdist: SIGTERM: the backup is saved, and the program ends" in job.output
    progress = json.loads((tmp_path / "state.json").read_text())["progress"]
    assert (progress["epochs"], progress["steps"], progress["phase"]) == (1000, 16, "fit") and progress["epoch"] >= 2
    again = start("-m", "tfdist", "run", "--tier", "BASIC", program, "3")
    assert again.wait() == 0, again.output
    steps = int(again.output.partition("| from ")[2].split()[0])
    assert steps >= 32 and "epoch 2" in again.output and "epoch 1" not in again.output


@pytest.mark.cluster
@pytest.mark.parametrize("cluster", [["--tier", "BASIC"], ["-n", "2"]], ids=["one process", "multi_worker_mirrored"])
def test_a_terminated_job_continues_at_its_batch_from_the_backup_of_the_launcher(start, script, cluster):
    program = script(
        """
        import sys, time
        import keras, numpy as np, tfdist
        with tfdist.strategy().scope():
            layers = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.1), keras.layers.Dense(1)]
            model = keras.Sequential([keras.Input((4,)), *layers])
            model.compile("sgd", "mse", metrics=["mae"])
        class Slow(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                print("batch", batch, flush=True)
                time.sleep(float(sys.argv[1]))
        x = np.ones((400, 4), "float32")
        history = model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0, callbacks=[Slow()])
        print("done", int(model.optimizer.iterations.numpy()), history.epoch, flush=True)
        """
    )
    job = start("-m", "tfdist", "run", *cluster, "--backup_dir", "backup", program, "0.1")
    job.wait_for("batch 4")
    job.process.send_signal(signal.SIGUSR1)
    job.wait_for("| tfdist: SIGUSR1: the backup is saved")  # And the training goes on.
    job.wait_for("batch 7", after="SIGUSR1")
    job.process.send_signal(signal.SIGTERM)
    assert job.wait() == 143, job.output
    assert "| tfdist: SIGTERM: the backup is saved, and the program ends" in job.output
    assert "Traceback" not in job.output and ("and ended: it ends, too" in job.output) == (cluster[0] == "-n")
    again = start("-m", "tfdist", "run", *cluster, "--backup_dir", "backup", program, "0")
    assert again.wait() == 0, again.output
    assert "done 200 [0, 1]" in again.output and "batch 7\n" not in again.output.partition("batch 99")[0]
