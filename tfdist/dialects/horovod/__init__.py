"""Horovod and MPI: command lines, host files, and the environment of a rank.

Every used slot is one rank and every rank one `worker` task, as Horovod starts one process for each. Ranks fill the hosts in
order. A host that is named twice has the sum of its slots; Horovod's local and cross ranks are wrong there. This package
imports `parsing`. Start with `hosts.py`.
"""

from tfdist.dialects.dialect import CommandReader, Dialect, EnvironmentReader, TextReader, Writer
from tfdist.dialects.horovod import command, environment, hosts, write

DIALECT = Dialect(
    name=hosts.NAME,
    title="Horovod",
    example="a Horovod or MPI command line or host file (horovodrun -np 4 -H a:2,b:2; a slots=2)",
    text=TextReader(hosts.parse, looks_like=hosts.looks_like),
    command=CommandReader(command.PROGRAMS, command.parse_command, prepares=command.prepares),
    environment=EnvironmentReader(environment.recognizes, environment.from_environ),
    writer=Writer(write.write, help="a host file of Horovod and Open MPI (a slots=2)", notes=write.notes),
)
