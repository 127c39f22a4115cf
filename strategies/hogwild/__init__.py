"""Hogwild: every worker group trains a local replica and synchronizes it with the global parameters on the ps tasks.

In a cluster without ps tasks the workers hold the global parameters; what is said of a ps is then true of a worker.

To follow one sync period, start with `training_loop.py`, which schedules the batches of a period for a group. Then:

* `group_calls.py` decides when the group synchronizes, `model_blocks.py` what, and `inner_steps.py` traces its steps.
* `synchronization/`: `push_pull.py` pushes the progress and pulls the reply, `global_parameters.py` holds the parameters
  on the ps, `outer_optimizers.py` computes how they change, and `rounds.py` when.
* `timing/` says when groups synchronize and how long they wait.
* `replicas/` is the chief's view of all groups. There, `lost_shards.py` gives a ps that was restarted its part back, and
  `slots_of_others.py` a worker its optimizer slots.

Imports `coordinator`, `model_parallel`, `inputs`, `keras_hooks` and `private_api`; no other strategy imports this package.
`replicas/` imports the other two folders, which import neither it nor each other.

Outer optimizers, rounds, compressors, topologies and schedules are pure functions and values, in files of these names. To add
an outer optimizer, a compressor or a topology, write a class or function, and add a line to the table in its file and to the
options in `tfdist/synchronization.py`.
"""
