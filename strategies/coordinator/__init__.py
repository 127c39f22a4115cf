"""What `parameter_server` and `hogwild` share: a chief that coordinates asynchronous groups of workers.

The chief connects to the cluster (`strategy.py`), divides the workers into groups (`members/worker_groups.py`), runs Keras'
loop (`hooks.py`, `training_loop.py`) and schedules executions (`calls/executions.py`). `members/` knows which groups are live
(`membership.py`), gives up those that do not answer (`group_answers.py`) and takes restarted ones in (`recovery.py`). `calls/`
has the traced functions that a worker group runs (`group_function.py`), in which its replicas make one step together
(`group_step.py`). The metrics of all groups come back to the chief (`metric_logs.py`), where callbacks read and assign weights
(`edits.py`). `remote_garbage.py` frees on other tasks what the program has dropped. The two strategies supply the rest: where
variables live, what one function computes, and how steps are scheduled.

Imports `keras_hooks`, `inputs`, `runtime` and `private_api`; neither of the two strategies. Inside, `calls/` imports
`members/`. Start reading at `calls/executions.py`.
"""
