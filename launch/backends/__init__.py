"""The places where tasks run: start reading at `interface.py`, then `local/backend.py`. `registry.py` has the table.

A back end plans a `tfdist.launch.jobs.job.Job`. Then it either runs its tasks and reports `tfdist.launch.jobs.events`, or
hands it to a system with a supervision of its own. Back ends import `jobs/` and `terminal/`; the other rooms use them.
"""
