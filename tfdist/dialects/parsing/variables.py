"""The variables of a shell script that stand in it as literals: `NP=8` at its top level, assigned once, or `${NP:-8}`.

Other values depend on what a shell executes, so they stay as they are written. The dialects refuse them where they matter.
"""

import itertools
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.ASCII | re.DOTALL)
_ASSIGNED = re.compile(r"(?<![\w$-])([A-Za-z_]\w*)(?:\[[^\]\n]{0,99}\])?(?:\+|:)?=", re.ASCII)
_PROGRAM = re.compile(
    r"""(?<![\w$-])([A-Za-z_]\w*)=["']?(?:\$\{\1:?[-=])?([\w./][\w./-]{0,200}\.py)\}?["']?(?=[\s;&|)]|\Z)""", re.ASCII
)
"""`S=train.py`, `S=${S:-train.py}`: a variable that only such assignments set is a program, whichever it is."""
MAX_EXPANDED = 1_000_000
"""Characters of values that a script gets: a hostile one could use a long value a million times."""

_SAID = re.compile(r"""^[ \t]*(?:echo[ \t][^\n;|&]*|#[^\n]*)|(?<!\S)#[^\n"'`#]{0,100}$""", re.ASCII | re.MULTILINE)
_SETS = re.compile(
    r"\b(?:for|select|read|unset|getopts|mapfile|readarray|let|printf[ \t]+-v"
    r"|(?:local|declare|typeset)(?![ \t]+(?:-[agrx]+[ \t]+)*[A-Za-z_]\w*=))[ \t]([^\n;|&]*)",
    re.ASCII,
)
"""`declare A=1` is an assignment like `A=1`; `declare -i A=B` is not."""
_ARITHMETIC = re.compile(r"\(\(([^()\n]{0,200})\)\)", re.ASCII)
_CHANGES = re.compile(r"\+\+|--|=", re.ASCII)
_NAME = re.compile(r"(?<![\w$-])(?<!\$\{)[A-Za-z_]\w*", re.ASCII)
_REFERENCE = r"(?:\\?\$\w+(?!\w)|\\?\$\{\w+\}|\\?\$\([^()\n]{0,200}\))"
_BACKTICKS = re.compile(r"`([^`()\n]{0,200})`")
_LITERAL = re.compile(
    rf"(?!{_REFERENCE}\Z)(?:[\w./:,@%+=\s-]|{_REFERENCE}|\$\(\([\w *]+\)\)){{0,2000}}|\$SLURM_\w+|\$\{{SLURM_\w+\}}", re.ASCII
)
"""A value of which all is known but for variables in it. What is nothing but a variable stays as it is."""
_USE = re.compile(r"(?<!\\)\$(?:\{(\w+)(?:\[([0-9]{1,4})\])?\}|(\w+))", re.ASCII)
_DEFAULT = re.compile(r"(?<!\\)\$\{([A-Za-z_]\w*):?[-=]([1-9][0-9]{0,8})\}", re.ASCII)
"""`${NP:-8}`: a number, if the variable has no other."""
_OWN_DEFAULT = re.compile(
    r"""(?<![\w$-])([A-Za-z_]\w*)=["']?\$\{\1:?-([1-9][0-9]{0,8})\}["']?(?=[\s;&|)]|\Z)"""
    r"""|\$\{([A-Za-z_]\w*):?=([1-9][0-9]{0,8})\}""",
    re.ASCII,
)
_COLON = re.compile(r"""^:[ \t]+["']?\$\{([A-Za-z_]\w*):?=([1-9][0-9]{0,8})\}""", re.ASCII | re.MULTILINE)
"""`: ${NP:=8}`, which sets it for the commands below."""
_OF_SYSTEM = re.compile(
    r"(?:SLURM|SLURMD|SBATCH|PBS|LSB|LSF|SGE|PE|OMPI|PMI|PALS|MPI|HOROVOD|PET|PADDLE|SM|TF|AIP|SKYPILOT|LOCAL|GROUP|NODE)_\w*"
    r"|WORLD_SIZE|NSLOTS|NHOSTS|NCPUS",
    re.ASCII,
)
"""Variables that schedulers and launchers set, where the script runs."""
_ALL = re.compile(r"""("?)\$\{(\w+)\[([@*])\]\}"?""", re.ASCII)
_FACTOR = r"(?:\w+|\$SLURM_\w+|\$\{SLURM_\w+\})"
_PRODUCT = re.compile(rf"\$\(\([ \t]*({_FACTOR}(?:[ \t]*\*[ \t]*{_FACTOR})*)[ \t]*\)\)", re.ASCII)
_EXPR = re.compile(r"""\$\([ \t]*expr[ \t]+([0-9]+(?:[ \t]+(?:\\\*|'\*'|"\*")[ \t]+[0-9]+)+)[ \t]*\)""", re.ASCII)
"""The product `$(expr 2 \\* 8)`, which older shells wrote for `$((2 * 8))`."""
_COUNTED = re.compile(
    r"""\$\([ \t]*scontrol[ \t]+show[ \t]+hostnames?(?:[ \t]+"?\$\{?SLURM_(?:JOB_)?NODELIST\}?"?)?"""
    r"""[ \t]*\|[ \t]*wc[ \t]+-l[ \t]*\)""",
    re.ASCII,
)
"""Counts the nodes of a job of Slurm, as SLURM_NNODES does."""
_LINES = re.compile(
    r"""\$\([ \t]*(?:wc[ \t]+-l[ \t]*<[ \t]*{0}|cat[ \t]+{0}[ \t]*\|[ \t]*wc[ \t]+-l"""
    r"""|wc[ \t]+-l[ \t]+{0}[ \t]*\|[ \t]*(?:awk[ \t]+'\{{print[ \t]+\$1\}}'|cut[ \t]+-d[ \t]?["']\ ["'][ \t]+-f[ \t]?1))"""
    r"""[ \t]*\)""".format(r"""["']?\$\{?PBS_NODEFILE\}?["']?"""),
    re.ASCII,
)
"""Counts the lines of PBS' file of nodes, as Torque's PBS_NP does: one for each process."""
_CAT = re.compile(
    r"""("?)\$\([ \t]*cat[ \t]*<<-?[ \t]*(["']?)(\w+)\2[ \t]*\n(.*\n)[ \t]*\3[ \t]*\n?[ \t]*\)\1""", re.ASCII | re.DOTALL
)
"""The text of a here-document, `$(cat <<EOF`."""
_QUOTED = re.compile(r'["\\]')
_OPENS = frozenset({"if", "for", "select", "while", "until", "case", "{", "("})
_GROUP = "group"
_CLOSES = frozenset({"fi", "done", "esac", "}", ")"})
_DEPENDS = frozenset({"&&", "||", "|", "&"})
_SOURCES = frozenset({"source", ".", "eval"})
_HARMLESS = re.compile(r"activate|conda|bashrc|profile|module|modules", re.ASCII)


class Literals:
    """The values that are known at a place of a script. `see` every command, in order, then `expand` words of the next one.

    Attributes:
        exported: the variables that the programs of the next command get.
    """

    def __init__(self, text: str, known: Mapping[str, str], environ: Mapping[str, str] | None = None) -> None:
        counts: dict[str, int] = {}
        done = _SAID.sub("", text)
        for match in _ASSIGNED.finditer(done):
            counts[match[1]] = counts.get(match[1], 0) + 1
        changes = _SETS.findall(done) + [text for text in _ARITHMETIC.findall(text) if _CHANGES.search(text)]
        changed = {name for change in changes for name in _NAME.findall(change)}
        self._once = {name for name, count in counts.items() if count == 1} - changed
        self._values: dict[str, str] = {}
        others = {match[1] for match in _ASSIGNED.finditer(_PROGRAM.sub("", done))} | changed
        self._programs = {match[1]: match[2] for match in _PROGRAM.finditer(done) if match[1] not in others}
        # Those that are set where the script runs, unless it changes them itself.
        self._inherited = {name: value for name, value in known.items() if name not in counts and name not in changed}
        self._arrays: dict[str, list[str]] = {}
        self._defaults = None if environ is None else _Defaults(done, counts, changed | set(environ))
        self._exported: set[str] = set()
        self.exported: dict[str, str] = {}
        self._open_blocks: list[str] = []
        self._is_function = False  # The next block is its body.
        self._characters_left = MAX_EXPANDED

    def see(self, words: Iterable[str], assigned: Mapping[str, str], before: str, behind: str) -> None:
        """Takes note of a command.

        Args:
            words: all of its words, with `then`, `{` and assignments; `(` or `)` alone stands for these.
            assigned: what it assigns for the commands behind it.
            before: what ends the command before it, such as a line break, `;` or `&&`.
            behind: what ends it.
        """
        words = list(words)
        is_group = before not in (*_DEPENDS, ")") and not self._is_function  # `{ ...; } > log` runs here, once.
        self._is_function = words[:1] == ["function"] and "{" not in words and behind != "("
        for word in words:
            if word == "{" and is_group:
                self._open_blocks.append(_GROUP)
            elif word in _OPENS:
                self._open_blocks.append(word)
            elif word == "function":
                self._open_blocks += [word for word in words if word == "{"]
                break
            elif word in _CLOSES and self._open_blocks and not (word == ")" and self._open_blocks[-1] == "case"):
                if self._open_blocks.pop() == _GROUP and behind in ("|", "&"):  # It was in a process of its own.
                    self._values.clear()
                    self._arrays.clear()
            elif word not in ("then", "else", "elif", "do", "!"):
                break
        if words and words[0] in _SOURCES and not _HARMLESS.search(" ".join(words)):
            self._values.clear()
            self._programs.clear()
            self._arrays.clear()
            self._defaults = None
            self.exported.clear()
        if self._is_conditional() or before in _DEPENDS or behind in ("|", "&", "("):
            return  # It depends on something, or is in a process of its own, or an array.
        for name, value in assigned.items():
            value = self._counted(_BACKTICKS.sub(r"$(\1)", value))
            if name in self._once and _LITERAL.fullmatch(value):
                self._values[name] = value
        if words[:1] == ["export"]:
            names = [word.partition("=")[0] for word in words[1:]]
            self._exported |= set(names)
        else:
            names = [name for name in assigned if name in self._exported]
        self.exported |= {name: self._values[name] for name in names if name in self._values}

    def _is_conditional(self) -> bool:
        return any(block != _GROUP for block in self._open_blocks)

    def see_array(self, name: str, words: Sequence[str], before: str) -> bool:
        """Takes note of `NAME=(...)`, where `before` ends the command before it.

        Returns whether its elements are known at the commands behind it.
        """
        if self._is_conditional() or before in _DEPENDS or name not in self._once:
            return False
        self._arrays[name] = list(words)
        return True

    def elements(self, token: str) -> list[str] | None:
        """Returns the words for which `${NAME[@]}` stands, in double quotes or not; None for other texts and unknown arrays."""
        match = _ALL.fullmatch(token)
        pieces = self._arrays.get(match[2]) if match is not None else None
        if match is None or pieces is None or not all(pieces) or (match[1] and match[3] == "*"):
            return None
        self._characters_left -= sum(map(len, pieces))
        if self._characters_left < 0:
            return None
        return pieces if match[1] else [piece for each in pieces for piece in ([each] if "(" in each else each.split())]

    def expand(self, text: str) -> str:
        """Returns a text that is not in single quotes with the values of `$NAME`, `${NAME}` and products of numbers in it."""
        if "$" not in text:
            return text
        if text[0] == "`":
            return self._counted(_BACKTICKS.sub(r"$(\1)", text))
        if (here := _CAT.fullmatch(text)) is not None:
            shown = here[4].strip() if here[2] else self._substituted(here[4].strip())
            return '"' + _QUOTED.sub(r"\\\g<0>", shown) + '"' if here[1] else shown
        return self._substituted(self._counted(text))

    def _substituted(self, text: str) -> str:
        text = _USE.sub(self._value, _DEFAULT.sub(self._value_or_default, text))
        known = _EXPR.sub(lambda match: f"$(({' * '.join(re.findall('[0-9]+', match[1]))}))", text)
        return _PRODUCT.sub(self._product, known)

    def _counted(self, text: str) -> str:
        """Returns the number for which a command that counts nodes or processes stands, if it is known; else the text."""
        for counts, variable in ((_COUNTED, "SLURM_NNODES"), (_LINES, "PBS_NP")):
            if counts.fullmatch(text):
                return self._get(variable, text)
        return text

    def _get(self, name: str, otherwise: str) -> str:
        if self._defaults is not None:
            otherwise = self._defaults.assigned.get(name, otherwise)
        return self._values.get(name, self._inherited.get(name, self._programs.get(name, otherwise)))

    def _value_or_default(self, match: re.Match[str]) -> str:
        value = self._values.get(match[1], self._inherited.get(match[1]))
        if value is None and self._defaults is not None and self._defaults.holds(match[1], match[2]):
            return match[2]
        return value or match[0]

    def _value(self, match: re.Match[str]) -> str:
        name, place = match[1] or match[3], match[2]
        value = self._get(name, match[0]) if place is None else self._element(name, int(place), match[0])
        self._characters_left -= len(value)
        return value if self._characters_left >= 0 else match[0]

    def _element(self, name: str, place: int, otherwise: str) -> str:
        known = list(itertools.takewhile(lambda word: "$" not in word and "`" not in word, self._arrays.get(name, ())))
        return known[place] if place < len(known) else otherwise

    def _product(self, match: re.Match[str]) -> str:
        factors = [self._get(word, word).strip("${}") for word in re.split(r"[ \t]*\*[ \t]*", match[1])]
        if all(re.fullmatch(r"[1-9][0-9]{0,8}", factor) for factor in factors) and len(factors) < 10:
            return str(math.prod(map(int, factors)))
        return f"$(({' * '.join(factors)}))"


class _Defaults:
    """The variables of a script that have a default and no other value, unless somebody sets them before it runs.

    Attributes:
        assigned: those that a line sets to it, `: ${NP:=8}`.
    """

    def __init__(self, text: str, counts: Mapping[str, int], others: Collection[str]) -> None:
        """Finds them.

        Args:
            text: the script without comments.
            counts: how often it assigns each variable.
            others: the names of variables that get other values.
        """
        self._counts, self._others = counts, others
        found = [(match[1] or match[3], match[2] or match[4]) for match in _OWN_DEFAULT.finditer(text)]
        self._own = {name: default for name, default in found if counts.get(name) == 1}
        self.assigned = {match[1]: match[2] for match in _COLON.finditer(text) if self.holds(match[1], match[2])}

    def holds(self, name: str, default: str) -> bool:
        """Returns whether `${name:-default}` is the default."""
        if name in self._others or _OF_SYSTEM.fullmatch(name):
            return False
        return name not in self._counts or self._own.get(name) == default
