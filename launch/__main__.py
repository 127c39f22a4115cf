"""Runs the command `python -m tfdist.launch`: see `commands/cli.py`."""

from tfdist.launch.commands.cli import main

if __name__ == "__main__":
    main()
