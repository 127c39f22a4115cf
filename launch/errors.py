"""`UsageError`, and how commands show errors: one line on standard error."""

import re
import sys

from tfdist.messages import printable, without_secrets

_NUMBERS = (
    (r"invalid literal for int\(\) with base \d+: ('.*')", r"\1 is not a whole number"),
    (r"could not convert string to float: ('.*')", r"\1 is not a number"),
)
"""What Python says of a flag's value that is no number, and in plain words."""


class UsageError(Exception):
    """A command line that cannot be run."""


def print_error(error: object) -> None:
    """Prints an error as one line, without secrets."""
    text = re.sub(r"^<text>(?=:)", "--cluster", " ".join(str(error).split()))
    for python, words in _NUMBERS:
        text = re.sub(python, words, text)
    print(f"tfdist: {printable(without_secrets(text))}", file=sys.stderr)
