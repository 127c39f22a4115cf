"""The variable TF_CONFIG."""

import dataclasses
from collections.abc import Mapping

from tfdist.cluster import Cluster
from tfdist.dialects.parsing.load import load_variable
from tfdist.dialects.tf_config.config import NAME, parse
from tfdist.errors import Source


def recognizes(environ: Mapping[str, str]) -> str | None:
    """Returns TF_CONFIG if it is set and has content, else None."""
    return "TF_CONFIG" if environ.get("TF_CONFIG", "").strip() not in ("", "{}") else None


def is_blank(environ: Mapping[str, str]) -> bool:
    """Returns whether TF_CONFIG is `{}`, which describes one task."""
    return environ.get("TF_CONFIG", "").strip() == "{}"


def from_environ(environ: Mapping[str, str]) -> Cluster:
    """Reads the variable TF_CONFIG. Raises ClusterError for a bad one."""
    document = load_variable(environ, Source(NAME, "TF_CONFIG"), '; expected {"cluster": {...}, "task": {...}}')
    return parse(dataclasses.replace(document, from_environment=True))
