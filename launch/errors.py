"""`UsageError`: a command line that cannot be run. `tfdist.messages.print_error` shows it."""


class UsageError(Exception):
    """A command line that cannot be run."""
