"""The options of this Python that the Pythons of tasks get too: `python -O -m tfdist.launch` runs the program with `-O`."""

import sys


def options() -> list[str]:
    """Returns the options `-O`, `-W` and `-X` of this Python. Others say where modules come from, which is tfdist's part."""
    optimize = [f"-{'O' * sys.flags.optimize}"] if sys.flags.optimize else []
    warnings = [f"-W{option}" for option in sys.warnoptions]
    return [*optimize, *warnings, *(f"-X{n}" if v is True else f"-X{n}={v}" for n, v in sys._xoptions.items())]
