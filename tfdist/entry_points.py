"""`loaded`: what other packages announce as entry points, checked one by one."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

_log = logging.getLogger("tfdist")


def loaded(group: str, kind: str, fault_of: Callable[[Any], str | None]) -> Iterator[tuple[Any, str]]:
    """Yields the objects of the entry points of a group, ordered by name, each with where it is from: `NAME = VALUE (PACKAGE)`.

    One that cannot be used is left out with a warning that names it.

    Args:
        group: the group.
        kind: what its objects are, for the warning.
        fault_of: returns why an object cannot be used; None if it can. It is called before the next one is loaded.
    """
    from importlib.metadata import entry_points  # Slow to import, and `import tfdist` does not need it.

    for entry in sorted(entry_points(group=group), key=lambda entry: (entry.name, entry.value)):
        where = f"{entry.name} = {entry.value} ({entry.dist.name if entry.dist else 'unknown package'})"
        try:
            found = entry.load()
            fault = fault_of(found)
        except Exception as error:  # The package's own code runs here.
            fault = f"{type(error).__name__}: {error}"
        if fault:
            _log.warning("the %s of the entry point %s is left out: %s", kind, where, " ".join(fault.split()))
        else:
            yield found, where
