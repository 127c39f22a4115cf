"""Strategies whose replicas run every step together, without ps: `mirrored` and `multi_worker_mirrored`.

Each replica has all parameters and trains on its shard of every batch; the replicas add up their gradients before each update.
The room imports `inputs` (batch shards), `keras_hooks`, `private_api`, `checkpoint` for temporary folders and the order of
saves, and `runtime` for waiting at the start. Start with `multi_worker_mirrored.py`, then `hooks.py` and `training_loop.py`;
`prediction_loop.py` is for `predict`.
"""
