"""Runs `-c PROGRAM`, as Python does, with a fork server that does not import TensorFlow (see `quick_launcher.py`)."""

import sys

from quick_launcher import make_quick

if __name__ == "__main__":
    make_quick()
    exec(sys.argv[2])
