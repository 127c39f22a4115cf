"""JSON in files and messages that processes share."""

import json
import os
from typing import Any


def replace_file(path: "str | os.PathLike[str]", value: object, indent: int | None = None) -> None:
    """Replaces a file by one with this value: no reader finds a part of it. Raises OSError."""
    part = f"{os.fspath(path)}.part"
    with open(part, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=indent)
    os.replace(part, path)


def object_in(text: object) -> dict[str, Any]:
    """Returns the JSON object in a str or bytes; an empty one where there is none."""
    try:
        value = json.loads(text) if isinstance(text, str | bytes) else None
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {}
