"""python -m tfdist.launch: see tfdist/launch/cli.py."""

from tfdist.launch.cli import main

if __name__ == "__main__":
    main()
