"""Calls of worker groups: the functions that groups run, and each execution of one, from its schedule to its result."""
