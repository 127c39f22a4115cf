"""Puts the files of a TensorFlow checkpoint in the place of those of another: at every moment one of the two is whole.

A checkpoint is an index and files with its data. The names of these end with their number and how many they are; the index says
how many, and so which files are its own. One rename of the index decides which checkpoint is there.

Usually the old and the new checkpoint have equally many files, so equal names. Then the new files are first written under names
that say one more, with an index that does so, too.
"""

import os
import shutil
from pathlib import Path

import tensorflow as tf

_MAGIC = bytes.fromhex("57fb808b247547db")
_FOOTER_BYTES = 48
_MOST = 0x7F
"""The greatest number that has one byte in the index."""


def replace(part: str, folder: str, name: str) -> None:
    """Moves the checkpoint `name` from the folder `part` to `folder`, on the same file system, over one of the same name.

    Does nothing if `part` has no checkpoint of this name. A process that is killed in between may leave data files of the other
    checkpoint, which nothing reads. The next call removes them.
    """
    source, target = Path(part), Path(folder)
    index = f"{name}.index"
    count, before = _count_in(source / index), _count_in(target / index)
    if count is None:
        return
    content = (source / index).read_bytes()
    for path in source.glob(f"{_escaped(name)}.*"):
        with open(path, "rb+") as file:
            os.fsync(file.fileno())
    if count == before and count < _MOST:
        for number in range(count):
            partial = source / "linked"
            link(source / _data(name, number, count), partial)
            os.replace(partial, target / _data(name, number, count + 1))
        partial.write_bytes(_with_count(content, count + 1, partial))
        with open(partial, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(partial, target / index)
    for number in range(count):
        os.replace(source / _data(name, number, count), target / _data(name, number, count))
    os.replace(source / index, target / index)
    for path in target.glob(f"{_escaped(name)}.data-?????-of-?????"):
        if not path.name.endswith(f"-of-{count:05d}"):
            os.remove(path)


def _data(name: str, number: int, count: int) -> str:
    return f"{name}.data-{number:05d}-of-{count:05d}"


def _escaped(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def link(source: str | Path, target: str | Path) -> None:
    """Makes `target` the same file as `source`, or a copy of it."""
    try:
        os.link(source, target)
    except OSError:  # A file system without hard links.
        shutil.copy(source, target)


# The index is a table of TensorFlow (tensorflow/core/lib/io/format.h). Its first entry, with an empty key, is a
# `BundleHeaderProto`, whose first field is the number of data files.


def _count_in(path: Path) -> int | None:
    """Returns the number of data files of a checkpoint; None if there is none that is whole."""
    try:
        content = path.read_bytes()
        return content[_place_of_count(content)[2]]
    except (OSError, ValueError):
        return None


def _with_count(index: bytes, count: int, scratch: Path) -> bytes:
    """Returns an index that names `count` data files, and is the same in everything else.

    Args:
        index: the content of an index.
        count: the number.
        scratch: the path of a file that this may write.
    """
    changed = bytearray(index)
    begin, end, place = _place_of_count(index)
    changed[place] = count
    with tf.io.TFRecordWriter(str(scratch)) as writer:  # A record ends with its checksum, in the form that the index has.
        writer.write(bytes(changed[begin : end + 1]))
    changed[end + 1 : end + 5] = scratch.read_bytes()[-4:]
    return bytes(changed)


def _place_of_count(index: bytes) -> tuple[int, int, int]:
    """Returns where the first block begins and ends, and where it has the number of data files.

    Raises:
        ValueError: if this is no index, or one that names more than 127 data files.
    """
    try:
        footer = index[-_FOOTER_BYTES:]
        if not footer.endswith(_MAGIC):
            raise ValueError("this is no index of a checkpoint")
        (_, _, block, _), _ = _numbers(footer, 0, 4)
        (_, key_bytes, _), place = _numbers(index, block, 3)
        (begin, size), _ = _numbers(index, place + key_bytes, 2)
        (shared, own, length), place = _numbers(index, begin, 3)
        # The key is empty, and the value begins with field 1 as a number of one byte. What follows the block is uncompressed.
        if shared or own or length < 2 or index[place] != 0x08 or index[place + 1] > _MOST or index[begin + size]:
            raise ValueError("this is no index of a checkpoint")
    except IndexError:
        raise ValueError("this is no index of a checkpoint") from None
    return begin, begin + size, place + 1


def _numbers(data: bytes, place: int, count: int) -> tuple[list[int], int]:
    """Returns numbers of variable length, and the place after them."""
    found = []
    for _ in range(count):
        number = shift = 0
        while True:
            number |= (data[place] & 0x7F) << shift
            shift += 7
            place += 1
            if data[place - 1] < 0x80:
                break
        found.append(number)
    return found, place
