"""The versions of TensorFlow and Keras. Importing this module checks them, without importing either.

Keras 2 cannot even be imported with the TensorFlow of today: who has it should read a sentence, not the error of an import.
"""

import importlib
import importlib.metadata
import re

from tfdist.errors import UnsupportedVersionError

TESTED = {"tensorflow": ((2, 18), (2, 21)), "keras": ((3, 10), (3, 15))}
"""The oldest and the newest minor version with which tfdist has been tested. setup.cfg states the same."""


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # tensorflow-cpu, tf-nightly and others have the package too.
        return str(importlib.import_module(package).__version__)


INSTALLED = {package: _installed(package) for package in TESTED}


def minor(version: str) -> tuple[int, ...]:
    """Returns the first two numbers of a version: (2, 21) of "2.21.0rc1"."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def tested(package: str) -> str:
    """Returns the tested versions of `package`: "2.18 to 2.21"."""
    return " to ".join(".".join(map(str, each)) for each in TESTED[package])


def unsupported(package: str, fault: str) -> UnsupportedVersionError:
    """Returns (does not raise) the error for a `package` whose installed version has a `fault`, the predicate of a sentence."""
    (first, oldest), (last, newest) = TESTED[package]
    return UnsupportedVersionError(
        f"{package} {INSTALLED[package]} {fault}; tfdist has been tested with {package} {tested(package)}: "
        f"pip install '{package}>={first}.{oldest},<{last}.{newest + 1}'"
    )


def newer_than_tested() -> list[str]:
    """Returns a warning for each package that is newer than the newest version in `TESTED`."""
    return [
        f"{package} {INSTALLED[package]} has all names that tfdist needs, but is newer than the versions that tfdist has been "
        f"tested with, {tested(package)}"
        for package, (_, newest) in TESTED.items()
        if minor(INSTALLED[package]) > newest
    ]


def check() -> None:
    """Checks that no package is older than the oldest version in `TESTED`.

    Raises:
        UnsupportedVersionError: if one is.
    """
    for package, (oldest, _) in TESTED.items():
        if minor(INSTALLED[package]) < oldest:
            raise unsupported(package, "is too old")


check()
