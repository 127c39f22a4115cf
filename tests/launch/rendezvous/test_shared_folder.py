"""A shared folder in which others may write too, as in /tmp, and file systems that do not answer; all in one process."""

import contextlib
import os
import stat
import threading

import pytest

from tfdist.errors import ClusterError, Source
from tfdist.launch.rendezvous.stores import bounded
from tfdist.launch.rendezvous.stores import folder as folder_module
from tfdist.launch.rendezvous.stores.bounded import BoundedCalls
from tfdist.launch.rendezvous.stores.folder import FolderStore
from tfdist.launch.rendezvous.stores.interface import StoreUnavailableError, run_key
from tfdist.rank_info import RankInfo, Store

pytestmark = pytest.mark.timeout(30)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


def store_in(path, timeout=10.0):
    return FolderStore(RankInfo(2, 0, Source("test", "the test"), Store("file", path=str(path))), timeout)


@pytest.fixture
def run(tmp_path):
    """The folder of the run."""
    return tmp_path / f"tfdist-{os.geteuid()}-{run_key(RankInfo(2, 0, Source('test', 'the test')))}"


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def test_only_this_user_can_open_what_is_written(tmp_path, run):
    before = os.umask(0)
    try:
        store_in(tmp_path).put("leaders", "a", "x")
    finally:
        os.umask(before)
    assert [mode(path) for path in (run, run / "leaders", run / "leaders" / "a")] == [0o700, 0o700, 0o600]
    assert os.listdir(run / "leaders") == ["a"]


def test_what_is_no_file_of_this_user_is_not_read_and_does_not_block(tmp_path, run):
    store = store_in(tmp_path)
    store.put("leaders", "a", "x")
    leaders = run / "leaders"
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    os.mkfifo(leaders / "b")
    (leaders / "c").symlink_to(secret)
    (leaders / "d").mkdir()
    (leaders / "e").symlink_to("/dev/zero")
    (leaders / "f").symlink_to("/nowhere")
    assert store.get("leaders") == {"a": "x"}
    for name in "bcf":  # A rename replaces them, and does not follow them.
        store.put("leaders", name, "y")
    assert store.get("leaders") == {"a": "x", "b": "y", "c": "y", "f": "y"} and secret.read_text() == "hunter2"
    store.clear()
    assert store.get("leaders") == {} and secret.exists()


@pytest.mark.parametrize("where", ["run", "table"])
def test_links_in_place_of_folders_are_not_followed(tmp_path, run, where):
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "leaders").mkdir(parents=True)
    (elsewhere / "a").write_text("x")
    store = store_in(tmp_path)
    if where == "run":
        run.symlink_to(elsewhere)
    else:
        run.mkdir(mode=0o700)
        (run / "leaders").symlink_to(elsewhere)
    for call in (lambda: store.put("leaders", "a", "x"), lambda: store.get("leaders"), lambda: store.remove("leaders", "a")):
        with pytest.raises(StoreUnavailableError, match="cannot be used"):
            call()
    store.clear()
    store.close()
    assert (elsewhere / "a").read_text() == "x" and not os.listdir(elsewhere / "leaders")


@pytest.mark.parametrize("kind", ["fifo", "file"])
def test_a_fifo_or_a_file_in_place_of_a_folder_does_not_block(tmp_path, run, kind):
    os.mkfifo(run) if kind == "fifo" else run.write_text("")
    for call in (lambda store: store.put("leaders", "a", "x"), lambda store: store.get("leaders")):
        with pytest.raises(StoreUnavailableError, match="cannot be used: Not a directory"):
            call(store_in(tmp_path))


@needs_root
def test_a_folder_of_another_user_is_an_error_at_once(tmp_path, run):
    store_in(tmp_path).put("leaders", "a", "x")
    for path in (run, run / "leaders"):
        os.chown(path, 12345, -1)
        for call in (lambda store: store.put("leaders", "b", "y"), lambda store: store.get("leaders")):
            with pytest.raises(ClusterError, match="belongs to the user with number 12345; remove it, or name another folder"):
                call(store_in(tmp_path))
        os.chown(path, 0, -1)


@needs_root
def test_a_file_of_another_user_is_not_read(tmp_path, run):
    store = store_in(tmp_path)
    store.put("leaders", "a", "x")
    os.chown(run / "leaders" / "a", 12345, -1)
    assert store.get("leaders") == {}


def test_access_rights_that_are_too_wide_are_taken_back(tmp_path, run):
    store = store_in(tmp_path)
    store.put("leaders", "a", "x")
    run.chmod(0o777)
    (run / "leaders").chmod(0o755)
    assert store.get("leaders") == {"a": "x"}
    assert mode(run) == mode(run / "leaders") == 0o700


def test_a_file_system_that_keeps_no_access_rights_is_an_error(tmp_path, run, monkeypatch):
    monkeypatch.setattr(os, "fchmod", lambda *_: None)
    store = store_in(tmp_path)
    store.put("leaders", "a", "x")
    run.chmod(0o755)  # Others read the addresses of the ranks, and can change nothing.
    assert store.get("leaders") == {"a": "x"}
    run.chmod(0o777)
    with pytest.raises(ClusterError, match=r"other users may write in .*; name a folder that keeps access rights"):
        store.get("leaders")


def test_two_users_have_two_folders(tmp_path, monkeypatch):
    assert str(os.geteuid()) in str(store_in(tmp_path)._folder.name).split("-")
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert store_in(tmp_path)._folder.name.startswith("tfdist-4711-")


def test_a_file_system_that_hangs_does_not_block_beyond_the_timeout(tmp_path, monkeypatch):
    answers, real = threading.Event(), folder_module._open_folder

    @contextlib.contextmanager
    def hang(*arguments):
        answers.wait(20)
        with real(*arguments) as opened:
            yield opened

    store = store_in(tmp_path, timeout=0.3)
    store.put("leaders", "a", "x")
    monkeypatch.setattr(bounded, "LAST_SECONDS", 0.2)
    monkeypatch.setattr(folder_module, "_open_folder", hang)
    for call in (lambda: store.get("leaders"), lambda: store.put("leaders", "a", "x"), lambda: store.remove("leaders", "a")):
        with pytest.raises(StoreUnavailableError, match=f"the file system of {tmp_path} does not answer"):
            call()
    assert [thread.name for thread in threading.enumerate()].count("tfdist-store-call") == 1
    store.clear()
    store.close()
    answers.set()
    monkeypatch.setattr(bounded, "LAST_SECONDS", 10.0)
    assert store.get("leaders") == {"a": "x"}


def test_bounded_calls_return_results_and_errors():
    calls = BoundedCalls("it", 10)
    assert calls.run(lambda: 1, 5) == 1
    with pytest.raises(KeyError):
        calls.run(lambda: {}["x"], 5)
    assert calls.run(lambda: 2, 5) == 2
