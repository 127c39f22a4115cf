"""Whether replicas, each with its shard of a batch, compute what one process does: trials of steps and metrics, warnings.

Start with `shard_check.py`, then `step_trial.py`.
"""
