"""Worker groups: which of them answer, which train now, and how tasks that were restarted come back.

Start with `membership.py`, then `recovery.py`.
"""
