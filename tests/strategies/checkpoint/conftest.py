"""Fixtures of the tests of backups."""

import functools

import backup_processes
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


@pytest.fixture
def process(tmp_path, monkeypatch):
    """`process(program, *arguments, folder="backup", frequency="epoch")`: see `backup_processes.run`."""
    return functools.partial(backup_processes.run, monkeypatch, tmp_path)
