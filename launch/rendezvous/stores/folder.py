"""`FolderStore`: a store in a folder that all ranks share, as Caffe2's `file_store_path` names it.

A field is a file, written under another name and renamed: readers see all of it or nothing, also on NFS (RFC 1813: RENAME is
atomic), without any lock. On NFS a file may appear late: clients cache directories for up to a minute (nfs(5), acdirmax).

Others may write in the shared folder, for instance in /tmp. The folder of the run has the user's number in its name; it and all
in it must belong to this user, and nobody else may open it. Links are not followed, and what is no file is not opened.
"""

import contextlib
import os
import secrets
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from tfdist.errors import ClusterError
from tfdist.launch.rendezvous.stores.bounded import BoundedCalls
from tfdist.launch.rendezvous.stores.interface import CALL_SECONDS, StoreUnavailableError, run_key
from tfdist.rank_info import RankInfo

MAX_BYTES = 16 << 20
"""Largest field that is read, in bytes; the addresses of the largest cluster fit."""

MAX_FIELDS = 400_000
"""Most fields of a table that are read: a few for each task of the largest cluster."""

_NO_LINK = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | _NO_LINK


class FolderStore:
    """The tables of one run: files `tfdist-UID-RUN/TABLE/FIELD` in the shared folder.

    No call waits much longer for the file system than the timeout, that of the rendezvous.
    """

    def __init__(self, rank_info: RankInfo, timeout_seconds: float) -> None:
        assert rank_info.store is not None and rank_info.store.path is not None
        self._shared = Path(rank_info.store.path)
        self._folder = self._shared / f"tfdist-{os.geteuid()}-{run_key(rank_info)}"
        self._source = rank_info.source
        self._suffix = secrets.token_hex(8)
        self._calls = BoundedCalls(f"the file system of {self._shared}", timeout_seconds)

    def put(self, table: str, field: str, text: str) -> None:
        """Sets one field."""
        self._run(lambda: self._put(table, field, text.encode("utf-8", "replace")))

    def get(self, table: str) -> dict[str, str]:
        """Returns all fields of a table."""
        fields: dict[str, str] = {}
        self._run(lambda: fields.update(self._get(table)))
        return fields

    def remove(self, table: str, field: str) -> None:
        """Removes a field, if it exists."""

        def remove() -> None:
            with self._opened(table) as folder:
                os.unlink(field, dir_fd=folder)

        self._run(remove)

    def clear(self) -> None:
        """Removes all tables of the run."""
        with contextlib.suppress(StoreUnavailableError, ClusterError):
            self._run(self._clear)

    def own_host(self) -> str:
        """Returns this machine's address towards other machines, else its name."""
        return _outward_address() or socket.gethostname()

    def close(self) -> None:
        """Removes the folders of the run that are empty."""
        with contextlib.suppress(StoreUnavailableError, ClusterError):
            self._run(self._remove_folders)

    def _run(self, call: Callable[[], None]) -> None:
        """Runs a call, which may find that the run, a table or a field does not exist (any more)."""

        def run() -> None:
            try:
                call()
            except FileNotFoundError:
                pass
            except OSError as cause:
                raise StoreUnavailableError(f"{self._folder} cannot be used: {cause.strerror or cause}") from cause

        self._calls.run(run, CALL_SECONDS)

    def _put(self, table: str, field: str, text: bytes) -> None:
        if not self._shared.is_dir():  # Not created here: before it is mounted, this would create it on the wrong disk.
            raise StoreUnavailableError(f"the folder {self._shared} does not exist")
        temporary = f".{field}-{self._suffix}"
        try:
            with self._opened(table, create=True) as folder:
                with contextlib.suppress(FileNotFoundError):  # Left by a call that took too long.
                    os.unlink(temporary, dir_fd=folder)
                with open(
                    os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK, 0o600, dir_fd=folder), "wb"
                ) as file:
                    file.write(text)
                os.replace(temporary, field, src_dir_fd=folder, dst_dir_fd=folder)
        except FileNotFoundError as cause:  # Another process clears the run at this moment.
            raise StoreUnavailableError(f"the folder {self._folder / table} was removed") from cause

    def _get(self, table: str) -> Iterator[tuple[str, str]]:
        with self._opened(table) as folder:
            for name in os.listdir(folder)[:MAX_FIELDS]:
                text = "" if name.startswith(".") else self._read(name, folder)
                if text:
                    yield name, text

    def _read(self, name: str, folder: int) -> str:
        """Returns the text of a file of this user; empty for anything else."""
        try:
            descriptor = os.open(name, os.O_RDONLY | _NO_LINK, dir_fd=folder)
        except OSError:  # It was removed meanwhile, or is a link.
            return ""
        try:
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode) or about.st_uid != os.fstat(folder).st_uid:
                return ""
            with open(descriptor, "rb", closefd=False) as file:
                return file.read(MAX_BYTES).decode("utf-8", "replace")
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def _opened(self, table: str, *, create: bool = False) -> Iterator[int]:
        """Opens the folder of a table, after a check that it and the folder of the run belong to this user alone."""
        with _open_folder(str(self._folder), None, create) as run:
            self._check_owner(run)
            with _open_folder(table, run, create) as folder:
                self._check_owner(folder)
                yield folder

    def _check_owner(self, folder: int) -> None:
        about = os.fstat(folder)
        if about.st_uid not in (os.geteuid(), _uid_there(folder, f".owner-{self._suffix}", about.st_uid)):
            raise self._source.error(
                f"{self._folder} belongs to the user with number {about.st_uid}; remove it, or name another folder"
            )
        if stat.S_IMODE(about.st_mode) & 0o077:
            os.fchmod(folder, 0o700)
            if stat.S_IMODE(os.fstat(folder).st_mode) & 0o022:
                raise self._source.error(f"other users may write in {self._folder}; name a folder that keeps access rights")

    def _clear(self) -> None:
        with _open_folder(str(self._folder), None, False) as run:
            self._check_owner(run)
            tables = os.listdir(run)
        for table in tables:
            with contextlib.suppress(OSError), self._opened(table) as folder:
                for name in os.listdir(folder):
                    with contextlib.suppress(OSError):
                        os.unlink(name, dir_fd=folder)
        self._remove_folders()

    def _remove_folders(self) -> None:
        with _open_folder(str(self._folder), None, False) as run:
            self._check_owner(run)
            for table in os.listdir(run):
                with contextlib.suppress(OSError):  # Another process still uses it.
                    os.rmdir(table, dir_fd=run)
        with contextlib.suppress(OSError):
            os.rmdir(self._folder)


@contextlib.contextmanager
def _open_folder(path: str, inside: int | None, create: bool) -> Iterator[int]:
    if create:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700, dir_fd=inside)
    folder = os.open(path, _FOLDER, dir_fd=inside)
    try:
        yield folder
    finally:
        os.close(folder)


def _uid_there(folder: int, probe: str, owner: int) -> int:
    """Returns this user's number in a file system that changes it, as NFS does with root's; -1 if it cannot be found out."""
    if owner == os.geteuid():
        return owner
    try:
        descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK, 0o600, dir_fd=folder)
    except OSError:
        return -1
    try:
        return os.fstat(descriptor).st_uid
    finally:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            os.unlink(probe, dir_fd=folder)


def _outward_address() -> str | None:
    """Returns the source address of this machine's default route. Connecting a UDP socket sends no packet."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # RFC 5737: an address that no machine has.
            return str(probe.getsockname()[0])
        except OSError:
            return None
