"""The command that a message names for a missing package installs that package, also where no package index has tfdist."""

import importlib.metadata

from packaging.requirements import Requirement

from tfdist.extras import pip_install


def test_names_the_packages_of_an_extra_with_their_versions():
    (requirement,) = [Requirement(text) for text in importlib.metadata.requires("tfdist") or () if text.startswith("redis")][:1]
    assert pip_install("redis") == f"pip install '{requirement.name}{requirement.specifier}'"


def test_names_the_extra_where_tfdist_is_not_installed(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", missing)
    assert pip_install("redis") == "pip install 'tfdist[redis]'"
