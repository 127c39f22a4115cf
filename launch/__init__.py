"""The room that runs: it starts the tasks of a cluster, watches them and ends them.

Start reading at `cli.py`, the command `tfdist run`, which makes a `Job` (`job.py`) and a plan; `attached.py` and
`supervisor.py` run it. `commands.py` has the other verbs. `backends/` holds the places where tasks run. In `rendezvous/`, ranks
that know no addresses find each other. `tfdist.strategy` uses both in programs that run without the launcher. This room imports
`tfdist.strategies` and `tfdist`, but neither `tfdist.create_strategy` nor `tfdist.ranks`, and it does not import TensorFlow.
"""
