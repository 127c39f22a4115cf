"""Runs the command `python -m tfdist.launch`: see `cli.py`."""

from tfdist.launch.cli import main

if __name__ == "__main__":
    main()
