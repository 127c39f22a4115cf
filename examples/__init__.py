"""Example programs. `digits.py` is the program that `python -m tfdist.launch` runs when it is given none."""
