"""Fixtures of the tests of what steps assign."""

import pytest

from tfdist.strategies.keras_hooks import variables
from tfdist.strategies.private_api import patches


@pytest.fixture
def hooked_variables(monkeypatch):
    """Lets Keras' variables ask tfdist alone, until the end of the test."""
    for point in (patches.INITIALIZE, patches.DIRECT_ASSIGN, *patches.ASSIGN_IN_PLACE.values()):
        monkeypatch.setattr(point.owner, point.name, point.original)
        monkeypatch.setattr(point, "_replacements", [])
    variables.install()
