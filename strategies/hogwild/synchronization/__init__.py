"""One synchronization: what a group pushes and pulls, what a ps keeps of it, and how the global parameters change.

Outer optimizers, rounds, compressors and topologies are pure functions and values, in files of these names. Start with
`push_pull.py`.
"""
