"""A task at run time, whatever its strategy: serving, start, end, memory, and the summary of the training.

`server.py` is the program of a serving ps or worker; `shutdown.py` ends it when the chief's program ends. `peers.py` waits for
the tasks of the cluster, `deadline.py` bounds waits, `program_end.py` reports how the user's program ends. `memory.py` keeps
freed memory, `run_summary.py` writes what the launcher shows at the end, `tensorflow_logging.py` quiets TensorFlow,
`generated_code.py` keeps its generated code out of files, and `chief_device.py` places values on the chief. The room imports
`keras_hooks` and `private_api`; the rooms of strategies import it.
Start with `server.py`.
"""
