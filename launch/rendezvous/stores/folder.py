"""The store in a folder that all ranks share, as Caffe2's `file_store_path`.

A field is a file, written under another name and renamed: readers see it whole or not at all, on NFS as well (RFC 1813: RENAME
is atomic), and nothing needs a lock. On NFS a file may show late: clients remember directories for up to a minute (nfs(5),
acdirmax).
"""

import os
import secrets
import shutil
import socket
from pathlib import Path

from tfdist.launch.rendezvous.stores.store import StoreUnavailableError, run_key
from tfdist.rank_info import RankInfo

MAX_BYTES = 16 << 20
"""Largest field that is read; the addresses of the largest cluster fit."""


def open_store(rank_info: RankInfo, is_host: bool, lifetime_seconds: float) -> "FileStore":
    """See `tfdist.launch.rendezvous.stores.store`. A folder belongs to nobody, and files do not expire."""
    del is_host, lifetime_seconds
    assert rank_info.store is not None and rank_info.store.path is not None
    return FileStore(rank_info, rank_info.store.path)


class FileStore:
    """The tables of one run: `tfdist-RUN/TABLE/FIELD` in the shared folder."""

    def __init__(self, rank_info: RankInfo, path: str) -> None:
        self._shared = Path(path)
        self._folder = self._shared / f"tfdist-{run_key(rank_info)}"
        self._me = secrets.token_hex(8)

    def put(self, table: str, field: str, text: str) -> None:
        """Sets one field."""
        if not self._shared.is_dir():  # Not made here: a folder that is not mounted yet would be made on the wrong disk.
            raise StoreUnavailableError(f"the folder {self._shared} is not there")
        folder = self._folder / table
        temporary = folder / f".{field}-{self._me}"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(folder / field)
        except FileNotFoundError as cause:  # Somebody clears the run just now.
            raise StoreUnavailableError(f"the folder {folder} has just been taken away") from cause
        except OSError as cause:
            raise StoreUnavailableError(f"{folder} cannot be written: {cause.strerror}") from cause

    def get(self, table: str) -> dict[str, str]:
        """All fields of a table."""
        fields = {}
        try:
            for name in os.listdir(self._folder / table):
                if not name.startswith("."):
                    fields[name] = self._read(self._folder / table / name)
        except FileNotFoundError:
            pass  # Nobody has put anything, or it was taken away meanwhile.
        except OSError as cause:
            raise StoreUnavailableError(f"{self._folder / table} cannot be read: {cause.strerror}") from cause
        return {name: text for name, text in fields.items() if text}

    def remove(self, table: str, field: str) -> None:
        """Takes a field away, if it is there."""
        try:
            (self._folder / table / field).unlink(missing_ok=True)
        except OSError as cause:
            raise StoreUnavailableError(f"{self._folder / table} cannot be written: {cause.strerror}") from cause

    def clear(self) -> None:
        """Takes everything of this run away."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def my_host(self) -> str:
        """This machine's address on the way to other machines, else its name."""
        return _outward_address() or socket.gethostname()

    def close(self) -> None:
        """Leaves an empty folder to nobody."""
        for folder in (*(self._folder / name for name in _names(self._folder)), self._folder):
            try:
                folder.rmdir()
            except OSError:
                pass  # Others still have something in it.

    def _read(self, path: Path) -> str:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                return file.read(MAX_BYTES)
        except FileNotFoundError:
            return ""


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _outward_address() -> str | None:
    """The source address of this machine's default route. Connecting a UDP socket sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # RFC 5737: an address that nobody has.
            return str(probe.getsockname()[0])
        except OSError:
            return None
