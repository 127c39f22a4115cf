"""Replicas that compute a step together, each with its shard of the batch: what they add up, and what is equal on all.

Start with `replica_context.py`, then `reduction.py`.
"""
