"""Numbers in environment variables and options: checked, and refused in one line."""

import re
from collections.abc import Mapping

from tfdist.dialects.text import shown
from tfdist.errors import Source

_WHOLE = re.compile(r"[0-9]{1,15}", re.ASCII)


def whole(values: Mapping[str, str], name: str, source: Source, *, least: int = 0, most: int = 10**9) -> int:
    """The whole number in `values[name]`. Raises ClusterError where it is missing, no number, or outside `least` to `most`."""
    text = values.get(name, "").strip()
    if not text:
        raise source.error(f"it is not set; expected a whole number from {least} to {most}", field=name)
    if not _WHOLE.fullmatch(text) or not least <= int(text) <= most:
        raise source.error(f"{shown(text)} is not a whole number from {least} to {most}", field=name)
    return int(text)
