"""The variables of a shell script that stand in it as literals: `NP=8` at its top level, assigned once.

Other values depend on what a shell executes, so they stay as they are written. The dialects refuse them where they matter.
"""

import math
import re
from collections.abc import Iterable, Mapping

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.ASCII | re.DOTALL)
_ASSIGNED = re.compile(r"(?<![\w$-])([A-Za-z_]\w*)(?:\[[^\]\n]{0,99}\])?(?:\+|:)?=", re.ASCII)
MAX_EXPANDED = 1_000_000
"""Characters of values that a script gets: a hostile one could use a long value a million times."""

_SAID = re.compile(r"^[ \t]*(?:echo[ \t][^\n;|&]*|#[^\n]*)", re.ASCII | re.MULTILINE)
_SETS = re.compile(
    r"\b(?:for|select|read|unset|local|declare|typeset|getopts|mapfile|readarray|let|printf[ \t]+-v)[ \t]([^\n;|&]*)", re.ASCII
)
_ARITHMETIC = re.compile(r"\(\(([^()\n]{0,200})\)\)", re.ASCII)
_CHANGES = re.compile(r"\+\+|--|=", re.ASCII)
_NAME = re.compile(r"(?<![\w$-])(?<!\$\{)[A-Za-z_]\w*", re.ASCII)
_LITERAL = re.compile(r"[\w./:,@%+=\s-]{0,2000}|\$SLURM_\w+|\$\{SLURM_\w+\}", re.ASCII)
_USE = re.compile(r"(?<!\\)\$(?:\{(\w+)\}|(\w+))", re.ASCII)
_FACTOR = r"(?:\w+|\$SLURM_\w+|\$\{SLURM_\w+\})"
_PRODUCT = re.compile(rf"\$\(\([ \t]*({_FACTOR}(?:[ \t]*\*[ \t]*{_FACTOR})*)[ \t]*\)\)", re.ASCII)
_OPENS = frozenset({"if", "for", "select", "while", "until", "case", "{", "("})
_CLOSES = frozenset({"fi", "done", "esac", "}", ")"})
_SOURCES = frozenset({"source", ".", "eval"})
_HARMLESS = re.compile(r"activate|conda|bashrc|profile|module|modules", re.ASCII)


class Literals:
    """The values that are known at a place of a script. `see` every command, in order, then `expand` words of the next one."""

    def __init__(self, text: str, known: Mapping[str, str]) -> None:
        counts: dict[str, int] = {}
        for match in _ASSIGNED.finditer(_SAID.sub("", text)):
            counts[match[1]] = counts.get(match[1], 0) + 1
        changes = _SETS.findall(text) + [text for text in _ARITHMETIC.findall(text) if _CHANGES.search(text)]
        changed = {name for change in changes for name in _NAME.findall(change)}
        self._once = {name for name, count in counts.items() if count == 1} - changed
        self._values: dict[str, str] = {}
        # Those that are set where the script runs, unless it changes them itself.
        self._known = {name: value for name, value in known.items() if name not in counts and name not in changed}
        self._open: list[str] = []
        self._left = MAX_EXPANDED

    def see(self, words: Iterable[str], assigned: Mapping[str, str], before: str, behind: str) -> None:
        """Takes note of a command.

        Args:
            words: all of its words, with `then`, `{` and assignments; `(` or `)` alone stands for these.
            assigned: what it assigns for the commands behind it.
            before: what ends the command before it, such as a line break, `;` or `&&`.
            behind: what ends it.
        """
        words = list(words)
        for word in words:
            if word in _OPENS:
                self._open.append(word)
            elif word in _CLOSES and self._open and not (word == ")" and self._open[-1] == "case"):
                self._open.pop()
            elif word not in ("then", "else", "elif", "do", "!"):
                break
        if words and words[0] in _SOURCES and not _HARMLESS.search(" ".join(words)):
            self._values.clear()
        if self._open or before in ("&&", "||", "|", "&") or behind in ("|", "&", "("):
            return  # It depends on something, or is in a process of its own, or an array.
        for name, value in assigned.items():
            if name in self._once and _LITERAL.fullmatch(value):
                self._values[name] = value

    def expand(self, text: str) -> str:
        """Returns a text that is not in single quotes with the values of `$NAME`, `${NAME}` and products of numbers in it."""
        return _PRODUCT.sub(self._product, _USE.sub(self._value, text)) if "$" in text else text

    def _get(self, name: str, otherwise: str) -> str:
        return self._values.get(name, self._known.get(name, otherwise))

    def _value(self, match: re.Match[str]) -> str:
        value = self._get(match[1] or match[2], match[0])
        self._left -= len(value)
        return value if self._left >= 0 else match[0]

    def _product(self, match: re.Match[str]) -> str:
        factors = [self._get(word, word).strip("${}") for word in re.split(r"[ \t]*\*[ \t]*", match[1])]
        if all(re.fullmatch(r"[1-9][0-9]{0,8}", factor) for factor in factors) and len(factors) < 10:
            return str(math.prod(map(int, factors)))
        return f"$(({' * '.join(factors)}))"
