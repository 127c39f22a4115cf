"""`UsageError`, and how commands show errors: one line on standard error."""

import sys

from tfdist.messages import printable, without_secrets


class UsageError(Exception):
    """A command line that cannot be run."""


def print_error(error: object) -> None:
    """Prints an error as one line, without secrets."""
    print(f"tfdist: {printable(without_secrets(' '.join(str(error).split())))}", file=sys.stderr)
