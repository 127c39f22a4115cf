"""`python -m tfdist.translate`: prints a cluster description in another dialect.

python -m tfdist.translate STANDARD_1 --to cluster_spec
python -m tfdist.translate job.conf --to tf_config --task worker:0
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial

from absl import flags

from tfdist.cluster import Cluster
from tfdist.dialects import read, tf_config
from tfdist.dialects.registry import writers
from tfdist.errors import ClusterError, Source, nearest

USAGE = """usage: python -m tfdist.translate SOURCE --to DIALECT [--hostfile HOSTS] [--task JOB:INDEX]

Prints a cluster description in another dialect. TensorFlow is not needed, and nothing is started.

SOURCE is a file in any dialect, the command line of another launcher in quotes ("horovodrun -np 4 -H a:2,b:2"), the name of a
CloudML scale tier such as STANDARD_1, a text, or - for standard input. Without it, the environment is read (TF_CONFIG, a Slurm
step, ...).

  --to tf_config     TF_CONFIG of every task by the task's name (the default), of one task with --task
  --to cluster_spec  the addresses by job, as tf.train.ClusterSpec takes them
{outputs}
  --to mermaid       a picture as a flowchart of Mermaid: groups, their tasks, and who talks to whom
  --to svg           the same as a drawing
  --to tree          a tree for the terminal: hosts, or groups, and their tasks
  --image IMAGE      with --to kubernetes, tfjob and vertex: the image of the containers
  --command COMMAND  with them: what the containers run, in the words of a shell; no shell runs it
  --name NAME        with --to kubernetes and tfjob: the name of the job
  --namespace SPACE  with --to kubernetes and tfjob: its namespace
  --hostfile HOSTS   the hosts of a SINGA cluster, one per line
  --task JOB:INDEX   the task whose TF_CONFIG is printed, for example worker:1

Where the strategy needs a chief that the description does not have, tf_config and cluster_spec have one beside worker 0.
A description that cannot be used is told in one line, with exit status 2.
"""


def _usage() -> str:
    others = {name: dialect for name, dialect in writers().items() if name != tf_config.NAME}
    outputs = "\n".join(f"  --to {name:<13} {dialect.EXAMPLE}" for name, dialect in others.items())
    return USAGE.format(outputs=outputs)


def _tf_config(cluster: Cluster, task: str | None) -> str:
    cluster = _prepared(cluster).addressed()
    if task is None:
        return tf_config.write(cluster)
    job, separator, index = task.partition(":")
    if not separator or not index.isascii() or not index.isdecimal() or len(index) > 9:
        raise Source("flags", "--task").error(f"{task!r} is not a task; expected JOB:INDEX, for example worker:1")
    return json.dumps(cluster.tf_config(job, int(index)))


def _prepared(cluster: Cluster) -> Cluster:
    from tfdist.choice import prepared

    return prepared(cluster)


def _drawn(name: str, cluster: Cluster) -> str:
    from tfdist.pictures import PICTURES

    return PICTURES[name](cluster)


def _cluster_spec(cluster: Cluster) -> str:
    return json.dumps(_prepared(cluster).cluster_spec(), indent=2)


OUTPUTS: dict[str, Callable[..., str]] = {
    "tf_config": lambda cluster: _tf_config(cluster, None),
    "cluster_spec": _cluster_spec,
    **{name: dialect.write for name, dialect in writers().items() if name != tf_config.NAME},
    **{name: partial(_drawn, name) for name in ("mermaid", "svg", "tree")},
}


OPTIONS = ("image", "command", "name", "namespace")
"""Flags that go with the dialects that have them in their own OPTIONS."""


def translate(file: str | None, to: str, *, hostfile: str | None = None, task: str | None = None, **options: str | None) -> str:
    """Returns the description in `file` in the dialect `to`.

    `file` is a path, a command line, a tier, `-` for standard input, or None for the environment. `options`
    are those of `OPTIONS`; None means absent.

    Raises:
        ClusterError: when the description cannot be used or `to` has no words for it.
    """
    if to not in OUTPUTS:
        known = ", ".join(OUTPUTS)
        raise Source("flags", "--to").error(f"{to!r} is not one of {known}{nearest(to, OUTPUTS)}")
    if task is not None and to != "tf_config":
        raise Source("flags", "--task").error("this flag goes with --to tf_config")
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        takers = [dialect for dialect, writer in writers().items() if name in getattr(writer, "OPTIONS", ())]
        if to not in takers:
            raise Source("flags", f"--{name}").error(f"this flag goes with --to {', '.join(takers)}")
    source = sys.stdin.buffer.read() if file == "-" else file
    cluster = read(source, hostfile=hostfile)
    return _tf_config(cluster, task) if task is not None else OUTPUTS[to](cluster, **given)


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns its exit status."""
    # A set of flags of its own, so that this module can be imported beside a program that defines the same names.
    values = flags.FlagValues()
    flags.DEFINE_string("to", "tf_config", "the dialect to print", flag_values=values)
    flags.DEFINE_string("hostfile", None, "the hosts of a SINGA cluster", flag_values=values)
    flags.DEFINE_string("task", None, "the task whose TF_CONFIG is printed", flag_values=values)
    for name in OPTIONS:
        flags.DEFINE_string(name, None, f"the {name} that is written", flag_values=values)
    flags.DEFINE_boolean("help", False, "print this help", short_name="h", flag_values=values)
    try:
        files = values(list(argv))[1:]
        if values["help"].value:
            print(_usage(), end="")
            return 0
        if len(files) > 1:
            raise Source("flags", "translate").error(f"there are {len(files)} files ({files[0]!r}, ...); give one")
        text = translate(
            files[0] if files else None,
            str(values["to"].value),
            hostfile=values["hostfile"].value,
            task=values["task"].value,
            **{name: values[name].value for name in OPTIONS},
        )
    except (ClusterError, flags.Error) as error:
        print("translate:", " ".join(str(error).split()), file=sys.stderr)
        return 2
    try:
        print(text.rstrip("\n"), flush=True)
    except BrokenPipeError:
        # The reader (`| head`) has seen enough; what is left in the buffer must not fail at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
