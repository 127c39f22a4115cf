"""python -m tfdist.launch: see tfdist/launch/app.py."""

from tfdist.launch.app import main

if __name__ == "__main__":
    main()
