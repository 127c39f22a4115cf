"""The rendezvous: processes that know only their ranks exchange addresses, and each of them returns the same `Cluster`.

Start reading at `meet.py`, which explains the protocol. The leader (`leader.py`) collects the addresses and publishes the list;
every member (`member.py`) waits for it. `participant.py` holds what both share, and `stores/` what they read and write.
`tfdist.strategy` calls `meet`. This room imports `tfdist`, `tfdist.strategies.runtime` and the ports of
`tfdist.launch.backends.local`.
"""
