"""Runs the command `python -m tfdist.launch`, which is `tfdist run`: see `commands/run_command.py`."""

import sys

from tfdist.launch.commands import run

if __name__ == "__main__":
    sys.exit(run(["run", *sys.argv[1:]]))
