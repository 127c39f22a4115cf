"""Fixtures of the tests of what steps assign."""

import pytest

from tfdist.strategies.keras_hooks import variables
from tfdist.strategies.private_api import KerasVariable, patches


@pytest.fixture
def hooked_variables(monkeypatch):
    """Lets Keras' variables ask tfdist alone, until the end of the test."""
    monkeypatch.setattr(KerasVariable, "_direct_assign", patches.DIRECT_ASSIGN.original)
    monkeypatch.setattr(patches.DIRECT_ASSIGN, "_replacements", [])
    variables.install()
