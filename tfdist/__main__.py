"""Runs the command `tfdist`, as `python -m tfdist`: see `launch/commands/`."""

from tfdist.launch.commands import main

if __name__ == "__main__":
    main()
