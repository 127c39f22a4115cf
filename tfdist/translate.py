"""`tfdist translate`, or `python -m tfdist.translate`: prints a cluster description in another dialect.

python -m tfdist.translate STANDARD_1 --to cluster_spec
python -m tfdist.translate job.conf --to tf_config --task worker:0
"""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from absl import flags

from tfdist.choice import prepared
from tfdist.cluster import EXTENSION, Cluster
from tfdist.dialects import read
from tfdist.dialects.dialect import Writer
from tfdist.dialects.registry import dialects, writers
from tfdist.errors import ClusterError, Source, nearest
from tfdist.messages import print_error, printable

DEFAULT_OUTPUT = "tf_config"

USAGE = """usage: tfdist translate [SOURCE] [--to LANGUAGE] [--hostfile HOSTS] [--task JOB:INDEX]

Prints the description of a cluster in another language. It starts nothing, and does not need TensorFlow.

SOURCE is a file in any of the languages, the command line of another launcher in quotes ("horovodrun -np 4 -H a:2,b:2"), the
name of a CloudML scale tier such as STANDARD_1, a text, or - for standard input. Without SOURCE the environment is read
(TF_CONFIG, a Slurm step, ...).

{flags}

If the strategy needs a chief and the description has none, tf_config and cluster_spec add one beside worker 0.
A bad description gives one line on standard error and exit code 2. A note there, with exit code 0, names what LANGUAGE cannot
express and the training does not depend on (the folder of the job, ...), and what cluster_spec leaves out (groups, the sync
period, ...).
"""

OTHER_OUTPUTS = {
    "cluster_spec": "the addresses by job, as tf.train.ClusterSpec takes them",
    "mermaid": "a picture as a flowchart of Mermaid: groups, their tasks, and who talks to whom",
    "svg": "the same as a drawing",
    "tree": "a tree for the terminal: hosts, or groups, and their tasks",
}
"""Outputs that are no dialect: name -> help."""


def outputs() -> dict[str, Callable[..., str]]:
    """Returns the functions that write a cluster, by the name that `--to` takes."""
    drawings = {name: _draws(name) for name in OTHER_OUTPUTS if name != "cluster_spec"}
    return {name: _writes(writer) for name, writer in writers().items()} | {"cluster_spec": _cluster_spec} | drawings


def options() -> dict[str, str]:
    """Returns the options of all writers: name -> help."""
    return {name: text for writer in writers().values() for name, text in writer.options.items()}


def translate(
    file: str | None,
    to: str,
    *,
    hostfile: str | None = None,
    task: str | None = None,
    note: Callable[[str], object] = lambda text: None,
    **given: str | None,
) -> str:
    """Returns the description in `file` in the dialect `to`.

    Args:
        file: a path, a command line, a tier, `-` for standard input, or None for the environment.
        to: one of `outputs()`.
        hostfile: path of the hosts of a SINGA cluster, one per line.
        task: the task whose description is returned, `job:index`. Default: that of all tasks.
        note: called with a sentence for each thing that `to` leaves out and the training does not depend on.
        **given: some of `options()`; None means absent.

    Raises:
        ClusterError: if the description cannot be used, or `to` cannot express it.
    """
    known = outputs()
    if to not in known:
        raise Source("flags", "--to").error(f"{to!r} is not one of {', '.join(known)}{nearest(to, known)}")
    writer = writers().get(to)
    if task is not None and (writer is None or writer.write_task is None):
        takers = [name for name, other in writers().items() if other.write_task]
        raise Source("flags", "--task").error(f"this flag goes with --to {', '.join(takers)}")
    given = {name: value for name, value in given.items() if value is not None}
    for name in given:
        takers = [dialect for dialect, other in writers().items() if name in other.options]
        if to not in takers:
            raise Source("flags", f"--{name}").error(f"this flag goes with --to {', '.join(takers)}")
    source = sys.stdin.buffer.read() if file == "-" else file
    cluster = read(source, hostfile=hostfile)
    if task is not None and writer is not None and writer.write_task is not None:
        return writer.write_task(prepared(cluster) if writer.as_run else cluster, *_task(task))
    text = known[to](cluster, **given)
    for left_out in notes(cluster, to):
        note(left_out)
    return text


def notes(cluster: Cluster, to: str) -> Iterable[str]:
    """Returns a sentence for each thing that the output `to` leaves out and the training does not depend on."""
    if to == "cluster_spec":
        return _not_addresses(cluster)
    return writers()[to].notes(cluster) if to in writers() else ()


def main(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit status."""
    # Its own set of flags: a program that defines the same names may import this module.
    values = flags.FlagValues()
    flags.DEFINE_string("to", DEFAULT_OUTPUT, "the dialect to print", flag_values=values)
    flags.DEFINE_string("hostfile", None, "the hosts of a SINGA cluster", flag_values=values)
    flags.DEFINE_string("task", None, "the task whose TF_CONFIG is printed", flag_values=values)
    for name, text in options().items():
        flags.DEFINE_string(name, None, text, flag_values=values)
    flags.DEFINE_boolean("help", False, "print this help", short_name="h", flag_values=values)
    notes: list[str] = []
    try:
        files = values(list(argv))[1:]
        if values["help"].value:
            print(_usage(), end="")
            return 0
        if len(files) > 1:
            raise Source("flags", "SOURCE").error(f"there are {len(files)} files ({files[0]!r}, ...); give one")
        text = translate(
            files[0] if files else None,
            str(values["to"].value),
            hostfile=values["hostfile"].value,
            task=values["task"].value,
            note=notes.append,
            **{name: values[name].value for name in options()},
        )
    except (ClusterError, flags.Error) as error:
        print_error(error, "SOURCE")
        return 2
    for note in notes:
        print("tfdist: note:", printable(note), file=sys.stderr)
    try:
        show(text)
    except ClusterError as error:
        print_error(error)
        return 2
    except BrokenPipeError:
        # The reader (`| head`) left early. The rest of the buffer must not raise at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def show(text: str) -> None:
    """Prints a text in a language, all of it or nothing.

    Raises:
        ClusterError: if the encoding of standard output lacks a character, as ASCII lacks the lines of a tree.
    """
    try:
        print(text.rstrip("\n"), flush=True)
    except UnicodeEncodeError as error:
        lacks = f"the encoding of standard output ({sys.stdout.encoding}) lacks {error.object[error.start]!a}"
        raise Source("flags", "--to").error(f"{lacks}; set PYTHONIOENCODING to utf-8") from None


def _usage() -> str:
    texts = {f"--to {name}": writer.help or dialects()[name].example for name, writer in writers().items()}
    texts |= {f"--to {name}": text for name, text in OTHER_OUTPUTS.items()}
    for option, text in options().items():
        takers = ", ".join(name for name, writer in writers().items() if option in writer.options)
        texts[f"--{option} {option.upper()}"] = f"with --to {takers}: {text}"
    texts["--hostfile HOSTS"] = "the hosts of a SINGA cluster, one per line"
    texts["--task JOB:INDEX"] = "the task whose TF_CONFIG is printed, for example worker:1"
    width = max(map(len, texts))
    return USAGE.format(flags="\n".join(f"  {flag:<{width}}  {text}" for flag, text in texts.items()))


def _task(text: str) -> tuple[str, int]:
    job, separator, index = text.partition(":")
    if not separator or not index.isascii() or not index.isdecimal() or len(index) > 9:
        raise Source("flags", "--task").error(f"{text!r} is not a task; expected JOB:INDEX, for example worker:1")
    return job, int(index)


def _writes(writer: Writer) -> Callable[..., str]:
    def write(cluster: Cluster, **given: Any) -> str:
        return writer.write(prepared(cluster) if writer.as_run else cluster, **given)

    return write


def _draws(name: str) -> Callable[..., str]:
    def write(cluster: Cluster) -> str:
        from tfdist.pictures import PICTURES  # Not needed for most outputs.

        return PICTURES[name](cluster)

    return write


def _not_addresses(cluster: Cluster) -> Iterator[str]:
    """Yields a sentence about what a cluster specification leaves out: read back, it may mean another strategy."""
    running = prepared(cluster).addressed()
    if left_out := running.tf_config(running.tasks[0].job, running.tasks[0].index).get(EXTENSION):
        yield f"A cluster specification holds addresses only; --to tf_config also has {', '.join(left_out)}."


def _cluster_spec(cluster: Cluster) -> str:
    return json.dumps(prepared(cluster).cluster_spec(), indent=2)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
