"""The commands of a shell script or command line, as text. Nothing is executed. `variables.py` says what is expanded."""

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from tfdist.dialects.parsing.variables import ASSIGNMENT, Literals
from tfdist.errors import Source

VARIABLE = re.compile(r"\$[A-Za-z_0-9@*#?!{(-]|`", re.ASCII)
"""What a shell replaces: `$N`, `${N}`, `$(command)`, `` `command` ``."""

_TOKEN = re.compile(
    r"""(?P<join>\\\r?\n)
    |(?P<blank>[ \t\r]+)
    |(?P<line>\n)
    |(?P<placeholder><[A-Za-z_#][^<>\n&;|$]{0,60}>)
    |(?P<heredoc><<-?[ \t]*(?P<mark>'[^'\n]+'|"[^"\n]+"|[\w.]+))
    |(?P<redirect>&>>?|[0-9]?(?:<<<|>>|>\||>&|<&|<>|>|<))
    |(?P<end>&&|\|\||;;|[;&|()])
    |(?P<single>'[^']*')
    |(?P<ansi>\$'(?:[^'\\]|\\.)*')
    |(?P<double>")
    |(?P<variable>\$[A-Za-z_]\w*)
    |(?P<brace>\$\{)
    |(?P<open>\$\()
    |(?P<backtick>`[^`]*`)
    |(?P<escape>\\.)
    |(?P<hash>\#)
    |(?P<plain>[^\s'"\\$`;&|()<>\#]+)
    |(?P<other>.)""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_PART = re.compile(
    r"""\\.|\$\(|\$\{|(?<!<)<<-?[ \t]*(?P<mark>'[^'\n]+'|"[^"\n]+"|[A-Za-z_][\w.]*)|(?<=\s)\#[^\n]*|["'`()}]""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
"""What begins or ends a quotation or a substitution inside another one."""

_CLOSERS = {'"': '"', "`": "`", "$(": ")", "${": "}", "(": ")"}
SHELL_OPTION = re.compile(r"-[a-z]*c", re.ASCII)
"""The option of a shell behind which a script stands, `bash -c`."""
_BLANKS = re.compile(r"\s+(?![^()]{0,200}\))")
"""What separates words, but not inside `$(hostname -i)`."""
_ESCAPED = re.compile(r"\\([\"\\\n])")
_CONTROL = frozenset({"if", "then", "else", "elif", "fi", "do", "done", "while", "until", "for", "case", "esac", "{", "}", "!"})
_GOES_ON = frozenset({"&&", "||", "|", ")"})
"""What ends a command whose next one depends on it, or is the body of a function."""
_DECLARE = frozenset({"export", "declare", "typeset", "readonly", "local"})
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=", re.ASCII)
_QUOTES = "'\""
_MAX_MISSING = 20
"""Ends of here-documents that are looked for in vain before `<<` counts as an operator."""
_NO_END = "this cannot be split into words: no closing quotation"


@dataclass(frozen=True)
class ShellCommand:
    """One simple command.

    Attributes:
        words: its words without quotes, after assignments and words such as `then`. Empty for assignments alone.
        variables: the variables assigned before the program, or by the whole command (`export A=1`).
        line: the number of its first line.
        exported: variables that the script has exported before it, as far as they are known; only for a shell (`bash -c`), and
            until the next command is asked for.
        is_background: whether the shell does not wait for it (`&`).
    """

    words: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    line: int = 1
    exported: Mapping[str, str] = field(default_factory=dict)
    is_background: bool = False


def commands(
    text: str,
    source: Source,
    known: Mapping[str, str] = MappingProxyType({}),
    environ: Mapping[str, str] | None = None,
) -> Iterator[ShellCommand]:
    """Yields the commands of a script, in order. Here-documents are left out.

    Args:
        text: the script.
        source: for messages.
        known: variables that are set where it runs.
        environ: what it would get from this process. Other variables have the default of `${A:-8}`; None if they may not.

    Raises:
        ClusterError: for a quotation that does not end.
    """
    words: list[str] = []
    text = text.replace("\r\n", "\n")
    array: list[str] | None = None  # What has been found of `NAME=(...)`, whose name is the last of `words`.
    before, literals = "\n", Literals(text, known, environ)
    for kind, content, line in _words(text, source, literals):
        if kind == "word" and array is not None:
            array.append(content)
            continue
        if kind == "word":
            if not words:
                first = line
            words.append(content)
            continue
        if array is not None:
            if content == ")":
                literals.see(words, {}, before, "(")
                name = words[-1].rstrip("+=")
                if not literals.see_array(name, array, before):
                    yield ShellCommand((), {name: " ".join(array)}, first)
                words, array = [], None
            continue
        if content == "(" and words and _ARRAY.fullmatch(words[-1]):
            array = []
            continue
        if is_command := bool(words):
            command = _command(words, first, is_background=content == "&")
            if any(map(SHELL_OPTION.fullmatch, command.words)):
                command = replace(command, exported=MappingProxyType(literals.exported))
            literals.see(words, {} if command.words else command.variables, before, content)
            yield command
            words = []
        if content in ("(", ")"):
            literals.see([content], {}, before, "")
        if content != "\n" or is_command or before not in _GOES_ON:
            before = content  # `[ $A ] &&` and `f()` may have their command on the next line.


def has_variable(text: str) -> bool:
    """Returns whether a shell would replace a part of this text."""
    return VARIABLE.search(text) is not None


def _command(words: list[str], line: int, is_background: bool) -> ShellCommand:
    words = list(itertools.dropwhile(_CONTROL.__contains__, words))
    if words and words[0] in ("$", "%", ">") and len(words) > 1:  # A prompt.
        words = words[1:]
    is_declaration = bool(words) and words[0] in _DECLARE
    variables: dict[str, str] = {}
    position = int(is_declaration)
    while position < len(words):
        match = ASSIGNMENT.fullmatch(words[position])
        if match is not None:
            variables[match[1]] = match[2]
        elif not is_declaration:
            break
        position += 1
    return ShellCommand(tuple(words[position:]), variables, line, is_background=is_background)


def _words(text: str, source: Source, literals: Literals) -> Iterator[tuple[str, str, int]]:
    """Yields ("word", its text, its line), and ("end", what ends it, line) where a command ends."""
    return _Splitter(text, source, literals).split()


class _Splitter:
    """Splits a script into words, see `_words`."""

    def __init__(self, text: str, source: Source, literals: Literals) -> None:
        self._text, self._source, self._literals = text, source, literals
        self._position, self._line = 0, 1
        self._word: list[str] | None = None  # The parts of the current word.
        self._word_line = 1
        self._marks: list[str] = []  # Ends of the here-documents that begin with the next line.
        self._drops = False  # The next word is the file of a redirection.
        self._begins = True  # No word of this command has been found.
        self._is_balanced, self._missing = True, set[str]()

    def split(self) -> Iterator[tuple[str, str, int]]:
        """Yields words and ends, as `_words` does."""
        while self._position <= len(self._text):
            match = _TOKEN.match(self._text, self._position)
            kind = (match.lastgroup or "") if match else "line"
            token = match[0] if match else ""
            self._position = match.end() if match else len(self._text) + 1
            if kind == "hash" and self._word is None:
                end = self._text.find("\n", self._position)
                self._position = len(self._text) if end < 0 else end
            elif token == ">" and self._is_prompt():
                continue
            elif kind == "heredoc" and match is not None:
                yield from self._end_word()
                self._marks.append(match["mark"].strip(_QUOTES))
            elif kind in ("blank", "line", "redirect", "end"):
                yield from self._separate(kind, token)
            else:
                yield from self._add(kind, self._whole(kind, token))

    def _is_prompt(self) -> bool:
        return self._begins and self._word is None and self._text[self._position : self._position + 1] in (" ", "\t")

    def _end_word(self, before: str = "") -> Iterator[tuple[str, str, int]]:
        """Yields the current word, unless it belongs to a redirection. `before` is the kind of the token behind the word."""
        if self._word is None:
            return
        joined, self._word = "".join(self._word), None
        is_number = before == "redirect" and joined.isdecimal()  # 2>file
        if not self._drops and not is_number:
            yield "word", joined, self._word_line
            self._begins = False
        self._drops = False

    def _separate(self, kind: str, token: str) -> Iterator[tuple[str, str, int]]:
        """Yields what a token ends that is not a part of a word: a word, a command."""
        yield from self._end_word(before=kind)
        if kind == "redirect":
            self._drops = True
        if kind not in ("line", "end"):
            return
        self._drops, self._begins = False, True
        yield "end", token or "\n", self._line
        if kind == "line":
            self._line += 1
            while self._marks and self._position <= len(self._text):
                self._position, self._line = _after_heredoc(self._text, self._position, self._line, self._marks.pop(0))

    def _whole(self, kind: str, token: str) -> str:
        """Returns the token, or the whole quotation or substitution that it begins."""
        if kind not in ("double", "brace", "open"):
            return token
        # After one that does not end, only the line counts: a text of nothing but openings is not searched again and again.
        is_sought = self._is_balanced or kind == "double"
        end = _behind(self._text, self._position, _CLOSERS[token], self._missing) if is_sought else -1
        if end < 0 and kind == "double":
            raise self._source.error(_NO_END, line=self._line)
        self._is_balanced = self._is_balanced and end >= 0
        end = end if end >= 0 else _closing(self._text, self._position)
        begin, self._position = self._position - len(token), end
        return self._text[begin:end]

    def _add(self, kind: str, token: str) -> Iterator[tuple[str, str, int]]:
        """Adds a token to the current word; yields the words that end within it, where a variable is expanded."""
        first_line, self._line = self._line, self._line + token.count("\n")
        if kind == "join":
            return
        if self._word is None:
            self._word, self._word_line = [], first_line
        if kind == "other" and token in "'`":
            raise self._source.error(_NO_END, line=self._line)
        pieces = self._literals.elements(token) if kind in ("brace", "double") else None
        if pieces is None and kind in ("variable", "brace") and (value := self._literals.expand(token)) != token:
            pieces = _BLANKS.split(value)  # As a shell does without quotes.
        if pieces is None:
            is_expanded = kind in ("double", "open", "backtick")
            self._word.append(_unquoted(kind, self._literals.expand(token) if is_expanded else token))
            return
        *complete, last = pieces or [""]
        for piece in complete:
            self._word += [piece] if piece else []
            if self._word:
                yield "word", "".join(self._word), self._word_line
                self._begins, self._word, self._word_line = False, [], self._line
        self._word = [*self._word, last] if last else self._word or None


def _unquoted(kind: str, token: str) -> str:
    if kind in ("single", "ansi"):
        return token.lstrip("$")[1:-1]
    if kind == "double":
        return _ESCAPED.sub(lambda match: "" if match[1] == "\n" else match[1], token[1:-1])
    return token[1:] if kind == "escape" else token


def _behind(text: str, position: int, closer: str, missing: set[str]) -> int:
    """Returns the position behind the quotation or substitution that `closer` ends; -1 if it does not end.

    Args:
        text: the script.
        position: the position behind its beginning.
        closer: `"`, `)`, `}` or a backtick.
        missing: ends of here-documents that this text does not have from here on; gets those that are looked for in vain.
    """
    closers = [closer]
    while (match := _PART.search(text, position)) is not None:
        token, position, last = match[0], match.end(), closers[-1]
        if token[0] in "#<" and last != ")":
            position = match.start() + 1  # Neither a comment nor a here-document: `"a #b"`.
        elif token == last:
            closers.pop()
            if not closers:
                return position
        elif last == "`" or token[0] in "\\}":
            continue
        elif token in ("$(", "${", "`"):
            closers.append(_CLOSERS[token])
        elif last == '"' or (last == "}" and token != '"' and '"' in closers[-2:]):
            continue
        elif token == "'":
            position = text.find("'", position) + 1
            if not position:
                return -1
        elif token == '"' or (token == "(" and last == ")"):
            closers.append(_CLOSERS[token])
        elif (mark := match["mark"]) and len(missing) < _MAX_MISSING and mark not in missing:
            ends = re.compile(rf"^[ \t]*{re.escape(mark.strip(_QUOTES))}[ \t]*$", re.MULTILINE).search(text, position)
            if ends is None:
                missing.add(mark)  # Not a here-document: `$((a<<b))`.
            else:
                position = ends.end()
        # A comment in `$(...)` is passed over as a whole.
    return -1


def _closing(text: str, position: int) -> int:
    """Returns the position behind the `)` that ends `$(`, or the end of the line."""
    depth = 1
    for match in re.compile(r"[()\n]").finditer(text, position):
        depth += {"(": 1, ")": -1}.get(match[0], 0)
        if depth == 0:
            return match.end()
        if match[0] == "\n":
            return match.start()
    return len(text)


def _after_heredoc(text: str, position: int, line: int, mark: str) -> tuple[int, int]:
    """Returns the position and line behind a here-document."""
    while position < len(text):
        end = text.find("\n", position)
        end = len(text) if end < 0 else end
        content = text[position:end].strip()
        position, line = end + 1, line + 1
        if content == mark:
            break
    return position, line
