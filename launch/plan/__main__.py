"""`python -m tfdist.launch.plan`: the same as `tfdist plan`."""

import sys

from tfdist.launch.plan.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
