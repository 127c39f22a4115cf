"""Programs with the backup of the launcher, run one after the other as if each were a process: an exception is the kill.

Models that make few steps may run eagerly, which saves their compilation: backups do not depend on how a step runs.
"""

import keras
import tensorflow as tf

from tfdist.strategies.checkpoint import data_position, job_backup
from tfdist.strategies.checkpoint.environment import FOLDER, FREQUENCY


class Killed(Exception):
    pass


class KillAt(keras.callbacks.Callback):
    """Raises when an epoch, or the validation of an epoch, begins."""

    def __init__(self, epoch, in_validation=False):
        super().__init__()
        self.at, self.in_validation, self.epoch = epoch, in_validation, 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
        if epoch == self.at and not self.in_validation:
            raise Killed

    def on_test_begin(self, logs=None):
        if self.epoch == self.at and self.in_validation:
            raise Killed


def run(monkeypatch, path, program, *arguments, folder="backup", frequency="epoch"):
    """Runs a function as a new process, with its backup in a folder at `path`; returns what it returns, None if it was killed."""
    monkeypatch.setattr(job_backup, "_backups", None)
    monkeypatch.setattr(job_backup, "at_program_end", lambda function: None)  # That of this process is the end of no program.
    monkeypatch.setenv(FOLDER, str(path / folder))
    monkeypatch.setenv(FREQUENCY, str(frequency))
    data_position.install()
    job_backup.install(tf.distribute.get_strategy())
    keras.utils.set_random_seed(5)
    try:
        result = program(*arguments)
    except Killed:
        for file in job_backup._backups._files:
            file.wait()
        return None
    job_backup._backups.end(failed=False)
    assert not (path / folder).exists(), f"{path / folder} still exists"
    return result
