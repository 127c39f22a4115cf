"""`WorkerMesh`: the devices of the replicas of worker groups."""

from collections.abc import Sequence

from tfdist.partition import Partition
from tfdist.strategies.model_parallel import variables
from tfdist.strategies.model_parallel.described import DescribedLayouts
from tfdist.strategies.model_parallel.layouts import LocalMesh


class WorkerMesh:
    """Knows the devices of a replica by the first of them: the others follow it on the same task.

    Args:
        partition: that of the description of the cluster.
        size: the number of devices of a replica.

    Attributes:
        described: the layouts of the partition.
    """

    def __init__(self, partition: Partition, size: int) -> None:
        self._size = size
        self.described = DescribedLayouts(partition, self.row_of("device:CPU:0"), tasks=1)
        variables.install()

    def row_of(self, first: str) -> tuple[str, ...]:
        """Returns the devices of the replica whose first device this is."""
        kind, _, number = first.rpartition(":")
        return tuple(f"{kind}:{int(number) + offset}" for offset in range(self._size))

    def of(self, firsts: Sequence[str]) -> LocalMesh:
        """Returns the devices of the replicas with these first devices."""
        return LocalMesh(tuple(map(self.row_of, firsts)), "model")
