"""A running job: its tasks are started, watched, restarted and ended, in the launcher or in the background.

Start reading at `attached.py`, then `supervisor.py`.
"""
