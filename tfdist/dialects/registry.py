"""The table of dialects: the built-in ones in order, then those of installed packages."""

import functools

from tfdist.cluster import Cluster
from tfdist.dialects import (
    accelerate,
    batch,
    caffe2,
    cloudml,
    deepspeed,
    gcloud,
    horovod,
    kubernetes,
    paddle,
    pytorch,
    sagemaker,
    singa,
    slurm,
    tf1,
    tf_config,
    vertex,
)
from tfdist.dialects.dialect import CommandReader, Dialect, EnvironmentReader, TextReader, Writer
from tfdist.dialects.entry_points import load

# The order matters if two dialects fit equally well; the earlier one wins. TF_CONFIG is first: `cluster` alone in YAML or JSON
# is TF_CONFIG, and of two launchers' environments that agree TF_CONFIG counts. Slurm and the other batch scripts are before
# Horovod because a host file begins with comments, too. Vertex AI and SageMaker are before Kubernetes, whose form is the more
# general. SINGA is last: fields such as `name` are words of many languages.
BUILT_IN: tuple[Dialect, ...] = (
    tf_config.DIALECT,
    slurm.DIALECT,
    batch.DIALECT,
    horovod.DIALECT,
    cloudml.DIALECT,
    vertex.DIALECT,
    gcloud.DIALECT,
    sagemaker.DIALECT,
    kubernetes.DIALECT,
    kubernetes.TFJOB,
    pytorch.DIALECT,
    accelerate.DIALECT,
    deepspeed.DIALECT,
    tf1.DIALECT,
    caffe2.DIALECT,
    paddle.DIALECT,
    singa.DIALECT,
)
"""The dialects of this package. A new one is one new file (or folder) and one line here."""


@functools.cache
def dialects() -> dict[str, Dialect]:
    """Returns all dialects by name: `BUILT_IN`, then those that installed packages add (see `entry_points`)."""
    return {dialect.name: dialect for dialect in (*BUILT_IN, *load(BUILT_IN))}


def text_readers() -> dict[str, TextReader]:
    """Returns the readers of files, texts and dicts by the name of the dialect."""
    return {name: dialect.text for name, dialect in dialects().items() if dialect.text is not None}


def command_readers() -> dict[str, CommandReader]:
    """Returns the readers of command lines by the name of the dialect."""
    return {name: dialect.command for name, dialect in dialects().items() if dialect.command is not None}


def environment_readers() -> dict[str, EnvironmentReader]:
    """Returns the readers of environments by the name of the dialect."""
    return {name: dialect.environment for name, dialect in dialects().items() if dialect.environment is not None}


def writers() -> dict[str, Writer]:
    """Returns the writers by the name of the dialect."""
    return {name: dialect.writer for name, dialect in dialects().items() if dialect.writer is not None}


def programs() -> dict[str, str]:
    """Returns the name of the dialect that reads the command lines of each program."""
    return {program: name for name, reader in command_readers().items() for program in reader.programs}


def override_flags() -> dict[str, str]:
    """Returns the overrides of the built-in dialects, which are flags: name -> help."""
    return {name: text for dialect in BUILT_IN if dialect.text for name, text in dialect.text.overrides.items()}


def names_jobs(name: str) -> bool:
    """Returns whether an environment in the dialect `name` gives each process a job, and not only a number."""
    dialect = dialects().get(name)
    return dialect is not None and dialect.environment is not None and dialect.environment.names_jobs


def says_sync_period(cluster: Cluster) -> bool:
    """Returns whether the description of a cluster gives a sync period, so that a forced hogwild keeps it."""
    dialect = dialects().get(cluster.source.dialect)
    means_hogwild = cluster.strategy == "hogwild" or len(cluster.server_groups) > 1
    given = "sync_period" in cluster.says or cluster.sync_period != 1
    return means_hogwild or given or (dialect is not None and dialect.always_has_sync_period)
