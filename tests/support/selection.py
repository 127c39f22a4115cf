"""Which tests run: those for each change, or with the environment variable TFDIST_TESTS=all also those for a release.

Where clusters run the same code, each case runs in one of them for each change, and in all of them for a release. A test that is
for a release as a whole has the mark `release`: it takes long, and faults that it finds, faster ones find, too.
"""

import os

import pytest
from hypothesis import HealthCheck, settings

ALL = os.environ.get("TFDIST_TESTS") == "all"

# For each change the same examples, so that no change fails for one that it has nothing to do with. A busy machine is no fault.
settings.register_profile("tfdist", deadline=None, derandomize=not ALL, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tfdist")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the tests for a release, unless all run."""
    if not ALL and (left := [item for item in items if item.get_closest_marker("release")]):
        left_out = set(left)
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left)
