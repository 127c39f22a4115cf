"""A task that is killed while it restores a backup does not leave its copy for good."""

import os
import signal
import tempfile

import pytest

from tfdist.strategies.checkpoint.own_folder import OwnFolder

MINE = f"tfdist-copy-{os.uname().nodename}-"


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def _fork(function):
    child = os.fork()
    if not child:
        try:
            function()
        finally:
            os._exit(0)
    return child


def test_the_folder_of_a_process_that_was_killed_is_removed_and_those_in_use_stay(temporary):
    def be_killed():
        folder = OwnFolder()
        (temporary / "left").write_text(folder.name)
        os.kill(os.getpid(), signal.SIGKILL)

    mine = OwnFolder()
    os.waitpid(_fork(be_killed), 0)
    left = (temporary / "left").read_text()
    assert os.path.isdir(left)
    with OwnFolder() as other:
        assert not os.path.exists(left) and os.path.isdir(mine.name) and os.path.isdir(other)
    assert not os.path.exists(other) and os.path.isdir(mine.name)
    mine.cleanup()
    mine.cleanup()
    assert not os.path.exists(mine.name)


def test_a_child_neither_removes_nor_holds_the_folder_of_its_parent(temporary):
    folder = OwnFolder()
    os.waitpid(_fork(folder.cleanup), 0)
    assert os.path.isdir(folder.name)
    child = _fork(signal.pause)
    try:
        folder.cleanup()
        assert not os.path.exists(folder.name)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_processes_that_begin_at_the_same_time_each_have_one(temporary):
    def make_many():
        for _ in range(300):
            with OwnFolder() as folder, open(os.path.join(folder, "file"), "w"):
                pass
        (temporary / f"done-{os.getpid()}").touch()

    children = [_fork(make_many) for _ in range(4)]
    for child in children:
        os.waitpid(child, 0)
    assert all((temporary / f"done-{child}").exists() for child in children)
    assert not list(temporary.glob("tfdist-copy-*"))


def test_links_and_folders_of_other_hosts_stay(temporary):
    (temporary / "tfdist-copy-another_host-1").mkdir()
    (temporary / "elsewhere").mkdir()
    (temporary / f"{MINE}link").symlink_to(temporary / "elsewhere")
    OwnFolder().cleanup()
    assert sorted(each.name for each in temporary.iterdir()) == sorted(
        ["elsewhere", f"{MINE}link", "tfdist-copy-another_host-1"]
    )
