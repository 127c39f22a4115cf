"""A checkpoint, or a folder, that replaces another: at every moment between two file operations one of the two is whole."""

import itertools
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.checkpoint import atomic_path, checkpoint_files

OPERATIONS = {os: ("link", "rename", "replace", "remove", "unlink", "fsync"), shutil: ("copy", "rmtree")}


@pytest.fixture
def states(tmp_path, monkeypatch):
    """Copies of the folder at the begin of each operation: what a kill at this moment leaves."""
    folder, copies, numbers = tmp_path / "folder", [], itertools.count()
    folder.mkdir()

    def noted(original):
        def call(*arguments, **options):
            if isinstance(arguments[0], int) or str(arguments[0]).startswith(str(folder)):
                copy = tmp_path / f"state-{next(numbers)}"
                copytree(folder, copy)
                copies.append(copy)
            return original(*arguments, **options)

        return call

    copytree = shutil.copytree
    for module, names in OPERATIONS.items():
        for name in names:
            monkeypatch.setattr(module, name, noted(getattr(module, name)))
    return copies


def save(folder, value, shards=1):
    """Saves as tfdist's `tf.train.Checkpoint.write` does."""
    with atomic_path.atomic_path(str(folder / "made")) as partial:
        parts = [f"{partial}-part-{number}" for number in range(shards)]
        for number, part in enumerate(parts):
            tensors = [tf.fill([1000], float(value))]
            tf.raw_ops.SaveV2(prefix=part, tensor_names=[f"x{number}"], shape_and_slices=[""], tensors=tensors)
        merge = {"checkpoint_prefixes": parts, "destination_prefix": partial}
        tf.raw_ops.MergeV2Checkpoints(**merge, delete_old_dirs=False, allow_missing_files=False)


def values_in(folder):
    reader = tf.train.load_checkpoint(str(folder / "made"))
    return {value for name in reader.get_variable_to_shape_map() for value in np.unique(reader.get_tensor(name))}


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 2), (1, 2), (3, 1)])
def test_a_kill_between_any_two_operations_leaves_the_old_or_the_new_checkpoint(states, tmp_path, before, after):
    folder = tmp_path / "folder"
    save(folder, 1, before)
    del states[:]
    save(folder, 2, after)
    assert sorted(os.listdir(folder)) == sorted(
        ["made.index", *(f"made.data-{number:05d}-of-{after:05d}" for number in range(after))]
    )
    found = [values_in(state) for state in states]
    assert len(found) > 4
    new = found.index({2.0})
    assert found[:new] == [{1.0}] * new and found[new:] == [{2.0}] * (len(found) - new)


@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 2), (2, 1)])
def test_a_save_after_a_kill_replaces_what_is_there_and_leaves_nothing_else(states, tmp_path, before, after):
    folder = tmp_path / "folder"
    save(folder, 1, before)
    del states[:]
    save(folder, 2, before)
    for state in list(states):
        del states[:]
        save(state, 3, after)
        assert values_in(state) == {3.0}
        assert sorted(os.listdir(state)) == sorted(
            ["made.index", *(f"made.data-{number:05d}-of-{after:05d}" for number in range(after))]
        )


def test_a_file_system_without_hard_links_gets_copies(states, tmp_path, monkeypatch):
    def link(*_):
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", link)
    test_a_kill_between_any_two_operations_leaves_the_old_or_the_new_checkpoint(states, tmp_path, 1, 1)


@pytest.mark.parametrize("changes_places", [True, False])
def test_a_folder_that_replaces_another_is_always_there_where_the_file_system_lets_them_change_places(
    states, tmp_path, monkeypatch, changes_places
):
    if not changes_places:
        monkeypatch.setattr(atomic_path, "_exchange", lambda first, second: False)
    folder = tmp_path / "folder"
    for value in ("1", "2"):
        del states[:]
        with atomic_path.atomic_path(str(folder / "made")) as partial:
            os.mkdir(partial)
            for name in ("a", "b"):
                (Path(partial) / name).write_text(value)
    found = [sorted(path.read_text() for path in (state / "made").glob("*")) for state in states]
    assert found[0] == ["1", "1"] and sorted(os.listdir(folder)) == ["made"]
    assert {"".join(each) for each in found} == ({"11", "22"} if changes_places else {"11", "", "22"})
    assert (folder / "made" / "a").read_text() == "2"


@pytest.mark.parametrize("index", [b"", b"short", bytes(100), bytes(60) + checkpoint_files._MAGIC])
def test_a_damaged_index_gives_way(tmp_path, index):
    save(tmp_path, 1)
    (tmp_path / "made.index").write_bytes(index)
    save(tmp_path, 2)
    assert values_in(tmp_path) == {2.0}
