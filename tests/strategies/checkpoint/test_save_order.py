"""Which of the chief's saves another task waits for. The chief and the task run here one after the other."""

from pathlib import Path

import pytest
import tensorflow as tf

from tfdist.strategies.checkpoint import atomic_path, atomic_saving, save_order


class Tasks:
    """What the chief has published, and what another task asks for."""

    def __init__(self, monkeypatch):
        self.board, self.asked = {}, []
        self._patch = monkeypatch.setattr
        self._patch(save_order, "_applies", True)
        self._patch(save_order, "publish", self.board.__setitem__)
        self._patch(save_order, "published", self._published)
        self.become(chief=True)

    def _published(self, key, seconds):
        self.asked.append((key, seconds))
        if key not in self.board:
            raise tf.errors.DeadlineExceededError(None, None, key)
        return self.board[key]

    def become(self, chief):
        self._patch(save_order, "is_chief", lambda: chief)
        for name, empty in (("_counts", {}), ("_chiefs", []), ("_unpaired", set())):
            self._patch(save_order, name, empty)


@pytest.fixture
def tasks(monkeypatch):
    return Tasks(monkeypatch)


def save(path, error=None):
    with save_order.after_chief(path):
        if error:
            raise error


def test_a_task_waits_for_the_file_that_it_has_saved_and_not_for_what_the_chief_saves_alone(tasks):
    for path in ("best.weights.h5", "m.keras", "best.weights.h5", "best.weights.h5", "m.keras"):
        save(path)
    with save_order.alone():
        save("m.keras")  # For the evaluator.
    tasks.become(chief=False)
    save("m.keras")
    assert tasks.asked[-1][0] == "saves/2/done"
    save("m.keras")
    assert tasks.asked[-1][0] == "saves/5/done" and save_order._applies
    assert len(tasks.board) == 10


def test_of_saves_within_one_another_the_outermost_counts_and_tasks_may_save_to_folders_and_files_of_their_own(tasks):
    with save_order.after_chief("/here/model-0"):
        save("/here/.model-0.part/variables/variables")
    assert tasks.board == {"saves/1": "model-#\n/here/model-0", "saves/1/done": ""}
    tasks.become(chief=False)
    save("/there/worker_1/model-12/")
    assert tasks.asked[-1][0] == "saves/1/done"


def test_a_chief_that_is_lost_in_its_save_is_not_waited_for(tasks, monkeypatch):
    save("m.keras")
    del tasks.board["saves/1/done"]  # A signal has stopped it, or its link is cut.
    tasks.become(chief=False)
    looks = iter([None, None, tf.errors.UnavailableError(None, None, "no answer from worker:0")])
    monkeypatch.setattr(save_order, "_watch_chief", lambda: lambda: next(looks))
    with pytest.raises(tf.errors.UnavailableError, match="no answer from worker:0"):
        save("m.keras")
    assert [key for key, seconds in tasks.asked if seconds <= save_order.POLL_SECONDS] == ["saves/1", *["saves/1/done"] * 3]
    assert not save_order._applies


def test_a_save_of_the_chief_that_fails_keeps_nobody_waiting(tasks):
    with pytest.raises(OSError, match="full"):
        save("m.keras", OSError("full"))
    tasks.become(chief=False)
    save("m.keras")
    assert tasks.asked[-1][0] == "saves/1/done" and save_order._applies


def test_a_name_that_the_chief_does_not_save_is_waited_for_once_and_other_names_as_before(tasks):
    save("chief.keras")
    save("m.keras")
    tasks.become(chief=False)
    save("worker_1.keras")
    assert tasks.asked[-1] == ("saves/3", save_order.OTHER_NAME_SECONDS)
    save("m.keras")
    assert tasks.asked[-1][0] == "saves/2/done"
    asked = len(tasks.asked)
    save("worker_1.keras")
    assert len(tasks.asked) == asked and save_order._applies


def test_after_a_wait_in_vain_a_task_does_not_wait_any_more(tasks, caplog):
    tasks.become(chief=False)
    save("m.keras")
    assert tasks.asked == [("saves/1", save_order.WAIT_SECONDS)] and not save_order._applies
    assert "the chief has not saved within 300 s" in caplog.text


def test_a_checkpoint_of_another_task_makes_the_folder_that_its_program_removes(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic_path, "_is_chief", False)
    folder = tmp_path / "of_worker_1"
    for number in (1, 2):  # TensorFlow's tutorial makes it once, and removes it after each save.
        saved = atomic_saving._save_checkpoint(
            lambda saver, path, number, *_: f"{path}-{number}", None, folder / "ckpt", number
        )
        assert saved == f"{folder / 'ckpt'}-{number}"
        folder.rmdir()  # It is there, and empty: the files are the chief's.


def test_what_a_task_saves_to_a_path_of_its_own_is_kept_there(tasks, tmp_path, monkeypatch):
    monkeypatch.setattr(atomic_path, "_is_chief", False)
    save("/chief/m.keras")
    save(tmp_path / "same/m.keras")
    save("/chief/tmpab_d3f0h")
    tasks.become(chief=False)
    for folder in ("own", "same"):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / "m.keras"
        with save_order.after_chief(path), atomic_path.atomic_path(str(path), is_elsewhere=save_order.is_elsewhere) as partial:
            Path(partial).write_text("weights")
            with save_order.after_chief(partial), atomic_path.atomic_path(partial, is_elsewhere=save_order.is_elsewhere):
                pass  # The outermost save decides.
    with (
        save_order.after_chief(tmp_path / "tmp6ehgklm_"),
        atomic_path.atomic_path(str(tmp_path / "tmp6ehgklm_"), True, save_order.is_elsewhere) as partial,
    ):
        Path(partial).mkdir()
        (Path(partial) / "fingerprint").write_text("1")
    with save_order.after_chief(tmp_path / "rank"), atomic_path.atomic_path(str(tmp_path / "rank")) as partial:
        Path(partial).write_text("TensorFlow's checkpoint")
    assert sorted(each.relative_to(tmp_path).as_posix() for each in tmp_path.rglob("*") if each.is_file()) == [
        "own/m.keras",
        "tmp6ehgklm_/fingerprint",
    ]


def test_a_task_does_not_wait_for_saves_of_a_chief_whose_program_has_ended(tasks):
    save("m.keras")
    save_order.end()
    save("late.keras")  # Of an exit function. Nobody waits for it.
    tasks._patch(save_order, "_applies", True)
    tasks.become(chief=False)
    save("m.keras")
    assert save_order._applies
    save("m.keras")
    assert not save_order._applies and tasks.asked[-1][0] == "saves/2"
