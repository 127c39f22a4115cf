"""Two programs that run at the same time do not share the folder of their backups."""

import fcntl
import os
import signal
import time

import pytest

from tfdist.errors import ClusterError
from tfdist.strategies.checkpoint.folder_lock import lock, renew


def test_a_folder_that_another_program_uses_is_refused_and_free_when_that_has_ended(tmp_path):
    folder = str(tmp_path)
    other = os.open(folder, os.O_RDONLY)  # Another description of the open folder, as that of another program.
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(ClusterError, match=r"TFDIST_BACKUP_DIR: .* holds the backup of another program that runs now"):
        lock(folder, seconds=0.0)
    os.close(other)
    held = lock(folder, seconds=0.0)
    assert held is not None and lock(folder, seconds=0.0) == held


def test_a_folder_that_was_removed_and_made_again_is_locked_again_unless_another_program_has_it(tmp_path):
    folder = str(tmp_path / "backup")
    lock(folder)
    for is_taken in (False, True):
        os.rename(folder, str(tmp_path / f"removed-{is_taken}"))
        os.mkdir(folder)
        other = os.open(folder, os.O_RDONLY)
        if is_taken:
            fcntl.flock(other, fcntl.LOCK_EX)
            with pytest.raises(OSError, match="another program that runs now uses it"):
                renew(folder)
            fcntl.flock(other, fcntl.LOCK_UN)
        renew(folder)
        renew(folder)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(other)


def test_a_child_of_a_program_does_not_keep_its_lock(tmp_path):
    folder = str(tmp_path / "backup")
    held = lock(folder)
    assert held is not None and os.stat(folder).st_mode & 0o777 == 0o700  # Weights are nobody else's.
    child = os.fork()
    if not child:
        signal.pause()
    try:
        os.close(held)  # As at the end of the program; its child lives on.
        other = os.open(folder, os.O_RDONLY)
        latest = time.monotonic() + 30
        while True:
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                assert time.monotonic() < latest
                time.sleep(0.05)
        os.close(other)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_folder_that_cannot_be_made_is_left_to_the_first_backup(tmp_path):
    (tmp_path / "file").write_text("")
    assert lock(str(tmp_path / "file" / "backup")) is None
