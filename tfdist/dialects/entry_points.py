"""Dialects of other packages, which announce them as entry points of the group `tfdist.dialects`.

    [project.entry-points."tfdist.dialects"]
    pipeline = "my_package.pipeline:DIALECT"

The entry point names a `Dialect`. One that cannot be used is left out with a warning that names it; the others still work.
"""

import dataclasses
import logging
import re
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from tfdist import entry_points
from tfdist.dialects.dialect import CommandReader, Dialect, EnvironmentReader, TextReader, Writer

GROUP = "tfdist.dialects"

_NAME = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)
_PARTS = {"text": TextReader, "command": CommandReader, "environment": EnvironmentReader, "writer": Writer}

_RESERVED = {
    "name": {"cluster_spec", "mermaid", "svg", "tree"},  # Outputs of `tfdist.translate` that are no dialect.
    "override": {"job_dir"},  # Every dialect takes it.
    "option": {"to", "hostfile", "task", "help", "h"},  # Flags of `tfdist.translate`.
}

_log = logging.getLogger("tfdist")

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def load(built_in: Sequence[Dialect]) -> list[Dialect]:
    """Returns the dialects of installed packages, ordered by the name of the entry point.

    Logs a warning for each bad one, such as one with a name, program or override of those that are `built_in`.
    """
    others: list[Dialect] = []
    for dialect, where in entry_points.loaded(GROUP, "dialect", lambda dialect: _fault(dialect, [*built_in, *others])):
        others.append(_guarded(dialect, where))
    return others


def _fault(dialect: object, others: Sequence[Dialect]) -> str | None:
    """Returns why a dialect cannot be used beside `others`, or None."""
    if not isinstance(dialect, Dialect):
        return f"it is a {type(dialect).__name__}; expected a tfdist.dialects.Dialect"
    if not isinstance(dialect.name, str) or not _NAME.fullmatch(dialect.name):
        return f"its name is {dialect.name!r}; expected lower-case letters, digits and _"
    for name, kind in _PARTS.items():
        part = getattr(dialect, name)
        if part is not None and not isinstance(part, kind):
            return f"its {name} is a {type(part).__name__}; expected a {kind.__name__}"
    if dialect.text is not None and not isinstance(dialect.text.words, frozenset):
        return f"its words are a {type(dialect.text.words).__name__}; expected a frozenset"
    options = set(dialect.writer.options if dialect.writer else ())
    for what, names in {**_names(dialect), "option": options}.items():
        if reserved := names & _RESERVED.get(what, set()):
            return f"the {what} {min(reserved)} is reserved; choose another"
    for what, names in _names(dialect).items():
        for other in others:
            if taken := names & _names(other)[what]:
                return f"the {what} {min(taken)} belongs to the dialect {other.name}; choose another"
    return None


def _names(dialect: Dialect) -> dict[str, set[str]]:
    """Returns the names that no two dialects may share."""
    return {
        "name": {dialect.name},
        "program": set(dialect.command.programs if dialect.command else ()),
        "override": set(dialect.text.overrides if dialect.text else ()),
    }


def _guarded(dialect: Dialect, where: str) -> Dialect:
    """Returns the dialect with recognizers that never raise: they see every description and every environment."""
    text, environment = dialect.text, dialect.environment
    if text is not None:
        text = dataclasses.replace(
            text,
            looks_like=_harmless(text.looks_like, False, where),
            refers=_harmless(text.refers, None, where),
            variables=_harmless(text.variables, {}, where),
            from_object=_harmless(text.from_object, None, where),
            presets=text.presets and dataclasses.replace(text.presets, find=_harmless(text.presets.find, None, where)),
        )
    if environment is not None:
        environment = dataclasses.replace(
            environment,
            recognizes=_harmless(environment.recognizes, None, where),
            is_blank=_harmless(environment.is_blank, False, where),
        )
    return dataclasses.replace(dialect, text=text, environment=environment)


def _harmless(function: Callable[_Arguments, _Result], otherwise: _Result, where: str) -> Callable[_Arguments, _Result]:
    def guarded(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        try:
            return function(*args, **kwargs)
        except Exception as error:  # The package's own code runs here.
            _log.warning("the dialect of the entry point %s recognizes nothing: %s: %s", where, type(error).__name__, error)
            return otherwise

    return guarded
