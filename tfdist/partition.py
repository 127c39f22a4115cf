"""`Partition`: which variables of a model are sharded over the devices of a replica, and along which axis.

It is what `keras.distribution.LayoutMap` says inside a program, as a part of the description of the cluster, so that a program
without a layout map can be trained so.
"""

import re
from dataclasses import dataclass
from typing import Any

from tfdist.errors import Source, nearest

AXES: dict[str, int | None] = {"columns": -1, "rows": -2, "none": None}
"""Words for axes. A kernel has its outputs (units, filters) along its last axis, and its inputs along the one before."""

MAX_DEVICES = 1024
"""Most devices over which a variable is sharded."""

_NUMBER = re.compile(r"-?[0-9]{1,2}", re.ASCII)
_EXPECTED = f"{', '.join(AXES)} or the number of an axis"


@dataclass(frozen=True)
class Partition:
    """How the devices of a task, or with ps of a worker group, share a model.

    A replica of the model has `devices` devices, and a task or group as many replicas as fit into it. Without ps a replica may
    also have all devices of several tasks: 0 to m-1 are the first replica, and so on. Each device of a replica holds its shard
    of every variable that a pattern matches, and of its optimizer slots. It holds nothing of other variables, except that the
    first device of each replica (in several tasks, of each of them) holds these whole.

    Attributes:
        layouts: patterns, each with the axis along which the variables are sharded that it matches; None to leave them whole. A
            pattern is a regular expression for the end of a variable's path (`keras.Variable.path`), from a `/` or the start
            on: `dense.*/kernel`. The first that matches counts. Axes count from 0, or from -1 for the last.
        devices: the number of devices of a replica, from 2. Default None: all slots of the task, with ps all workers of the
            group.

    Raises:
        ClusterError: for a bad pattern, axis or number.
    """

    layouts: tuple[tuple[str, int | None], ...] = ()
    devices: int | None = None

    def __post_init__(self) -> None:
        for pattern, axis in self.layouts:
            if fault := layout_fault(pattern, axis):
                raise Source("python", "Partition").error(fault, field="layouts")
        if fault := devices_fault(self.devices):
            raise Source("python", "Partition").error(fault, field="devices")
        if self.devices is not None and not self.layouts:
            raise Source("python", "Partition").error(
                "it gives a number of devices, but no layouts; name the variables to shard"
            )

    def __bool__(self) -> bool:
        """Returns whether it shards anything."""
        return bool(self.layouts)

    def __str__(self) -> str:
        """Returns the layouts as the flag `--partition` takes them."""
        return ",".join(f"{pattern}={axis_word(axis)}" for pattern, axis in self.layouts)

    def find(self, path: str) -> int | None:
        """Returns the number of the first layout whose pattern matches the path of a variable; None if none does."""
        for number, (pattern, _) in enumerate(self.layouts):
            if re.fullmatch(_whole(pattern), path):
                return number
        return None

    def as_dict(self) -> dict[str, Any]:
        """Returns the value that TF_CONFIG holds."""
        layouts = [[pattern, axis_word(axis)] for pattern, axis in self.layouts]
        return {"layouts": layouts} | ({} if self.devices is None else {"devices": self.devices})


def axis_word(axis: int | None) -> str:
    """Returns an axis as a user writes it."""
    return next((word for word, number in AXES.items() if number == axis), str(axis))


def parsed_axis(word: object) -> int | None:
    """Returns the axis that a user has written. Raises ValueError, with the end of a sentence, if it is none."""
    if isinstance(word, str) and word in AXES:
        return AXES[word]
    if isinstance(word, str) and _NUMBER.fullmatch(word):
        return int(word)
    raise ValueError(f"{str(word)[:60]!r} is not an axis; expected {_EXPECTED}{nearest(word, AXES)}")


def parsed_layouts(text: str) -> tuple[tuple[str, int | None], ...]:
    """Returns the layouts of the flag `--partition`: `PATTERN=AXIS,PATTERN=AXIS`.

    Commas inside brackets belong to a pattern, as in `block_[0,1]/kernel`.

    Raises:
        ValueError: with the end of a sentence.
    """
    layouts: list[tuple[str, int | None]] = []
    for word in _at_commas(text):
        pattern, equals, axis = word.strip().rpartition("=")
        if not equals:
            raise ValueError(
                f"{word.strip()[:60]!r} has no axis; expected a pattern and its axis, as in 'dense.*/kernel=columns'"
            )
        number = parsed_axis(axis.strip())
        if fault := layout_fault(pattern.strip(), number):
            raise ValueError(fault)
        layouts.append((pattern.strip(), number))
    return tuple(layouts)


def layout_fault(pattern: object, axis: object) -> str | None:
    """Returns why a layout is not right, as the end of a sentence; None if it is."""
    if not isinstance(pattern, str) or not pattern or not pattern.isprintable() or len(pattern) > 1000:
        return f"{str(pattern)[:60]!r} is not a pattern; expected a regular expression for paths of variables"
    try:
        re.compile(pattern)
        re.compile(_whole(pattern))
    except re.error as error:
        return f"{pattern[:60]!r} is not a regular expression: {error}"
    if axis is not None and (not isinstance(axis, int) or isinstance(axis, bool) or not -8 <= axis <= 8):
        return f"{str(axis)[:60]!r} is not an axis; expected {_EXPECTED}"
    return None


def devices_fault(devices: object) -> str | None:
    """Returns why a number of devices is not right, as the end of a sentence; None if it is."""
    if devices is None:
        return None
    if not isinstance(devices, int) or isinstance(devices, bool) or not 2 <= devices <= MAX_DEVICES:
        return f"{str(devices)[:60]!r} is not right; expected a number of devices from 2 to {MAX_DEVICES}"
    return None


def _whole(pattern: str) -> str:
    """Returns the expression for whole paths."""
    return f"(.*/)?(?:{pattern})"


def _at_commas(text: str) -> list[str]:
    """Splits at the commas outside of brackets."""
    words, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth <= 0:
            words.append("")
        else:
            words[-1] += character
    return words
