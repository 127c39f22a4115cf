"""The table of dialects, and what the file of a dialect may offer.

Every dialect has a NAME and an EXAMPLE. What else it offers decides where it is asked: `parse` makes it a language of files,
texts and dicts, `write` an output of `tfdist.translate`, `parse_command` a reader of command lines, `from_environ` a reader
of the environment. A dialect that needs a library imports it in the function that uses it: every process imports this table.
"""

from collections.abc import Mapping
from typing import Any, Protocol, cast

from tfdist.cluster import Cluster
from tfdist.dialects import (
    caffe2,
    cloudml,
    horovod,
    kubernetes,
    kubernetes_tfjob,
    paddle,
    pytorch,
    sagemaker,
    singa,
    slurm,
    tf_config,
    vertex,
)
from tfdist.dialects.document import Document
from tfdist.errors import Source
from tfdist.rank_info import RankInfo


class Dialect(Protocol):
    """What the file of every dialect offers."""

    NAME: str
    """What it is called, as in `--to`."""
    EXAMPLE: str
    """What it looks like, for the message about a description that is in none of them."""


class ReadsText(Dialect, Protocol):
    """A dialect of files, texts and dicts. It may also have `looks_like`, see `looks_like`."""

    WORDS: frozenset[str]
    """The names that occur in it, by which it is recognized; may be empty where `looks_like` recognizes it."""
    IS_MAPPING: bool
    """Whether it is JSON or YAML; the others read the text themselves."""

    def parse(
        self, document: Document, *, hostfile: str | None = None, options: Mapping[str, Any] | None = None
    ) -> Cluster | RankInfo:
        """Reads a description. `hostfile` and `options` are only given to the dialect that has them."""
        ...


class Writes(Dialect, Protocol):
    """A dialect that descriptions can be translated to."""

    def write(self, cluster: Cluster) -> str:
        """Writes a description; raises ClusterError where the dialect has no words for the cluster."""
        ...


class ReadsCommands(Dialect, Protocol):
    """A dialect of command lines. Nothing of them is ever executed."""

    PROGRAMS: tuple[str, ...]
    """The programs whose command lines it reads: `horovodrun`; of `python -m torch.distributed.run` the module, of
    `python trainer.py` the file name."""

    def parse_command(self, words: list[str], source: Source) -> Cluster | RankInfo:
        """Reads a command line. `words[0]` is one of PROGRAMS; the user's own program stands at the end and is ignored."""
        ...


class ReadsEnvironments(Dialect, Protocol):
    """A dialect that a launcher speaks to the processes that it starts.

    It may also have `ALLOCATES = True`: its variables are inherited by whatever is started inside of what it started, so that
    another launcher's variables beside it are no contradiction, and are the ones that count.
    """

    def recognizes(self, environ: Mapping[str, str]) -> str | None:
        """The name of the variable that gives the environment away, or None. Does not raise."""
        ...

    def from_environ(self, environ: Mapping[str, str]) -> Cluster | RankInfo:
        """Reads the environment; only called where `recognizes` it. A Cluster has `task` set."""
        ...


# Of two dialects that know a text equally well the later is taken (`cluster` alone is TF_CONFIG), of two that know an
# environment the earlier: see `tfdist.dialects.environment`.
DIALECTS: dict[str, Dialect] = {
    dialect.NAME: cast(Dialect, dialect)
    for dialect in (
        slurm,
        horovod,
        singa,
        cloudml,
        vertex,
        sagemaker,
        kubernetes,
        kubernetes_tfjob,
        tf_config,
        pytorch,
        caffe2,
        paddle,
    )
}
"""All dialects by name. A new one is one new file and one line here."""


def _offering(what: str) -> dict[str, Any]:
    return {name: dialect for name, dialect in DIALECTS.items() if hasattr(dialect, what)}


def text_dialects() -> dict[str, ReadsText]:
    """The dialects of files, texts and dicts, by name."""
    return _offering("parse")


def writers() -> dict[str, Writes]:
    """The dialects that descriptions can be translated to, by name."""
    return _offering("write")


def environment_dialects() -> dict[str, ReadsEnvironments]:
    """The dialects of environments, by name."""
    return _offering("from_environ")


def programs() -> dict[str, ReadsCommands]:
    """The dialects of command lines, by the name of the program."""
    return {program: dialect for dialect in _offering("parse_command").values() for program in dialect.PROGRAMS}


def looks_like(dialect: Dialect, content: "str | Mapping[Any, Any]") -> bool:
    """Whether a dialect claims a text, or a mapping, for itself by its form, before words are counted.

    That is its optional function `looks_like(content)`: for texts without names, such as host files, and mappings that share
    their names with another dialect. It does not raise.
    """
    claims = getattr(dialect, "looks_like", None)
    return bool(claims and claims(content))
