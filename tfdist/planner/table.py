"""The table of predictions as text, and as JSON."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from tfdist.planner.measurement import Measurement
from tfdist.planner.option import Option
from tfdist.planner.predict import Prediction

Cost = Callable[[Option], float]


def name_of(option: Option) -> str:
    """Returns an option in a few words: `hogwild 16, 8 workers, 3 ps apart`."""
    if option.strategy == "default":
        return "one process"
    if option.strategy == "mirrored":
        return f"mirrored, {option.workers} devices"
    period = f" {option.period}" if option.strategy == "hogwild" else ""
    workers = f"{option.workers} worker{'s' * (option.workers > 1)}"
    return f"{option.strategy}{period}, {workers}{f', {_ps(option)}' if option.ps else ''}"


def _ps(option: Option) -> str:
    return f"{option.ps} ps {'beside workers' if option.colocated else 'apart'}"


def rows(predictions: Sequence[Prediction], cost: Cost | None, described: Option | None = None) -> list[list[str]]:
    """Returns the cells of the table, with its head. The row of `described` says so in its last cell."""
    head = ["", "strategy", "workers", "ps", "period", "machines", "examples/s", "binds"]
    found = [[*head, *(["cost per hour", "per million examples"] if cost else []), ""]]
    for number, each in enumerate(predictions):
        option = each.option
        period = str(option.period) if option.strategy == "hogwild" else ""
        strategy = "one process" if option.strategy == "default" else option.strategy
        ps = _ps(option).replace(" ps", "") if option.ps else ""
        speed = f"{each.examples_per_second:.0f}"
        row = ["*" if number == 0 else "", strategy, str(option.workers), ps, period, str(option.machines), speed, each.binding]
        if cost:
            price = cost(option)
            row += [f"{price:.2f}", f"{price / 3600 / each.examples_per_second * 1e6:.3g}"]
        found.append([*row, "described" if option == described else ""])
    return found


def text(predictions: Sequence[Prediction], cost: Cost | None, described: Option | None = None) -> str:
    """Returns the table for a terminal."""
    cells = rows(predictions, cost, described)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    numbers = {2, 5, 6, *range(8, len(cells[0]) - 1)}
    lines = []
    for row in cells:
        placed = (
            cell.rjust(width) if place in numbers else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(placed).rstrip())
    return "\n".join(lines) + "\n"


def as_json(
    measurement: Measurement, predictions: Sequence[Prediction], cost: Cost | None, described: Option | None = None
) -> dict[str, Any]:
    """Returns all predictions for `json.dumps`: `program`, and `options`, the recommended one first."""
    options = []
    for number, each in enumerate(predictions):
        values = dataclasses.asdict(each.option) | {
            "machines": each.option.machines,
            "examples_per_second": each.examples_per_second,
            "binding": each.binding,
            "busy": dict(each.busy),
            "assumed": list(each.assumed),
            "simulated": each.is_simulated,
            "recommended": number == 0,
            "described": each.option == described,
        }
        options.append(values | ({"cost_per_hour": cost(each.option)} if cost else {}))
    return {"program": measurement.program, "batch": measurement.batch, "options": options}
