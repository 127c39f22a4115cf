"""TF_CONFIG and cluster specifications.

`config` reads them, with the fields of tfdist's own key from `extension`; `environment` reads the variable; `write` writes
TF_CONFIG of every task. This package imports `parsing`, and `vertex.pools` for TF_CONFIG on Vertex AI. Start with `config.py`.
"""

from tfdist.dialects.dialect import Dialect, EnvironmentReader, TextReader, Writer
from tfdist.dialects.tf_config import config, environment, write

DIALECT = Dialect(
    name=config.NAME,
    title="TF_CONFIG",
    example='TF_CONFIG or a cluster specification ({"cluster": {"worker": ["host:port"]}, "task": ...})',
    text=TextReader(
        config.parse,
        words=config.WORDS,
        marks=config.MARKS,
        is_mapping=True,
        looks_like=config.looks_like,
        from_object=config.from_object,
    ),
    environment=EnvironmentReader(
        environment.recognizes, environment.from_environ, names_jobs=True, is_blank=environment.is_blank
    ),
    writer=Writer(
        write.write,
        help="TF_CONFIG of every task by the task's name (the default), of one task with --task",
        as_run=True,
        write_task=write.write_task,
    ),
)
