"""Compares the result of a cell of the table with that of one process."""

from typing import Any

from contract.table import ASYNCHRONOUS, FLOAT, Column, Row, tolerance


def different(row: Row, column: Column, got: Any, expected: Any) -> list[str]:
    """Returns what is wrong with the result of a cell, as sentences.

    Args:
        row: the row of the cell.
        column: the column of the cell.
        got: the result of the case, as JSON: `exact` must be equal to that of one process and `near` must be within the
            tolerance of the cell, and so must `weights` if the strategy is synchronous; `late` counts steps that were in
            flight when the case stopped training.
        expected: the result in one process.
    """
    if column.kind != ASYNCHRONOUS:
        got, expected = _with_weights(got), _with_weights(expected)
    wrong = [
        f"{name}: {got['exact'].get(name)} is not {value}"
        for name, value in expected.get("exact", {}).items()
        if got["exact"].get(name) != value
    ]
    for name, value in expected.get("near", {}).items():
        relative = tolerance(row, column)
        if column.lags and row.near != FLOAT:
            wrong += [
                f"{name}: {problem}"
                for problem in _lagging(got["near"][name], value, expected.get("before", {}).get(name), relative)
            ]
            continue
        pairs = list(zip(_numbers(got["near"][name]), _numbers(value), strict=True))
        if any(not abs(a - b) <= relative * abs(b) + 1e-5 for a, b in pairs):
            wrong.append(f"{name}: {got['near'][name]} is not within {relative:g} of {value}")
    for name, late in got.get("late", {}).items():
        if not 0 <= late <= column.late:
            wrong.append(f"{name}: {late} steps late, not at most {column.late}")
    return wrong


def _with_weights(result: Any) -> Any:
    weights = result.get("weights", {})
    # In the order of the model: the names of layers are numbered in the order in which a program makes them.
    return result | {"near": result.get("near", {}) | {f"weight {number}": w for number, w in enumerate(weights.values())}}


def _lagging(got: Any, expected: Any, before: Any, relative: float) -> list[str]:
    """Returns what is wrong with series of numbers over epochs that may be behind those of one process.

    Each number must be one that `expected` has passed up to that epoch, within the tolerance. `expected` starts at `before`, if
    that is known. If there are more than two epochs and `expected` moves by more than the tolerance, `got` must move in the
    same direction.
    """
    if isinstance(expected, dict):
        return [problem for name in expected for problem in _lagging(got[name], expected[name], None, relative)]
    assert isinstance(expected, list) and len(got) == len(expected), f"{expected} is not a series over epochs as {got} is"
    wrong = []
    begun = _numbers(expected[0] if before is None else before)
    for mine, theirs, begin in zip(
        zip(*map(_numbers, got), strict=True), zip(*map(_numbers, expected), strict=True), begun, strict=True
    ):
        for end, number in enumerate(mine, start=1):
            through = [begin, *theirs[:end]]
            if not min(value - relative * abs(value) for value in through) - 1e-5 <= number:
                wrong.append(
                    f"{list(mine)} is below what {begin} and {list(theirs)} have gone through, by more than {relative:g}"
                )
            if not number <= max(value + relative * abs(value) for value in through) + 1e-5:
                wrong.append(
                    f"{list(mine)} is above what {begin} and {list(theirs)} have gone through, by more than {relative:g}"
                )
        moved = theirs[-1] - theirs[0]
        if len(theirs) > 2 and abs(moved) > relative * abs(theirs[0]) and (mine[-1] - mine[0]) * moved <= 0:
            wrong.append(f"{list(mine)} does not move as {list(theirs)}")
    return wrong


def _numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [number for key in sorted(value) for number in _numbers(value[key])]
    return [number for item in value for number in _numbers(item)] if isinstance(value, list) else [float(value)]
