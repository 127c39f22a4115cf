"""The program that containers run, and YAML manifests: what the dialects of cloud systems share."""

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from tfdist.errors import ClusterError, Source, nearest
from tfdist.messages import printable

PLACEHOLDER_IMAGE = "registry.example.com/your-image:tag"
PLACEHOLDER_COMMAND = ("python", "train.py")

IMAGE_OPTIONS = {
    "image": "the image of the containers",
    "command": "the command of the containers, quoted as for a shell; no shell runs it",
}
"""Options of all dialects that write containers."""

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_PLAIN = re.compile(r"[A-Za-z][-A-Za-z0-9._/]+", re.ASCII)
"""Text that needs no quotes for any YAML reader, except words such as `yes`, which PyYAML quotes."""


@dataclass(frozen=True)
class Program:
    """The program that containers run, and the names of its objects.

    Attributes:
        image: container image; None for a placeholder.
        command: the program and its arguments, run without a shell; None for a placeholder.
        name: name of the job, with which the names of all objects begin. Default: the name in the cluster's host names if
            Kubernetes made these, else `tfdist`.
        namespace: its namespace. Default: the namespace in the host names, else none, and kubectl chooses.
    """

    image: str | None = None
    command: tuple[str, ...] | None = None
    name: str | None = None
    namespace: str | None = None

    @property
    def words(self) -> list[str]:
        """The command, or the placeholder."""
        return list(PLACEHOLDER_COMMAND if self.command is None else self.command)


def program(options: Mapping[str, Any]) -> Program:
    """Returns the program of the options `image`, `command` (a list, or text in the words of a shell), `name`, `namespace`.

    Raises:
        ClusterError: for an unknown option, and for a value that Kubernetes would refuse.
    """
    known = [entry.name for entry in fields(Program)]
    values: dict[str, Any] = {}
    for option, value in options.items():
        error = Source("flags", f"--{option}").error
        if option not in known:
            raise error(f"there is no such option{nearest(option, known)}")
        if value is None:
            continue
        if option == "command":
            value = _words(value)
        if not value or not all(isinstance(part, str) for part in (value if option == "command" else (value,))):
            raise error(f"{value!r} is not right; expected text that is not empty")
        _check_text(value if option == "command" else (value,), error)
        if option in ("name", "namespace") and not is_label(value):
            raise error(f"{value[:70]!r} is not a name that Kubernetes takes: at most 63 of a-z, 0-9 and -")
        values[option] = value
    return Program(**values)


def is_label(name: str) -> bool:
    """Returns whether Kubernetes takes `name` for an object: a DNS label of RFC 1123, at most 63 characters."""
    return _LABEL.fullmatch(name) is not None


def placeholder_note(given: Program, where: str) -> list[str]:
    """Returns the comment about an image or a command that is a placeholder; empty if neither is."""
    if given.image is not None and given.command is not None:
        return []
    return [f"Replace the image and the command by your own; the program is the same {where}."]


def dump(objects: Iterable[Mapping[str, Any]], comments: Iterable[str]) -> str:
    """Returns YAML documents after comments, one line each. Every text is quoted as YAML needs it."""
    import yaml  # Not needed for TF_CONFIG, which every process reads.

    class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
        def ignore_aliases(self, _: object) -> bool:
            return True

    def quoted(dumper: Any, value: str) -> Any:
        # PyYAML leaves some words plain that other readers take for numbers or bools (1e3, y).
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if _PLAIN.fullmatch(value) else "'")

    Dumper.add_representer(str, quoted)
    text = "---\n".join(yaml.dump(entry, Dumper=Dumper, sort_keys=False, width=2**30) for entry in objects)
    return "".join(f"# {printable(line)}\n" for line in comments) + text


def _check_text(words: Iterable[str], error: Callable[[str], ClusterError]) -> None:
    for word in words:
        if "\0" in word or word.encode(errors="replace").decode() != word:
            raise error(f"{word[:60]!r} is no text: it has a NUL character, or one that is not Unicode")


def _words(command: "str | Sequence[str]") -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command)) if isinstance(command, str) else tuple(command)
    except ValueError as error:
        raise Source("flags", "--command").error(f"this is not a command: {error}") from None
