"""Fixtures of the tests of backups."""

import pytest

from tfdist.strategies.checkpoint import data_position
from tfdist.strategies.checkpoint.data_position import DataPosition


@pytest.fixture
def position(monkeypatch):
    """Where the data of this process continue: nowhere yet."""
    data_position.install()
    found = DataPosition()
    monkeypatch.setattr(data_position, "_positions", [found])
    return found
