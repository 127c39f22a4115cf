"""Two generations of a file and their checksums."""

import h5py
import numpy as np
import pytest

from tfdist.strategies.checkpoint import generations


@pytest.fixture
def sealed(tmp_path):
    path = str(tmp_path / "latest.h5")
    with h5py.File(path, "w") as file:
        file["a"] = np.arange(1000.0)
    generations.seal(path)
    return path


def test_a_sealed_file_is_whole_and_reads_as_before(sealed):
    assert generations.damage(sealed) is None
    with h5py.File(sealed) as file:
        np.testing.assert_array_equal(file["a"][()], np.arange(1000.0))


@pytest.mark.parametrize("place", [0.3, 0.9, 0.999])
def test_one_changed_byte_is_found_where_hdf5_reads_on(sealed, place):
    content = bytearray(open(sealed, "rb").read())
    content[int(len(content) * place)] ^= 1
    open(sealed, "wb").write(content)
    assert generations.damage(sealed) == "was changed after it was written: its checksum differs"


@pytest.mark.parametrize("left", [0, 10, 0.5, -100])
def test_a_file_that_is_cut_off_is_found(sealed, left):
    content = open(sealed, "rb").read()
    open(sealed, "wb").write(content[: int(len(content) * left) if isinstance(left, float) else left])
    assert generations.damage(sealed).startswith("cannot be read (")


def test_a_file_of_keras_without_a_checksum_counts_as_whole(tmp_path):
    with h5py.File(tmp_path / "of_keras.h5", "w") as file:
        file["a"] = 1
    assert generations.damage(str(tmp_path / "of_keras.h5")) is None
    assert generations.damage(str(tmp_path / "missing.h5")).startswith("cannot be read (")


def test_the_earlier_generation_takes_the_place_of_a_damaged_one_with_a_warning(tmp_path, caplog):
    latest, earlier = str(tmp_path / "latest"), str(tmp_path / "earlier")
    generations.keep(latest, earlier)  # There is no file yet.
    (tmp_path / "latest").write_bytes(b"1")
    generations.keep(latest, earlier)
    (tmp_path / "new").write_bytes(b"2")
    (tmp_path / "new").replace(latest)
    assert (open(latest, "rb").read(), open(earlier, "rb").read()) == (b"2", b"1")
    generations.use_earlier(latest, earlier, "is damaged")
    assert (open(latest, "rb").read(), open(earlier, "rb").read()) == (b"1", b"1")
    assert f"{latest} is damaged; the training continues from the backup before it, {earlier}" in caplog.text
    generations.keep(latest, earlier)  # They are one file now.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["earlier", "latest"]
