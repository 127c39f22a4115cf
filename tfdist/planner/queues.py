"""Mean value analysis: how long the cycle of a worker takes if it waits for others at each resource that they share.

Workers that do not wait for each other still queue for a link or a ps: while one sends, the others' data arrives at the same
place. A resource that is busy for half of the time so makes cycles longer, and two directions of a link that a worker uses one
after the other never both become full. Reiser and Lavenberg, "Mean-value analysis of closed multichain queuing networks",
JACM 1980.
"""

from collections.abc import Sequence


def cycle(workers: int, alone: float, shared: Sequence[float]) -> float:
    """Returns how long a cycle of a worker takes, in seconds.

    Args:
        workers: how many workers share the resources.
        alone: how long it takes one worker alone for what it does outside of them.
        shared: how long one cycle of one worker needs each of the resources, one after the other.
    """
    queues = [0.0] * len(shared)
    time = alone + sum(shared)
    if time <= 0:
        return 0.0
    for number in range(1, workers + 1):
        waits = [demand * (1 + queue) for demand, queue in zip(shared, queues, strict=True)]
        time = alone + sum(waits)
        queues = [number * wait / time for wait in waits]
    return time
