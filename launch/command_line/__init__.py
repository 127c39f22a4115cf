"""What the command line of a run holds: its flags, the program and its arguments, and defaults from a file.

Start with `splitting.py`.
"""
