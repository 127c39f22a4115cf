"""The evaluator: a task that does not train but evaluates every checkpoint that the chief writes.

The chief and the evaluator share files and no connection, so neither can hold up the other. `folder.py` describes the files.
`chief_callback.py` writes them on the chief. On the evaluator `strategy.py` makes the strategy under which `fit` evaluates,
`checkpoint_evaluator.py` runs such a `fit`, `evaluation.py` evaluates a checkpoint, and `progress.py` reads where both stand.
The room imports `checkpoint`, `keras_hooks`, `runtime` and `private_api`. Start with `folder.py`.
"""
