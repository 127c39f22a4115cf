"""`Dialect`: one value that states what a language of cluster descriptions can do.

A dialect has one object for each thing that it can do: `TextReader` reads files, texts and dicts, `CommandReader` command
lines, `EnvironmentReader` the variables of a process, and `Writer` writes a cluster. The rest of the package asks these objects
and never the name of a dialect.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate

from tfdist.cluster import Cluster
from tfdist.dialects.parsing.document import Document
from tfdist.errors import Source
from tfdist.rank_info import RankInfo

Described = Cluster | RankInfo
"""What a description gives: a cluster, or the ranks of a job whose addresses are not known yet."""


@dataclass(frozen=True, eq=False)
class Presets:
    """Names that are complete descriptions, for example CloudML's scale tiers.

    Attributes:
        kind: what such a name is called in messages.
        names: all of them, for suggestions.
        find: returns the name that a text spells, or None. Must not raise.
        content: returns the mapping that a name stands for.
    """

    kind: str
    names: tuple[str, ...]
    find: Callable[[str], str | None]
    content: Callable[[str], Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class TextReader:
    """Reads files, texts and dicts.

    Attributes:
        parse: reads a document. Raises ClusterError for a bad one.
        words: names that occur in the language, by which a text is recognized (see `detection`). May be empty with
            `looks_like`.
        marks: those of `words` that no other language has. A text without any of them is not in this language, whatever other
            words it has. Default: all of `words`.
        is_script: whether the texts are scripts whose commands may start another launcher, which then describes the cluster.
        refers: returns the description that a text gives to the program and that counts instead of it, or None. Must not raise.
        variables: returns the variables that whatever runs such a script sets in it, as far as they follow from the text. Must
            not raise.
        is_mapping: whether `parse` reads the mapping of a JSON or YAML document. Default: it reads the text.
        looks_like: returns whether a text or a mapping has the form of this language. It is asked before words are counted, and
            suits texts without names (host files) and mappings that share their names with another language. Must not raise.
        from_object: returns the mapping that a Python object stands for, or None for other objects. Must not raise.
        presets: names that are complete descriptions.
        takes_hostfile: whether a host file may accompany the document (`Document.hostfile`).
        overrides: options that win over the document (`Document.overrides`): name -> help. The built-in dialects' are flags.
        standalone: those of `overrides` that describe a cluster without a text.
    """

    parse: Callable[[Document], Described]
    words: frozenset[str] = frozenset()
    marks: frozenset[str] = frozenset()
    is_script: bool = False
    refers: Callable[[str], str | None] = lambda text: None
    variables: Callable[[str], Mapping[str, str]] = lambda text: {}
    is_mapping: bool = False
    looks_like: Callable[[str | Mapping[Any, Any]], bool] = lambda content: False
    from_object: Callable[[object], Mapping[str, Any] | None] = lambda value: None
    presets: Presets | None = None
    takes_hostfile: bool = False
    overrides: Mapping[str, str] = field(default_factory=dict)
    standalone: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False)
class CommandReader:
    """Reads the command lines of a launcher. Nothing of a command line is ever executed.

    Attributes:
        programs: names of the programs. For `python -m package.module` this is the module, for `python file.py` the file.
        parse: reads the words of a command line and its source. The first word is one of `programs`; the user's own program and
            its arguments come last and are ignored.
        options: names of options, with `_` for `-`, that identify a command line of any program: those of programs that read
            their cluster from their own command line.
        reads_variables: whether `parse` takes a third argument, the variables of this process and those that the line sets.
        submits: takes the words and the source, too; returns the script that the command submits, in the language of the
            dialect's `text`. None if it submits none; then `parse` reads the command.
        prepares: returns whether a command line starts a program that does not train, such as `cp`. It counts only where a
            script has no other command. Must not raise.
    """

    programs: tuple[str, ...]
    parse: Callable[..., Described]
    options: frozenset[str] = frozenset()
    reads_variables: bool = False
    submits: Callable[[Sequence[str], Source], Document | None] = lambda words, source: None
    prepares: Callable[[Sequence[str]], bool] = lambda words: False


@dataclass(frozen=True, eq=False)
class EnvironmentReader:
    """Reads the variables that a launcher or scheduler sets for the processes that it starts.

    Attributes:
        recognizes: returns the name of the variable that identifies the environment, or None. Must not raise.
        parse: reads the variables; called only if `recognizes` returns a name or `is_blank` is true. A Cluster has `task` set.
        allocates: whether this system allocates machines. Everything that runs on them inherits its variables, so another
            launcher's variables do not contradict them and win over them.
        names_jobs: whether it gives each process a job, so a description in the program must have the same jobs. Default: it
            only numbers the processes, and these take the tasks of the description in order.
        is_blank: returns whether the environment names one task and nothing else (`TF_CONFIG={}`). `tfdist.read()` reads such
            an environment if nothing else describes a cluster. Must not raise.
    """

    recognizes: Callable[[Mapping[str, str]], str | None]
    parse: Callable[[Mapping[str, str]], Described]
    allocates: bool = False
    names_jobs: bool = False
    is_blank: Callable[[Mapping[str, str]], bool] = lambda environ: False


@dataclass(frozen=True, eq=False)
class Writer:
    """Writes a cluster.

    Attributes:
        write: takes the Cluster, and `options` by keyword; returns the text. Raises ClusterError for a cluster that the
            language cannot express.
        options: keyword arguments of `write`, which `tfdist.translate` takes as flags: name -> help.
        help: one line for `tfdist.translate --help`. Default: the dialect's example.
        as_run: whether `write` takes the cluster as its strategy runs it, with the chief that the strategy adds.
        write_task: takes a Cluster, a job and an index; returns the text for this one task (`--task`).
        notes: takes the Cluster; returns a sentence for each thing that the text leaves out. `tfdist.translate` prints them on
            standard error. What the training depends on is not left out: `write` raises ClusterError.
    """

    write: "Callable[Concatenate[Cluster, ...], str]"  # Quoted: Python 3.10 cannot evaluate it.
    options: Mapping[str, str] = field(default_factory=dict)
    help: str = ""
    as_run: bool = False
    write_task: Callable[[Cluster, str, int], str] | None = None
    notes: Callable[[Cluster], Iterable[str]] = lambda cluster: ()


@dataclass(frozen=True, eq=False)
class Dialect:
    """A language of cluster descriptions.

    Attributes:
        name: lower-case letters, digits and `_`; what `--to` takes and `Source.dialect` holds.
        title: the proper name, for messages.
        example: what a description looks like, for the message about a text in an unknown language.
        text: reads files, texts and dicts.
        command: reads command lines.
        environment: reads variables.
        writer: writes a cluster.
        always_has_sync_period: whether every description has a sync period, even one that does not mention it.
    """

    name: str
    title: str
    example: str
    text: TextReader | None = None
    command: CommandReader | None = None
    environment: EnvironmentReader | None = None
    writer: Writer | None = None
    always_has_sync_period: bool = False
