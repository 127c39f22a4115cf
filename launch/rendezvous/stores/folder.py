"""`FolderStore`: a store in a folder that all ranks share, as Caffe2's `file_store_path` names it.

A field is a file, written under another name and renamed: readers see all of it or nothing, also on NFS (RFC 1813: RENAME is
atomic), without any lock. On NFS a file may appear late: clients cache directories for up to a minute (nfs(5), acdirmax).
"""

import os
import secrets
import shutil
import socket
from pathlib import Path

from tfdist.launch.rendezvous.stores.interface import StoreUnavailableError, run_key
from tfdist.rank_info import RankInfo

MAX_BYTES = 16 << 20
"""Largest field that is read, in bytes; the addresses of the largest cluster fit."""


class FolderStore:
    """The tables of one run: files `tfdist-RUN/TABLE/FIELD` in the shared folder."""

    def __init__(self, rank_info: RankInfo) -> None:
        assert rank_info.store is not None and rank_info.store.path is not None
        self._shared = Path(rank_info.store.path)
        self._folder = self._shared / f"tfdist-{run_key(rank_info)}"
        self._suffix = secrets.token_hex(8)

    def put(self, table: str, field: str, text: str) -> None:
        """Sets one field."""
        if not self._shared.is_dir():  # Not created here: before it is mounted, this would create it on the wrong disk.
            raise StoreUnavailableError(f"the folder {self._shared} does not exist")
        folder = self._folder / table
        temporary = folder / f".{field}-{self._suffix}"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(folder / field)
        except FileNotFoundError as cause:  # Another process clears the run at this moment.
            raise StoreUnavailableError(f"the folder {folder} was removed") from cause
        except OSError as cause:
            raise StoreUnavailableError(f"{folder} cannot be written: {cause.strerror}") from cause

    def get(self, table: str) -> dict[str, str]:
        """Returns all fields of a table."""
        fields = {}
        try:
            for name in os.listdir(self._folder / table):
                if not name.startswith("."):
                    fields[name] = self._read(self._folder / table / name)
        except FileNotFoundError:
            pass  # The table is empty, or was removed meanwhile.
        except OSError as cause:
            raise StoreUnavailableError(f"{self._folder / table} cannot be read: {cause.strerror}") from cause
        return {name: text for name, text in fields.items() if text}

    def remove(self, table: str, field: str) -> None:
        """Removes a field, if it exists."""
        try:
            (self._folder / table / field).unlink(missing_ok=True)
        except OSError as cause:
            raise StoreUnavailableError(f"{self._folder / table} cannot be written: {cause.strerror}") from cause

    def clear(self) -> None:
        """Removes all tables of the run."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def own_host(self) -> str:
        """Returns this machine's address towards other machines, else its name."""
        return _outward_address() or socket.gethostname()

    def close(self) -> None:
        """Removes the folders of the run that are empty."""
        for folder in (*(self._folder / name for name in _names(self._folder)), self._folder):
            try:
                folder.rmdir()
            except OSError:
                pass  # Another process still uses it.

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
    """Returns the source address of this machine's default route. Connecting a UDP socket sends no packet."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # RFC 5737: an address that no machine has.
            return str(probe.getsockname()[0])
        except OSError:
            return None
