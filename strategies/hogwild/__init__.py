"""Hogwild: every worker group trains a local replica and synchronizes it with the global parameters on the ps tasks.

Imports `coordinator`, `inputs`, `keras_hooks` and `private_api`; no other strategy imports this package.
Start with `strategy.py`, then follow one sync period: `training_loop.py` gives a group its batches, `push_pull.py` pushes its
progress and pulls the reply, `global_parameters.py` holds the parameters on the ps, and `outer_optimizers.py` computes how they
change. `local_replicas.py` is what the chief knows of all groups. Outer optimizers, topologies, compressors and schedules are
pure functions and values with one table each, in files of these names; tests use them without a cluster.
"""
