"""The chief's view of the local replicas of all groups: their values, slots and counters, and their part of a checkpoint.

Start with `local_replicas.py`.
"""
