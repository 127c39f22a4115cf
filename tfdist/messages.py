"""What messages and drawings may show of a text that somebody else wrote: one printable line, without secrets."""

import re

_VALUE = r"""(?:\\?"[^"]*(?:"|$)|\\?'[^']*(?:'|$)|\\.|[^\s"'\\])*"""
"""The value of an assignment as a shell takes it. It may end within quotes, because messages shorten what they quote."""

_NAME = r"[A-Za-z_]\w*"
_SECRET = (
    r"(?:[\w.-]*[_.-])?"
    r"(?:passw(?:or)?d|passphrase|pwd|secret|token|auth|credentials?|(?:private|api|access)_?key)"
    r"(?:[_.-][\w.-]*)?"
)
_SECRET_NAME = re.compile(_SECRET, re.ASCII | re.IGNORECASE)
_QUOTED = re.compile(rf"""(?<=(['"]))({_NAME}=)(?:\\.|(?!\1)[^\\])*""", re.ASCII)
_VARIABLE = re.compile(rf"\b([A-Z_][A-Z0-9_]*=)(?!=|\*\*\*){_VALUE}", re.ASCII)
_BEFORE_PROGRAM = re.compile(
    rf"(?:\b(?:env|export)\s+|\s(?:-x|-e|--env)[\s=]+|^[$\s]*)((?:{_NAME}={_VALUE}(?:\s+|$))+)", re.ASCII
)
_ASSIGNMENT = re.compile(rf"({_NAME}=){_VALUE}", re.ASCII)
_NAMED_SECRET = re.compile(
    rf"""(-{_SECRET}(?:=|\s+(?!-))|\b{_SECRET}=|\b{_SECRET}\\?["']?\s*:\s*(?=\\?["']))(?!\s|$|\*\*\*){_VALUE}""",
    re.ASCII | re.IGNORECASE,
)
_LOGIN = re.compile(
    r"""(://)(?:[^\s'"]*@|[^\s'"/@:]*:(?![0-9]{1,5}(?![^\s'"/?,;)\]]))[^\s'"]*)""",  # No port: a password that was shortened.
    re.ASCII,
)


def printable(text: str) -> str:
    """Returns `text` with every character that could break a line or control a terminal in the spelling of `repr`."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def without_secrets(text: str) -> str:
    """Returns `text` with `***` for what may be secret.

    That is the value of each assignment to an environment variable (`NAME=...`, of any name before a program), what follows a
    name such as `--redis_password` or `token:`, and the user and password of a URL.
    """
    if "=" in text:
        text = _QUOTED.sub(_in_quotes, text)
        text = _VARIABLE.sub(r"\1***", text)
        text = _BEFORE_PROGRAM.sub(lambda match: _ASSIGNMENT.sub(r"\1***", match[0]), text)
    text = _NAMED_SECRET.sub(r"\1***", text)
    return _LOGIN.sub(r"\1***@", text) if "://" in text else text


def _in_quotes(match: re.Match[str]) -> str:
    # Another name in lower case is an option more often than a variable.
    is_secret = match[2].isupper() or _SECRET_NAME.fullmatch(match[2][:-1])
    return f"{match[2]}***" if is_secret else match[0]
