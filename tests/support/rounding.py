"""Compares results that may differ by rounding."""

from typing import Any

import pytest


def equal(one: Any, ours: Any, rounding: float = 1e-5) -> bool:
    """Returns whether nested lists and dicts of numbers are equal up to rounding."""
    if isinstance(one, dict):
        return one.keys() == ours.keys() and all(equal(one[key], ours[key], rounding) for key in one)
    if isinstance(one, list):
        return len(one) == len(ours) and all(equal(a, b, rounding) for a, b in zip(one, ours, strict=True))
    return bool(ours == pytest.approx(one, rel=rounding, abs=rounding))
