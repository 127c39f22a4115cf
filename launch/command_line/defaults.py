"""Defaults of flags from a file: `tfdist.toml` in the working folder, else `[tool.tfdist]` in its `pyproject.toml`.

tier = "STANDARD_1"
strategy = "hogwild"
sync_period = 16
env = ["WANDB_API_KEY"]
detach = true
"""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from absl import flags

from tfdist.dialects.registry import override_flags
from tfdist.errors import nearest
from tfdist.launch.errors import UsageError
from tfdist.messages import without_secrets

FILE, PROJECT = "tfdist.toml", "pyproject.toml"

_DESCRIBE = {"workers", "tier", "cluster", "hostfile", "worker_count", "parameter_server_count", "evaluator_count", "evaluator"}
"""Flags that describe the cluster. One of them on the command line replaces all of them, and machine types, in the file."""

_NOT_HERE = {"defaults", "m", "dry_run"}


def apply(values: flags.FlagValues, known: set[str], left_out: Callable[[], set[str]]) -> list[tuple[str, str]]:
    """Sets flags that the command line does not give.

    Args:
        values: the parsed flags.
        known: names of the flags that a file may set.
        left_out: returns names that mean nothing with the chosen back end.

    Returns:
        Each flag that was set, as it would be on the command line and without secrets, and the file.

    Raises:
        UsageError: for a file that cannot be read, a flag that does not exist, or a bad value.
    """
    path, table = _table()
    given = {name for name in known if values[name].present}
    if given & _DESCRIBE:
        given |= _DESCRIBE | override_flags().keys()
    applied = []
    named = {_name(key, values, known, path): (key, value) for key, value in table.items()}
    for name, (key, value) in sorted(named.items(), key=lambda item: item[0] != "backend"):
        if name in given or name in left_out():
            continue
        flag = values[name]
        try:
            flag.parse(_words(value, flag))
        except (flags.Error, TypeError) as error:
            raise UsageError(f"{path}: {key}: {' '.join(str(error).split())}") from error
        flag.present += 1
        flag.using_default_value = False
        shown = f"--env={_names(flag.value or [])}" if name == "env" else without_secrets(flag.serialize().replace("\n", " "))
        applied.append((shown, path))
    try:
        values.validate_all_flags()
    except flags.Error as error:
        raise UsageError(f"{path}: {error}" if applied else str(error)) from error
    return applied


def _table() -> tuple[str, Mapping[str, Any]]:
    """Returns the file and its table; an empty one where there is none."""
    for name in (FILE, PROJECT):
        try:
            text = Path(name).read_text(encoding="utf-8-sig")
        except FileNotFoundError:
            continue
        except (OSError, UnicodeError) as error:
            raise UsageError(f"{name} cannot be read: {error}") from error
        if name == PROJECT and "tfdist" not in text:
            continue  # Whatever else is in it.
        values = _parsed(name, text)
        if name == PROJECT:
            tools = values.get("tool", {})
            if not isinstance(tools, dict) or "tfdist" not in tools:
                continue
            values = tools["tfdist"]
        if not isinstance(values, dict):
            raise UsageError(f"{name}: tool.tfdist is not a table; expected names of flags with values")
        return (name if name == FILE else f"{name} [tool.tfdist]"), values
    return "", {}


def _parsed(name: str, text: str) -> dict[str, Any]:
    for module in ("tomllib", "tomli"):
        try:
            toml = importlib.import_module(module)
        except ImportError:
            continue
        try:
            found: dict[str, Any] = toml.loads(text)
        except ValueError as error:
            raise UsageError(f"{name} is not TOML: {error}") from error
        return found
    if name == PROJECT and "tool.tfdist" not in text:
        return {}
    raise UsageError(f"{name}: Python 3.10 needs a package to read it: pip install tomli; or give --nodefaults")


def _name(key: str, values: flags.FlagValues, known: set[str], path: str) -> str:
    word = key.replace("-", "_")
    name = str(values[word].name) if word in values else word
    if name in _NOT_HERE:
        raise UsageError(f"{path}: {key} belongs on the command line")
    if name not in known:
        raise UsageError(f"{path}: {key!r} is not a flag of tfdist run{nearest(word, known)}")
    return name


def _words(value: Any, flag: "flags.Flag[Any]") -> Any:
    """Returns a value as `flag.parse` takes it. Raises TypeError."""
    if flag.boolean:
        if not isinstance(value, bool):
            raise TypeError("expected true or false")
        return value
    if isinstance(value, list) and all(isinstance(each, str) for each in value) and isinstance(flag.value, list):
        return value
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError("expected a text or a number" + (", or a list of texts" if isinstance(flag.value, list) else ""))
    return str(value)


def _names(words: list[str]) -> str:
    return ",".join(word.partition("=")[0] for word in words)
