"""`UsageError`, and how commands show errors: one line on standard error."""

import re
import sys

from tfdist.messages import printable, without_secrets

_PLAIN_WORDS = (
    (r"invalid literal for int\(\) with base \d+: ('.*')", r"\1 is not a whole number"),
    (r"could not convert string to float: ('.*')", r"\1 is not a number"),
    (r"Did you mean: (.*?) \?", lambda meant: f"Did you mean --{meant[1].replace(' or ', ' or --')}?"),
)
"""What Python and absl say of a flag that they do not understand, and in plain words."""


class UsageError(Exception):
    """A command line that cannot be run."""


def print_error(error: object) -> None:
    """Prints an error as one line, without secrets."""
    text = re.sub(r"^<text>(?=:)", "--cluster", " ".join(str(error).split()))
    for python, words in _PLAIN_WORDS:
        text = re.sub(python, words, text)
    print(f"tfdist: {printable(without_secrets(text))}", file=sys.stderr)
