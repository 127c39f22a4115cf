"""What a job is: its cluster and program, its settings, its states, and the events that happen to its tasks.

Start with `job.py`, then `events.py`.
"""
