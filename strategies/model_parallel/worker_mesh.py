"""`WorkerMesh`: the devices of the replicas of worker groups."""

from collections.abc import Iterable, Sequence

from tfdist.partition import Partition
from tfdist.strategies.model_parallel import variables
from tfdist.strategies.model_parallel.described import DescribedLayouts
from tfdist.strategies.model_parallel.layouts import LocalMesh


class WorkerMesh:
    """Knows the devices of a replica by the first of them.

    Args:
        partition: that of the description of the cluster.
        rows: the devices of each replica, of one task or of several.

    Attributes:
        described: the layouts of the partition.
    """

    def __init__(self, partition: Partition, rows: Iterable[tuple[str, ...]]) -> None:
        self._rows = {row[0]: row for row in rows}
        first = next(iter(self._rows.values()))
        self.described = DescribedLayouts(partition, [f"device:CPU:{number}" for number in range(len(first))], tasks=1)
        variables.install()

    def row_of(self, first: str) -> tuple[str, ...]:
        """Returns the devices of the replica whose first device this is, with its task if `first` names the task."""
        if first in self._rows:
            return self._rows[first]
        task, slash, device = first.rpartition("/")
        return tuple(f"{task}{each}" for each in self._rows[slash + device])

    def of(self, firsts: Sequence[str]) -> LocalMesh:
        """Returns the devices of the replicas with these first devices; without any, those of one replica."""
        rows = tuple(map(self.row_of, firsts)) or tuple(self._rows.values())[:1]
        return LocalMesh(rows, "model")
