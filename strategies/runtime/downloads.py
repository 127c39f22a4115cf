"""What `keras.utils.get_file` fetches: each file complete or absent, even if several tasks of a machine fetch the same.

Under multi_worker_mirrored, and beside an evaluator, several tasks of a machine run the program at once, and share Keras'
cache. Keras writes a download under its final name, and at every call extracts an archive over the files of the call before.
So a task found half of another one's download in the cache, or read a file that another one was just writing anew. Here both
go to a hidden folder beside the final place, and every file takes its place in one step.
"""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from tfdist.strategies.private_api import patches

_PREFIX_LENGTH = 100
"""How much of a file's name the hidden folder has in its own: names end at 255 bytes."""


def install() -> None:
    """Makes downloads and archives of Keras appear complete from now on. Calling it again does nothing."""
    patches.GET_FILE["urlretrieve"].patch(_download)
    patches.GET_FILE["extract_archive"].patch(_extract)


@contextlib.contextmanager
def _beside(path: str) -> Iterator[str | None]:
    """Yields a path of the same name in a new hidden folder beside `path`; None if there can be none (a read-only disk)."""
    folder, name = os.path.split(os.path.abspath(path))
    try:
        os.makedirs(folder, exist_ok=True)
        part = tempfile.TemporaryDirectory(prefix=f".{name[:_PREFIX_LENGTH]}.", dir=folder, ignore_cleanup_errors=True)
    except OSError:
        yield None
        return
    with part:
        yield os.path.join(part.name, name)


def _replace(source: str, target: str) -> None:
    """Moves a file or folder to its final place. A folder that is there gets the files of the new one, and keeps the others."""
    try:
        os.rename(source, target)
        return
    except OSError:
        if not (os.path.isdir(source) and os.path.isdir(target)):
            raise
    with os.scandir(source) as entries:
        for entry in list(entries):
            _replace(entry.path, os.path.join(target, entry.name))


# Replacements. The first parameter is the function that they replace.


def _download(original: Callable[..., Any], url: Any, filename: Any = None, *args: Any, **kwargs: Any) -> Any:
    if filename is None:
        return original(url, filename, *args, **kwargs)
    with _beside(filename) as partial:
        if partial is None:
            return original(url, filename, *args, **kwargs)
        _, headers = original(url, partial, *args, **kwargs)
        _replace(partial, filename)
    return filename, headers


def _extract(original: Callable[..., Any], file_path: Any, path: Any = ".", archive_format: Any = "auto") -> Any:
    with _beside(os.fspath(path)) as partial:
        if partial is None:
            return original(file_path, path, archive_format)
        is_extracted = original(file_path, partial, archive_format)
        if os.path.lexists(partial):
            _replace(partial, os.path.abspath(path))
    return is_extracted
