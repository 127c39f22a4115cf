"""Where Keras' loop and a strategy meet.

`interface.py` defines `KerasHooks`, what Keras' training loop asks of a strategy; every strategy implements it in one object.
`trainer.py` makes Keras' trainer ask it. `optimizer.py`, `losses.py` and `variables.py` change how the replicas of one step
update together, with what `replicas/` has: sums over replicas (`reduction.py`), and the state of a replica meanwhile
(`replica_context.py`). `checks/` warns of losses, metrics and steps that replicas cannot add up (`shard_check.py`).
`callbacks.py` adds callbacks to those of the user. `checks/` imports `replicas/`, and the other files import both. The room
imports `inputs` (the interface of batches) and `private_api`. Start with `interface.py`.
"""
