"""What the terminal shows of a job: the output of its tasks, and the live view below it.

Start with `output.py`, then `live_view.py`.
"""
