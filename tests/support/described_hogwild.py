"""Clusters and flags for tests of `Synchronization`."""

import dataclasses

from absl import flags

import tfdist
from tfdist.flags import cluster_from_flags, define_flags

TWO_SERVER_GROUPS = "cluster { nworker_groups: 4 nserver_groups: 2 sync_freq: 8 }"
PS = {"cluster": {"worker": ["a:1", "b:1"], "ps": ["c:1"]}}


def hogwild(description=TWO_SERVER_GROUPS, **changes):
    return dataclasses.replace(tfdist.read(description), strategy="hogwild", **changes)


def parsed(*arguments):
    values = flags.FlagValues()
    define_flags(values)
    values(["program", *arguments])
    return values


def from_flags(*arguments):
    cluster = cluster_from_flags(parsed(*arguments))
    assert cluster is not None
    return cluster
