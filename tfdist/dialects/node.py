"""One value of a JSON or YAML description together with where it stands, so that every message can say so."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tfdist.dialects.document import MAX_TASKS, Document, Path, close, shown
from tfdist.errors import ClusterError, Source, nearest

_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,18})", re.ASCII)


@dataclass(frozen=True)
class Node:
    """A value of a document.

    Attributes:
        value: the value itself: a mapping, a list, a text, a number, a bool or None.
        path: the keys and positions that lead to it.
        document: the document that it is in.
        source: how messages name that document.
    """

    value: Any
    path: Path
    document: Document
    source: Source

    def error(self, message: str) -> ClusterError:
        """Returns (does not raise) the error about this value: file, line as near as it is known, field."""
        lines, path = self.document.lines, self.path
        if path not in lines and isinstance(self.value, Mapping) and self.value:
            path = (*path, str(next(iter(self.value))))  # An element of a list begins where its first field stands.
        while path and path not in lines:
            path = path[:-1]
        return self.source.error(message, field=".".join(self.path)[-150:], line=lines.get(path))

    def get(self, *names: str) -> "Node | None":
        """The value of the first of the keys (spellings of one field) that is there and not null.

        Raises:
            ClusterError: where this is no mapping, or the field is given in two spellings.
        """
        mapping = self.mapping()
        given = [name for name in names if mapping.get(name) is not None]
        if len(given) > 1:
            raise self.child(given[1]).error(f"the same is given as {given[0]}; keep one of them")
        return self.child(given[0]) if given else None

    def child(self, key: str) -> "Node":
        """The value of a key, None where it is not there."""
        return Node(self.value.get(key), (*self.path, key), self.document, self.source)

    def entries(self) -> "Iterator[Node]":
        """The elements of a list. Raises ClusterError where this is none."""
        if not isinstance(self.value, list | tuple):
            raise self.error(f"{shown(self.value)} is not a list; expected one such as [...]")
        for position, value in enumerate(self.value):
            yield Node(value, (*self.path, str(position)), self.document, self.source)

    def mapping(self) -> Mapping[Any, Any]:
        """The value as a mapping. Raises ClusterError where it is none."""
        if not isinstance(self.value, Mapping):
            raise self.error(f"{shown(self.value)} is not a mapping; expected fields")
        return self.value

    def text(self) -> str:
        """The value as a text that is not empty. Raises ClusterError where it is none."""
        if not isinstance(self.value, str) or not self.value:
            raise self.error(f"{shown(self.value)} is not a text; expected a string")
        return self.value

    def count(self, least: int = 0, most: int = MAX_TASKS) -> int:
        """The value as a whole number from `least` to `most`, given as a number or as text ("4")."""
        number = self.value
        if isinstance(number, str) and _WHOLE.fullmatch(number):
            number = int(number)
        if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
            raise self.error(f"{shown(self.value)} is not a count; expected a whole number from {least} to {most}")
        return number

    def check_keys(self, known: Iterable[str], what: str) -> None:
        """Raises ClusterError for a key that `what` does not have, with the nearest that it has."""
        names = list(known)
        for key in self.mapping():
            if key not in names:
                hint = nearest(key, names, otherwise=f"; the fields are {', '.join(names)}")
                raise self._key(key).error(f"{what} has no such field{hint}")

    def check_near(self, known: Iterable[str], what: str) -> None:
        """Raises ClusterError for a key that is probably meant to be one of `known`; others are left alone."""
        names = list(known)
        for key in self.mapping():
            meant = close(key, names) if isinstance(key, str) else None
            if meant is not None and meant != key:
                raise self._key(key).error(f"{what} has no such field; did you mean {meant}?")

    def _key(self, key: object) -> "Node":
        return Node(None, (*self.path, key if isinstance(key, str) else shown(key)), self.document, self.source)


def root(document: Document, dialect: str) -> Node:
    """The whole of a document that was loaded."""
    return Node(document.mapping, (), document, Source(dialect, document.name))
