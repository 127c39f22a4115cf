"""What messages and drawings may show of a text that somebody else wrote: one printable line, without secrets."""

import itertools
import re
import sys

_NAME = re.compile(r"(?<![\w.-])-{0,2}[A-Za-z_][\w.-]*", re.ASCII)
_URL = re.compile(r"(://)([^\s'\"]*)")
_COLON = re.compile(r"\\?[\"']?\s{0,3}:\s{0,3}(?=\\?[\"'])")
_PORT = re.compile(r"[0-9]{1,5}(?![^/?,;)\]])", re.ASCII)
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*", re.ASCII)
_PLACEHOLDER = re.compile(r"""[`'"({\[]*(?:\.\.\.)[`'")}\]]*[.,;:]?""")
_BLANKS = re.compile(r"\s*")

_SECRETS = ("password", "passwd", "passphrase", "secret", "token")
_WORDS = {"pwd", "auth", "credential", "credentials", "privatekey", "apikey", "accesskey"}
_BEFORE_VARIABLES = {"env", "export", "-x", "-e", "--env"}

_PLAIN_WORDS = (
    (r"invalid literal for int\(\) with base \d+: ('.*')", r"\1 is not a whole number"),
    (r"could not convert string to float: ('.*')", r"\1 is not a number"),
    (r"Did you mean: (.*?) \?", lambda meant: f"Did you mean --{re.sub(', | or ', ' or --', meant[1])}?"),
)
"""What Python and absl say of a flag that they do not understand, and in plain words."""


def print_error(error: object, argument: str = "--cluster") -> None:
    """Prints an error as one line on standard error, without secrets.

    Args:
        error: the error.
        argument: what of the command line a description is that is no file.
    """
    text = re.sub(r"^<text>(?=:)", argument, " ".join(str(error).split()))
    for python, words in _PLAIN_WORDS:
        text = re.sub(python, words, text)
    print(f"tfdist: {printable(without_secrets(text))}", file=sys.stderr)


def printable(text: str) -> str:
    """Returns `text` with every character that could break a line or control a terminal in the spelling of `repr`."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def without_secrets(text: str) -> str:
    """Returns `text` with `***` for what may be secret. Takes a time in proportion to its length.

    That is the value of each assignment to an environment variable (`NAME=...`, of any name before a program), what follows a
    name such as `--redis_password` or `'token': `, and the user and password of a URL.
    """
    parts: list[str] = []
    done = 0
    variables_at = _after_blanks(text, len(text) - len(text.lstrip("$ ")))
    for match in _NAME.finditer(text):
        name, end = match[0], match.end()
        if match.start() < done:
            continue
        if name in _BEFORE_VARIABLES:
            variables_at = _after_blanks(text, end + text.startswith("=", end))
            continue
        is_before_program = match.start() == variables_at and not name.startswith("-")
        value = _value(text, name, end, is_before_program)
        if value is None or text.startswith("***", value):
            continue
        quote = text[match.start() - 1 : match.start()]
        is_around_name = text.startswith((quote, f"\\{quote}"), end)
        last = _value_end(text, value, "" if is_around_name else quote)
        if _PLACEHOLDER.fullmatch(text, value, last):
            continue
        parts += text[done:value], "***" if last > value else ""
        done = last
        if is_before_program:
            variables_at = _after_blanks(text, last)
    return _URL.sub(_without_login, "".join((*parts, text[done:])))


def _value(text: str, name: str, end: int, is_before_program: bool) -> int | None:
    """Returns where the secret value of a name begins that ends at `end`; None if it has none."""
    is_secret = _is_secret(name)
    if text.startswith("=", end):
        is_variable = is_before_program or _VARIABLE.fullmatch(name) is not None
        return end + 1 if (is_variable or is_secret) and not text.startswith("==", end) else None
    if not is_secret:
        return None
    if colon := _COLON.match(text, end):
        return colon.end()
    after = _after_blanks(text, end)
    return after if name.startswith("-") and end < after < len(text) and text[after] != "-" else None


def _is_secret(name: str) -> bool:
    words = re.split(r"[_.-]+", name.lower())
    pairs = {first + second for first, second in itertools.pairwise(words)}
    return any(word.endswith(_SECRETS) for word in words) or not _WORDS.isdisjoint((*words, *pairs))


def _value_end(text: str, start: int, around: str) -> int:
    """Returns the end of a value as a shell takes it, or as `repr` quotes it. `around` is the quote before its name, if any.

    The value may end within quotes, because messages shorten what they quote.
    """
    position = start
    while position < len(text):
        character = text[position]
        if character == around and around in "\"'":
            return position
        following = text[position + 1 : position + 2]
        if around in ("'", '"') or (character == "\\" and following not in ("'", '"')):
            position += 1 + (character == "\\")
        elif character in "\"'\\":
            opening = position + (character == "\\")
            closing = text.find(text[opening], opening + 1)
            position = len(text) if closing < 0 else closing + 1
            if text.startswith((",", "}"), position):  # JSON
                return position
        elif character.isspace():
            return position
        else:
            position += 1
    return min(position, len(text))


def _after_blanks(text: str, start: int) -> int:
    match = _BLANKS.match(text, start)
    return start if match is None else match.end()


def _without_login(match: re.Match[str]) -> str:
    rest = match[2]
    if "@" in rest:
        return f"{match[1]}***@{rest.rpartition('@')[2]}"
    _, colon, port = rest.partition("/")[0].partition(":")
    # Else it is a password, and the rest of the URL was cut off. Nothing after the colon: that ends what a sentence names.
    return match[0] if not colon or not port or _PORT.match(port) else f"{match[1]}***@"
