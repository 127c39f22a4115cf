"""The strategy `parameter_server`: the variables live on the ps tasks, and every step reads and updates them there.

`strategy.py` makes the strategy, `hooks.py` connects it to Keras. `placement.py` and `variables.py` place and shard variables
(slices and scattered updates of shards: `row_access.py`; what groups assign from old values: `relative_assigns.py`),
`optimizer.py` updates them on the ps (Adam in one pass: `fused_adam.py`), `fused_reads.py` reads them with one message per ps.
`training_loop.py` holds what Keras calls, and the steps that a worker group makes.

Imports `coordinator` and what that may import. Start reading at `hooks.py`.
"""
