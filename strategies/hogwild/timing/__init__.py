"""When groups synchronize, how late they pull, and how long a round waits for the others. Nothing here holds parameters.

Start with `measured_delay.py`, then `grace.py`.
"""
