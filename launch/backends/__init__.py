"""The places where tasks run, one room each: `local/` runs them as processes on this machine.

A backend starts the tasks of a `tfdist.launch.job.Job`, sends them signals, and reports `tfdist.launch.events`. Backends import
the other files of `tfdist.launch` except `cli.py`, `supervisor.py` and `running_tasks.py`, which use them.
"""
