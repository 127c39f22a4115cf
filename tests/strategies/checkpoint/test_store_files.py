"""What programs write with Keras' `H5IOStore` themselves: one file, written by the chief, when the store is closed."""

import gc

import numpy as np
import pytest
from keras.src.saving import saving_lib

from tfdist.strategies.checkpoint import atomic_path, save_order, store_files
from tfdist.strategies.private_api import file_patches


class Store(saving_lib.H5IOStore):
    def __init__(self, *args, **kwargs):
        store_files._open(file_patches.H5_STORE["__init__"].original, self, *args, **kwargs)

    def close(self):
        store_files._close(file_patches.H5_STORE["close"].original, self)


def write(path, value):
    store = Store(path, mode="w")
    store.make("lora/1")["lora_kernel_a"] = np.full(3, value)
    return store


def read(path):
    store = Store(path)
    value = float(np.asarray(store.get("lora/1")["lora_kernel_a"])[0])
    store.close()
    return value


def test_two_tasks_may_have_the_same_file_open_and_it_is_the_chiefs(tmp_path, monkeypatch):
    path = tmp_path / "model.lora.h5"
    write(path, 0).close()
    chiefs, others = write(path, 1), write(path, 2)
    assert read(path) == 0 and chiefs.path_or_io == path
    chiefs.close()
    monkeypatch.setattr(atomic_path, "_is_chief", False)
    others.close()
    assert read(path) == 1 and [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_store_that_nobody_closes_is_written_when_it_is_collected(tmp_path):
    store = write(tmp_path / "model.lora.h5", 1)
    del store
    gc.collect()
    assert read(tmp_path / "model.lora.h5") == 1


def test_stores_inside_a_save_and_in_missing_folders_are_as_without_tfdist(tmp_path):
    with save_order.after_chief(tmp_path / "model.weights.h5"):
        store = write(tmp_path / "part.h5", 1)
    assert (tmp_path / "part.h5").exists()
    store.close()
    assert read(tmp_path / "part.h5") == 1
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        write(tmp_path / "missing" / "a.h5", 1).close()
