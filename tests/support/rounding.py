"""Compares results that may differ by rounding."""

from typing import Any

import pytest


def equal(one: Any, ours: Any) -> bool:
    """Returns whether nested lists and dicts of numbers are equal up to rounding."""
    if isinstance(one, dict):
        return one.keys() == ours.keys() and all(equal(one[key], ours[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(ours) and all(map(equal, one, ours))
    return bool(ours == pytest.approx(one, rel=1e-5, abs=1e-5))
