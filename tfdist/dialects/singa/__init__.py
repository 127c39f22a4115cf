"""Apache SINGA v0.1 to v0.3: the `cluster` block of job.conf, and the host file.

`job_conf` finds the block with `text_proto`, `layout` checks its fields and makes the tasks, `hostfile` reads the hosts, `net`
reads how the neural network is partitioned, and `write` writes the block and the host file. This package imports `parsing`.
Start with `job_conf.py`.
"""

from tfdist.dialects.dialect import Dialect, TextReader, Writer
from tfdist.dialects.singa import job_conf, write

DIALECT = Dialect(
    name=job_conf.NAME,
    title="SINGA",
    example="SINGA job.conf (cluster { nworker_groups: 1 ... })",
    text=TextReader(job_conf.parse, words=job_conf.WORDS, marks=job_conf.MARKS, takes_hostfile=True),
    writer=Writer(write.write),
    always_has_sync_period=True,  # `sync_freq` is 1 unless the file gives another.
)
