"""Two programs that run at the same time do not share the folder of their backups."""

import os
import signal

import pytest

from tfdist.errors import ClusterError
from tfdist.strategies.checkpoint.folder_lock import lock


def test_a_folder_that_another_program_uses_is_refused_and_free_when_that_has_ended(tmp_path):
    folder = str(tmp_path / "backup")
    held = lock(folder)
    assert held is not None and os.path.isdir(folder)
    with pytest.raises(ClusterError, match=r"TFDIST_BACKUP_DIR: .*/backup holds the backup of another program that runs now"):
        lock(folder, seconds=0.0)
    child = os.fork()
    if not child:
        signal.pause()
    try:
        os.close(held)  # As at the end of the program; its child lives on.
        again = lock(folder)  # Waits until the child has let go.
        assert again is not None
        os.close(again)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_folder_that_cannot_be_made_is_left_to_the_first_backup(tmp_path):
    (tmp_path / "file").write_text("")
    assert lock(str(tmp_path / "file" / "backup")) is None
