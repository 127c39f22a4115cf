"""`Tables`: the tables of one run in the memory of the process that serves them, and the most that others may write there."""

import re
import sys
import threading
from dataclasses import dataclass

TABLES = ("leaders", "members", "verdicts", "read")
"""The tables of `launch.rendezvous.meet`."""

_FIELD = re.compile(r"[0-9a-f]{1,64}", re.ASCII)


class FullError(Exception):
    """The tables hold as much as they may."""


@dataclass(frozen=True)
class Limits:
    """The most that a server holds, for whoever connects.

    Attributes:
        fields: fields in all tables.
        stored_bytes: memory of their names and texts.
        request_bytes: length of a line; member info has a few hundred bytes.
        strangers: connections that have not proved yet that they belong to the run. Beyond it the oldest is closed.
        members: connections that have. Beyond it the oldest is closed; a live process connects again.
        proof_seconds: time for the proof.
        idle_seconds: time after which a silent connection is closed; a process sends a request at least every few seconds.
    """

    fields: int
    stored_bytes: int
    members: int
    strangers: int = 64
    request_bytes: int = 16 << 10
    proof_seconds: float = 5.0
    idle_seconds: float = 60.0

    @classmethod
    def of(cls, processes: int) -> "Limits":
        """Returns the limits for a job: several times what its processes need."""
        return cls(fields=64 + 8 * processes, stored_bytes=(1 << 20) + (processes << 12), members=16 + 4 * processes)


class Tables:
    """Table -> field -> text. Threads may share it.

    What the process that serves writes has no limit, because its roster is longer than all that the others may write. Nobody
    else can change it.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._tables: dict[str, dict[str, str]] = {}
        self._sizes: dict[tuple[str, str], int] = {}  # Of the fields that others wrote.
        self._bytes = 0  # Their sum.
        self._lock = threading.Lock()

    def get(self, table: str) -> dict[str, str]:
        """Returns all fields of a table."""
        with self._lock:
            return dict(self._tables.get(table, {}))

    def put(self, table: str, field: str, text: str, *, is_own: bool) -> None:
        """Sets one field, for the process that serves (`is_own`) or for another.

        Raises:
            FullError: if others have written as much as they may.
            ValueError: for a table that is none of `TABLES`, a field that is no hexadecimal number, and a field that belongs to
                the process that serves.
        """
        if table not in TABLES or not _FIELD.fullmatch(field):
            raise ValueError(table)
        with self._lock:
            self._check_owner(table, field, is_own)
            if not is_own:
                size, before = sys.getsizeof(field) + sys.getsizeof(text), self._sizes.get((table, field), 0)
                total = self._bytes + size - before
                if total > self._limits.stored_bytes or (not before and len(self._sizes) >= self._limits.fields):
                    raise FullError
                self._sizes[table, field], self._bytes = size, total
            self._tables.setdefault(table, {})[field] = text

    def remove(self, table: str, field: str, *, is_own: bool) -> None:
        """Removes a field, if it exists. Raises ValueError as `put` does."""
        with self._lock:
            self._check_owner(table, field, is_own)
            self._tables.get(table, {}).pop(field, None)
            self._bytes -= self._sizes.pop((table, field), 0)

    def clear(self) -> None:
        """Removes all tables."""
        with self._lock:
            self._tables.clear()
            self._sizes.clear()
            self._bytes = 0

    def _check_owner(self, table: str, field: str, is_own: bool) -> None:
        if not is_own and field in self._tables.get(table, {}) and (table, field) not in self._sizes:
            raise ValueError(table)
