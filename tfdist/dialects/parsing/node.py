"""`Node`: one value of a JSON or YAML description together with its place, which every message names."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tfdist.dialects.parsing.document import MAX_TASKS, Document, Path, close, shown
from tfdist.errors import ClusterError, Source, nearest

_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,18})", re.ASCII)


@dataclass(frozen=True)
class Node:
    """A value of a document.

    Attributes:
        value: a mapping, a list, a text, a number, a bool or None.
        path: the keys and positions that lead to it.
        document: the document that contains it.
        source: names the document in messages.
    """

    value: Any
    path: Path
    document: Document
    source: Source

    @property
    def field(self) -> str:
        """The path, as messages show it."""
        return ".".join(self.path)[-150:]

    def error(self, message: str) -> ClusterError:
        """Returns (does not raise) the error about this value: file, line as far as it is known, and field."""
        lines, path = self.document.lines, self.path
        if path not in lines and isinstance(self.value, Mapping) and self.value:
            path = (*path, str(next(iter(self.value))))  # An element of a list begins at its first field.
        while path and path not in lines:
            path = path[:-1]
        return self.source.error(message, field=self.field, line=lines.get(path))

    def get(self, *names: str) -> "Node | None":
        """Returns the value of a field that may have several spellings; None if it is missing or null.

        Raises:
            ClusterError: if this is not a mapping, or the field is given in two spellings.
        """
        mapping = self.mapping()
        given = [name for name in names if mapping.get(name) is not None]
        if len(given) > 1:
            raise self.child(given[1]).error(f"the same is given as {given[0]}; keep one of them")
        return self.child(given[0]) if given else None

    def find(self, *path: str) -> "Node | None":
        """Returns the value below several keys; None if one of them is missing or null. Raises ClusterError as `get` does."""
        node: Node | None = self
        for key in path:
            node = node.get(key) if node is not None else None
        return node

    def child(self, key: str) -> "Node":
        """Returns the node of a key, whose value is None if it is missing. Raises ClusterError if this is not a mapping."""
        return Node(self.mapping().get(key), (*self.path, key), self.document, self.source)

    def entries(self) -> "Iterator[Node]":
        """Yields the elements of a list. Raises ClusterError if this is not a list."""
        if not isinstance(self.value, list | tuple):
            raise self.error(f"{shown(self.value)} is not a list; expected one such as [...]")
        for position, value in enumerate(self.value):
            yield Node(value, (*self.path, str(position)), self.document, self.source)

    def mapping(self) -> Mapping[Any, Any]:
        """Returns the value as a mapping. Raises ClusterError if it is not one."""
        if not isinstance(self.value, Mapping):
            raise self.error(f"{shown(self.value)} is not a mapping; expected fields")
        return self.value

    def text(self) -> str:
        """Returns the value as a text. Raises ClusterError if it is not a text, or empty."""
        if not isinstance(self.value, str) or not self.value:
            raise self.error(f"{shown(self.value)} is not a text; expected a string")
        return self.value

    def count(self, least: int = 0, most: int = MAX_TASKS) -> int:
        """Returns the value as a whole number, given as a number or as text ("4").

        Raises:
            ClusterError: if it is not a whole number from `least` to `most`.
        """
        number = self.value
        if isinstance(number, str) and _WHOLE.fullmatch(number):
            number = int(number)
        if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
            raise self.error(f"{shown(self.value)} is not a count; expected a whole number from {least} to {most}")
        return number

    def check_keys(self, known: Iterable[str], owner: str) -> None:
        """Raises ClusterError for a key that `owner` does not have; the message suggests the nearest known key."""
        names = list(known)
        for key in self.mapping():
            if key not in names:
                hint = nearest(key, names, otherwise=f"; the fields are {', '.join(names)}")
                raise self._key(key).error(f"{owner} has no such field{hint}")

    def check_near(self, known: Iterable[str], owner: str) -> None:
        """Raises ClusterError for a key that resembles one of `known`; other unknown keys are allowed."""
        names = list(known)
        for key in self.mapping():
            meant = close(key, names) if isinstance(key, str) else None
            if meant is not None and meant != key:
                raise self._key(key).error(f"{owner} has no such field; did you mean {meant}?")

    def _key(self, key: object) -> "Node":
        return Node(None, (*self.path, key if isinstance(key, str) else shown(key)), self.document, self.source)


def root(document: Document, dialect: str) -> Node:
    """Returns the whole of a document that was loaded."""
    return Node(document.mapping, (), document, Source(dialect, document.name))
