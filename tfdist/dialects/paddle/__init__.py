"""PaddlePaddle: parameter servers and trainers of its first years, and the variables and launcher of Paddle 2.

`legacy` reads `paddle train --pservers=...`, `paddle pserver`, the arguments of `paddle.init` (a dict) and PADDLE_INIT_*;
`launch` reads `python -m paddle.distributed.launch` and `fleetrun`; `environment` reads the variables that this launcher sets.
A pserver is a `ps` task, a trainer a `worker`. With pservers the trainers run asynchronously unless the mode is `sync`: Paddle
keeps the mode in the training program. Without pservers they step together. This package imports `parsing`. Start with
`environment.py`.
"""

from collections.abc import Mapping

from tfdist.dialects.dialect import CommandReader, Described, Dialect, EnvironmentReader, TextReader
from tfdist.dialects.paddle import environment, launch, legacy
from tfdist.errors import Source

LEGACY_PROGRAMS = ("paddle", "pserver")
LAUNCHERS = ("paddle.distributed.launch", "paddle.distributed.fleet.launch", "fleetrun")


def parse_command(words: list[str], source: Source, environ: Mapping[str, str]) -> Described:
    """Reads a command line of Paddle's launcher, `paddle train` or `paddle pserver`. Raises ClusterError for a bad one."""
    if words[0] in LEGACY_PROGRAMS:
        return legacy.parse_command(words, source)
    return launch.parse_command(words, source, environ)


DIALECT = Dialect(
    name=legacy.NAME,
    title="Paddle",
    example="a command line of Paddle (paddle train --pservers=..., python -m paddle.distributed.launch ...)",
    text=TextReader(legacy.parse, words=legacy.WORDS, marks=legacy.MARKS, is_mapping=True),
    command=CommandReader((*LEGACY_PROGRAMS, *LAUNCHERS), parse_command, reads_variables=True),
    environment=EnvironmentReader(environment.recognizes, environment.from_environ),
)
