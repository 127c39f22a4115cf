"""`JobFolder`: what the supervisor of a background job writes for `tfdist status`, `logs` and `cancel`, and how they read it.

Only its user can read the folder. It holds JSON and text, and a file of JSON is replaced as a whole. The supervisor is named by
its process id together with its start time, the boot and the process namespace: a number alone is soon another process.
"""

import json
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfdist.launch.backends.interface import BackendError
from tfdist.launch.errors import UsageError
from tfdist.launch.jobs.job_status import JobStatus, State
from tfdist.machine import boot, process_fields

STATE_VARIABLE = "TFDIST_STATE_DIR"
KEEP_SECONDS = 30 * 24 * 3600.0
"""How long the folder of a job stays after its end."""

BLOCK_BYTES = 4096
"""JSON is filled up with blanks to whole blocks of the file system, so that a longer state fits in place of a shorter one."""

_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{6}", re.ASCII)


def root() -> Path:
    """Returns the folder that holds the folders of all jobs of this user. Raises UsageError if nothing says where it is."""
    state = os.environ.get(STATE_VARIABLE)
    if not state:
        base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
        if base.startswith("~/.local"):  # As in a container that runs as a user without a name.
            raise UsageError(
                f"HOME is not set and user {os.geteuid()} is unknown here, so there is no folder for the states of jobs in the "
                f"background; set {STATE_VARIABLE} to a folder that can be written"
            )
        state = os.path.join(base, "tfdist")
    return Path(state).absolute() / "jobs"


@dataclass(frozen=True)
class ProcessName:
    """A process, named so that no later one has the same name.

    Attributes:
        pid: its process id.
        start: its start time, in ticks since the boot.
        place: machine (its name and its id), boot and process namespace. A machine may get another name while it runs.
    """

    pid: int
    start: int
    place: str

    @classmethod
    def own(cls) -> "ProcessName":
        """Returns the name of this process."""
        start = _start_time(os.getpid())
        assert start is not None
        return cls(os.getpid(), start, _place())

    @property
    def is_here(self) -> bool:
        """Whether this process could see it."""
        return self.place.split()[-2:] == _place().split()[-2:]

    @property
    def is_of_earlier_boot(self) -> bool:
        """Whether its machine has been started again since, which has ended it."""
        words, here = self.place.split(), _place().split()
        return words[:-2] == here[:-2] and words[-2:-1] != here[-2:-1]

    @property
    def machine(self) -> str:
        """The name of its machine."""
        return self.place.partition(" ")[0]

    @property
    def is_alive(self) -> bool:
        """Whether it still runs, and `is_here`."""
        return self.is_here and _start_time(self.pid) == self.start


def _start_time(pid: int) -> int | None:
    """Returns the start time of a process; None if there is none, or it is a zombie."""
    fields = process_fields(pid)
    return None if not fields or fields[0] in "ZX" else int(fields[19])


def _place() -> str:
    return f"{socket.gethostname()} {_machine_id()} {boot()}"


def _machine_id() -> str:
    try:
        return Path("/etc/machine-id").read_text(encoding="ascii").strip() or "none"
    except (OSError, UnicodeDecodeError):  # As in most containers.
        return "none"


def created(job: Mapping[str, Any]) -> float:
    """Returns when a job was created, by what is said about it, in seconds since the epoch; 0 if it does not say."""
    try:
        return float(job.get("created", 0))
    except (TypeError, ValueError):
        return 0.0


def _is_own(path: Path) -> bool:
    """Returns whether a folder is this user's; False if it is gone. Raises OSError."""
    try:
        return path.lstat().st_uid == os.geteuid()
    except FileNotFoundError:
        return False


class JobFolder:
    """The folder of one job.

    Attributes:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, backend: str) -> "JobFolder":
        """Creates the folder of a new job, which this process supervises until another says so. Raises OSError, UsageError."""
        root().mkdir(mode=0o700, parents=True, exist_ok=True)
        while True:
            path = root() / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
            try:
                path.mkdir(mode=0o700)
            except FileExistsError:
                continue
            folder = cls(path)
            try:
                folder.output.touch(mode=0o600)
                folder._write("job.json", {"backend": backend, "created": time.time()})
                folder.write_status(JobStatus(State.STARTING))
            except OSError:
                folder.remove()
                raise
            return folder

    @classmethod
    def open(cls, backend: str, job_id: str) -> "JobFolder":
        """Returns the folder of a job. Raises BackendError if there is none, or it is not this user's."""
        path = root() / job_id
        try:
            if not _ID.fullmatch(job_id):
                raise FileNotFoundError
            status = path.lstat()
        except PermissionError as error:
            raise BackendError(f"{path} cannot be read: {error.strerror}") from error
        except OSError as error:
            raise BackendError(f"there is no job {backend}://{job_id} in {root()}; tfdist status lists your jobs") from error
        if status.st_uid != os.geteuid():
            raise BackendError(f"{path} belongs to another user")
        folder = cls(path)
        if folder.job.get("backend") != backend:
            raise BackendError(f"{path} is a job of the back end {folder.job.get('backend')}, not of {backend}")
        return folder

    @classmethod
    def all(cls, left_out: Callable[[BackendError], None] = lambda error: None) -> Iterator[tuple["JobFolder", dict[str, Any]]]:
        """Yields the folders of this user's jobs and what was started, the oldest first; removes those that ended long ago.

        Args:
            left_out: gets the error about each folder that is left out, because it or its `job.json` cannot be read.

        Raises:
            UsageError: if the folder that holds them cannot be read, or nothing says where it is.
        """
        try:
            paths = [path for path in root().iterdir() if _ID.fullmatch(path.name) and _is_own(path)]
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise UsageError(f"{root()} cannot be read: {error.strerror}; allow it, or set {STATE_VARIABLE}") from error
        found = []
        for folder in map(cls, paths):
            try:
                if folder._age() > KEEP_SECONDS and folder._has_ended():
                    folder.remove()
                    continue
                found.append((folder, folder.job))
            except FileNotFoundError:
                continue  # It has just been removed.
            except (BackendError, OSError) as error:
                left_out(error if isinstance(error, BackendError) else BackendError(f"{folder.path} cannot be read: {error}"))
        yield from sorted(found, key=lambda each: created(each[1]))

    @property
    def id(self) -> str:
        """The id of the job."""
        return self.path.name

    @property
    def output(self) -> Path:
        """What the terminal would have shown."""
        return self.path / "output.log"

    @property
    def job(self) -> dict[str, Any]:
        """What was started."""
        return self._read("job.json")

    @property
    def supervisor(self) -> ProcessName | None:
        """The process that supervises the job; None before it has written its name."""
        name = self._read("state.json").get("supervisor")
        return ProcessName(**name) if name else None

    def write_job(self, values: dict[str, Any]) -> None:
        """Adds to what is said about the job."""
        self._write("job.json", {**self.job, **values})

    def write_status(self, status: JobStatus) -> None:
        """Writes the status of the job, as its supervisor. Raises OSError."""
        supervisor = ProcessName.own()
        self._write("state.json", {**status.as_json(), "time": time.time(), "supervisor": vars(supervisor)})

    def status(self) -> JobStatus:
        """Returns the status: what the supervisor wrote, or that it is lost if it is gone without having written the end."""
        for _ in range(2):
            supervisor, status = self._written()
            if status.state.is_final or supervisor is None:
                return status
            if not supervisor.is_here and not supervisor.is_of_earlier_boot:
                where = supervisor.machine
                return JobStatus(status.state, status.tasks, f"as last written by its supervisor on {where}; ask there")
            if supervisor.is_alive:
                return status
        reason = f"its supervisor (process {supervisor.pid if supervisor else '?'}) is gone without a word about the end"
        return JobStatus(State.LOST, status.tasks, reason)

    def _written(self) -> tuple[ProcessName | None, JobStatus]:
        """Returns what the supervisor wrote. Raises BackendError for what it cannot have written."""
        try:
            supervisor = self.supervisor  # Before the state: between the two it may write the end and be gone.
            return supervisor, JobStatus.from_json(self._read("state.json"))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            path = self.path / "state.json"
            found = f"{type(error).__name__}: {error}"
            raise BackendError(f"{path} holds no state of a job ({found}); if it has ended, remove its folder") from error

    def _age(self) -> float:
        """Returns the seconds since something was written to the folder or the output. Raises OSError."""
        written: list[float] = [self.path.stat().st_mtime, *([self.output.stat().st_mtime] if self.output.exists() else ())]
        return time.time() - max(written)

    def _has_ended(self) -> bool:
        try:
            return self.status().state.is_final or self.supervisor is None
        except BackendError:
            return True  # Nobody can read it.

    def remove(self) -> None:
        """Removes the folder."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _read(self, name: str) -> dict[str, Any]:
        try:
            values = json.loads((self.path / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise BackendError(f"{self.path / name} cannot be read: {error}") from error
        return values if isinstance(values, dict) else {}

    def _write(self, name: str, values: dict[str, Any]) -> None:
        path, part = self.path / name, self.path / f"{name}.part"
        content = json.dumps(values, indent=1).encode()
        content += b" " * (-len(content) % BLOCK_BYTES)
        try:
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(content)
            part.rename(path)
        except OSError:
            part.unlink(missing_ok=True)
            if not path.exists() or path.stat().st_size < len(content):
                raise
            # The disk is full, but what is there can be replaced.
            with open(path, "r+b") as file:
                file.write(content.ljust(path.stat().st_size))
