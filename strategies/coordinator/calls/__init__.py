"""Calls of worker groups: the functions that groups run, and each execution of one, from its schedule to its result.

Start with `executions.py`, then `group_function.py`.
"""
