"""Predicts how fast a model trains on clusters that do not exist yet, and which resource binds each.

A `Measurement` of the user's program on this machine (made by `launch/plan/`) holds what a step and a synchronization cost.
`predict` combines it with the `Hardware` of a cluster and an `Option`: strategy, workers, ps, sync period. `candidates` lists
the options that fit a description, `recommend` chooses one, `table` and `chart` show them, and `described` makes a cluster of
it.

`predictions` simulates what a table shows of `hogwild` and of many workers: `simulated` is the training, `events` its machines.

The room imports the modules that describe a cluster and `pictures.canvas`; it never imports TensorFlow. Start with
`predict.py`, then read `loads.py`.
"""
