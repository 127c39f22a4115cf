"""The room that runs: it starts the tasks of a cluster, watches them and ends them.

Start reading at `commands/run_command.py`, the command `tfdist run`, which makes a `Job` (`jobs/job.py`) and a plan;
`supervision/attached.py` and `supervision/supervisor.py` run it. BUILD.md has a table of the rooms.

`tfdist.strategy` uses `rendezvous/` and the local back end in programs that run without the launcher. This room imports
`tfdist.strategies` and `tfdist`, but neither `tfdist.create_strategy` nor `tfdist.ranks`, and it does not import TensorFlow.
"""
