"""What a strategy tells the user of its choices."""

import sys


def tell(line: str) -> None:
    """Prints a line. The launcher shows what a task writes to stderr."""
    print(line, file=sys.stderr, flush=True)
