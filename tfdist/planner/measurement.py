"""`Measurement`: what the steps and synchronizations of a program cost, as the probe has measured it, and its file."""

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfdist.dialects.parsing.document import read_text
from tfdist.errors import Source

VERSION = 1
"""Version of the format of the file."""


@dataclass(frozen=True)
class Variable:
    """A variable of the model.

    Attributes:
        name: its path in the model.
        shape: its shape.
        size: its bytes.
        is_table: whether it belongs to an Embedding layer, whose steps read and update single rows.
    """

    name: str
    shape: tuple[int, ...]
    size: int
    is_table: bool = False


@dataclass(frozen=True)
class Run:
    """What a short training of one configuration has cost. Times are processor seconds per step of one worker.

    Attributes:
        strategy: `default` (one process), `multi_worker_mirrored`, `parameter_server` or `hogwild`.
        workers: number of workers.
        ps: number of ps.
        steps: steps that were measured.
        seconds: how long they took.
        batch: examples of a step of `fit`.
        worker: processor seconds of one worker.
        server: processor seconds of one ps; 0 without.
        chief: processor seconds of the chief; 0 without.
        period: updates between two synchronizations of hogwild; else 1.
        waited: part of `seconds` for which the threads of the workers waited for a processor that others had.
        moved: bytes that all ps, or without ps all workers, send and receive in a step, both together; 0 if not known.
    """

    strategy: str
    workers: int
    ps: int
    steps: int
    seconds: float
    batch: int
    worker: float
    server: float = 0.0
    chief: float = 0.0
    period: int = 1
    waited: float = 0.0
    moved: float = 0.0


@dataclass(frozen=True)
class Measurement:
    """All that is known about a program.

    Attributes:
        program: the program and its arguments, for people.
        cores: cores that the measured processes could use.
        batch: examples of a step.
        batch_bytes: bytes of a batch that the chief sends to a worker; 0 if workers read their data themselves.
        variables: the trainable variables.
        runs: what was measured; the first is that of one process.
        link: measured rate between hosts in bytes per second; None if it was not measured.
        epoch: steps of an epoch; None if not known.
    """

    program: str
    cores: int
    batch: int
    batch_bytes: int
    variables: tuple[Variable, ...]
    runs: tuple[Run, ...]
    link: float | None = None
    epoch: int | None = None

    @property
    def model_bytes(self) -> int:
        """Bytes of all trainable variables."""
        return sum(variable.size for variable in self.variables)

    @property
    def table_bytes(self) -> int:
        """Bytes of the tables of Embedding layers."""
        return sum(variable.size for variable in self.variables if variable.is_table)

    def run(self, strategy: str, ps: int | None = None) -> Run | None:
        """Returns the run of a strategy, and with a number of ps; None if it was not measured."""
        found = (run for run in self.runs if run.strategy == strategy and ps in (None, run.ps))
        return next(found, None)

    @property
    def single(self) -> Run:
        """The run of one process."""
        return self.runs[0]

    def as_json(self) -> dict[str, Any]:
        """Returns a dict for `json.dumps`, which `from_json` takes."""
        return {"version": VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, values: object, source: str) -> "Measurement":
        """Returns the measurement of what `as_json` has returned. Raises ClusterError if it is no measurement."""
        error = Source("planner", source).error
        if not isinstance(values, Mapping) or values.get("version") != VERSION:
            raise error(f"this is no measurement of version {VERSION}; tfdist plan --save FILE writes one")
        try:
            measurement = cls(
                str(values["program"]),
                _number(values, "cores", whole=True),
                _number(values, "batch", whole=True),
                _number(values, "batch_bytes", whole=True, least=0),
                tuple(
                    Variable(str(each["name"]), _shape(each), _number(each, "size", whole=True), bool(each["is_table"]))
                    for each in values["variables"]
                ),
                tuple(_run(each) for each in values["runs"]),
                None if values.get("link") is None else _number(values, "link"),
                None if values.get("epoch") is None else _number(values, "epoch", whole=True),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as fault:
            what = f"the field {fault} is missing" if isinstance(fault, KeyError) else str(fault)
            raise error(f"this is no measurement: {what}; tfdist plan --save FILE writes one") from None
        if not measurement.variables or not measurement.runs or measurement.single.strategy != "default":
            raise error("this measurement has no variables, or no run of one process; tfdist plan --save FILE writes one")
        return measurement


def _run(values: Mapping[str, Any]) -> Run:
    whole = {"workers": 1, "ps": 0, "steps": 1, "batch": 1, "period": 1}
    least = {"seconds": None, "worker": None, "server": 0, "chief": 0, "waited": 0}
    return Run(
        strategy=str(values["strategy"]),
        **{name: _number(values, name, whole=True, least=lowest) for name, lowest in whole.items()},  # type: ignore[arg-type]
        **{name: _number(values, name, least=lowest) for name, lowest in least.items()},  # type: ignore[arg-type]
        moved=_number(values, "moved", least=0) if "moved" in values else 0.0,  # Older files do not say it.
    )


def _shape(values: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns a shape. Raises ValueError for others."""
    shape = values["shape"]
    if not isinstance(shape, list) or not all(type(length) is int and length >= 0 for length in shape):
        raise ValueError(f"shape is {shape!r}, and not a list of whole numbers")
    return tuple(shape)


def _number(values: Mapping[str, Any], name: str, *, whole: bool = False, least: int | None = None) -> Any:
    """Returns a number, above 0 unless `least` allows less. Raises ValueError for others."""
    value = values[name]
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float) or not math.isfinite(value):
        raise ValueError(f"{name} is {value!r}, and not a number")
    if value <= 0 if least is None else value < least:
        raise ValueError(f"{name} is {value!r}, which is too small")
    return value


def read(path: str) -> Measurement:
    """Returns the measurement in a file. Raises ClusterError if there is none."""
    source = Source("planner", path)
    text = read_text(path, source)
    try:
        values = json.loads(text)
    except ValueError as error:
        raise source.error(f"this is no JSON: {error}") from None
    return Measurement.from_json(values, path)


def save(measurement: Measurement, path: str) -> None:
    """Writes a measurement to a file. Raises ClusterError if it cannot be written."""
    try:
        Path(path).write_text(json.dumps(measurement.as_json(), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise Source("planner", path).error(f"this file cannot be written: {error.strerror}") from None
