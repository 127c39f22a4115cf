"""The places where tasks run: start reading at `interface.py`, then `local/backend.py`. `registry.py` has the table.

A back end plans a `tfdist.launch.job.Job`, and then either runs its tasks and reports `tfdist.launch.events`, or hands it to a
system with a supervision of its own. Back ends import `events.py`, `job.py`, `job_status.py` and `output.py` of
`tfdist.launch`; the other files there use them.
"""
