"""Signals that arrive after the last step of an epoch, in its validation."""

import os
import signal
from types import SimpleNamespace

import keras
import pytest

from tfdist.strategies.keras_hooks.task_requests import TaskRequests
from tfdist.strategies.runtime import preemption, save_signal, server
from tfdist.strategies.runtime.preemption import SaveOnSignal


class Backup(keras.callbacks.Callback):
    """A backup that saves at the end of an epoch, like that of the launcher."""

    def __init__(self, is_written=True):
        super().__init__()
        self.saved, self.waits, self.is_written = 0, 0, is_written

    def save_on_signal(self, batch):
        self.saved += 1

    def wait_for_save(self):
        self.waits += 1
        return self.is_written


@pytest.fixture
def of():
    """`of(callback)`: what heeds the signals of a `fit` with this callback, which has begun."""
    savers = []

    def begin(callback):
        saver = SaveOnSignal([[callback]], saves=True)  # Keras takes lists in lists, too.
        saver.set_model(SimpleNamespace())
        saver.on_train_begin()
        savers.append(saver)
        return saver

    yield begin
    preemption._late.clear()
    for saver in savers:
        saver.release()


def arrives(number=signal.SIGTERM):
    os.kill(os.getpid(), number)


def ends(function, *arguments):
    with pytest.raises(SystemExit) as end:
        function(*arguments)
    return end.value.code == 128 + signal.SIGTERM


def test_a_request_for_a_backup_ends_nothing_before_fit_and_after_it_and_is_heeded_in_between(of, capfd):
    backup, previous = Backup(), signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    try:
        save_signal.outlive()
        arrives(signal.SIGUSR1)
        saver = of(backup)
        arrives(signal.SIGUSR1)
        saver.on_train_batch_end(0)
        saver.release()
        arrives(signal.SIGUSR1)
        server._leave_signals_to_chief()
        arrives(signal.SIGUSR1)  # A server says nothing.
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert backup.saved == 1 and capfd.readouterr().err.count("there is nothing new to save") == 2


def test_the_program_ends_when_the_next_epoch_begins_and_makes_no_step_of_it(of, capsys):
    backup = Backup()
    saver = of(backup)
    arrives()
    saver.on_epoch_end(0)
    assert ends(saver.on_epoch_begin, 1) and (backup.saved, backup.waits) == (0, 1)
    assert "SIGTERM: the backup is saved" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_where_all_tasks_save_together_they_do_so_after_the_first_step_of_the_next_epoch(of, capsys):
    backup, requests = Backup(), TaskRequests()
    saver = of(backup)
    saver._requests = requests
    arrives()
    saver.on_epoch_end(0)
    saver.on_epoch_begin(1)
    requests.total.assign(requests.own)  # The step of all tasks.
    assert backup.saved == 0 and requests.ends_after_save()
    assert ends(saver.on_train_batch_end, 0) and backup.saved == 1
    assert "SIGTERM: the backup is saved" in capsys.readouterr().out


def test_in_the_last_epoch_it_ends_after_fit(of):
    backup = Backup()
    saver = of(backup)
    arrives()
    saver.on_epoch_end(0)
    saver.on_train_end()
    saver.release()
    assert ends(preemption.end_after_fit, backup.wait_for_save) and backup.waits == 1


def test_a_signal_after_the_last_epoch_is_not_lost(of):
    saver = of(Backup())
    arrives(signal.SIGUSR1)
    saver.on_train_end()
    assert preemption._late == {signal.SIGUSR1}


@pytest.mark.parametrize("frequency", ["epoch", 100])
def test_a_backup_of_keras_is_saved_at_the_end_of_the_epoch(of, tmp_path, monkeypatch, frequency):
    backup, saved = keras.callbacks.BackupAndRestore(str(tmp_path), save_freq=frequency), []
    monkeypatch.setattr(keras.callbacks.BackupAndRestore, "_save_model", lambda self: saved.append(self._current_epoch))
    saver = of(backup)
    arrives()
    backup.on_epoch_end(2)
    assert ends(saver.on_epoch_end, 2) and saved == [3]


def test_a_signal_that_came_too_late_for_a_backup_of_keras_does_what_it_does_without_one(of, tmp_path, monkeypatch):
    raised = []
    monkeypatch.setattr(signal, "raise_signal", raised.append)
    saver = of(keras.callbacks.BackupAndRestore(str(tmp_path)))
    arrives()
    saver.on_train_end()
    assert raised == [signal.SIGTERM] and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_backup_that_cannot_be_written_is_not_called_saved(of, capsys):
    backup = Backup(is_written=False)
    saver = of(backup)
    arrives()
    assert ends(saver.on_train_batch_end, 3) and backup.saved == 1
    assert "SIGTERM: the backup could not be saved, and the program ends" in capsys.readouterr().out


def test_a_signal_before_an_error_of_fit_is_heeded_although_the_program_catches_the_error(of, capsys):
    saver = of(Backup())
    saver.end_after(ValueError("no loss"))
    arrives()
    assert ends(saver.end_after, ValueError("no loss"))
    assert "tfdist: SIGTERM: no backup is saved, because fit has failed (ValueError: no loss)" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
