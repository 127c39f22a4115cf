"""Where Keras' loop and a strategy meet.

`interface.py` defines `KerasHooks`, what Keras' training loop asks of a strategy; every strategy implements it in one object.
`trainer.py` makes Keras' trainer ask it. `optimizer.py`, `losses.py` and `variables.py` change how the replicas of one step
update together. `batch_sums.py` and `shard_check.py` warn of losses and steps that they cannot add up, and `added_losses.py`
lets sums of layers count in full. `reduction.py` sums over them, and `replica_context.py` holds the state of a replica
meanwhile. `callbacks.py` adds callbacks to those of the user. The room imports `inputs` (the interface of batches) and
`private_api`. Start with `interface.py`.
"""
