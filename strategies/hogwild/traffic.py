"""How much worker groups and ps exchange, for the launcher's live view."""

from typing import Any

from tfdist.strategies.hogwild.compression import COMPRESSORS
from tfdist.strategies.hogwild.local_variable import Kind


def bytes_per_period(strategy: Any) -> int:
    """Returns the bytes of all pushes and replies of a worker group in one sync period."""
    compressor = COMPRESSORS[strategy.synchronization.compression]
    total = 0
    for block in strategy.local_replicas.blocks:
        if block.kind is Kind.SYNCHRONIZED:
            sizes = (compressor.size(n) if block.compressed else n * block.dtype.size for n in block.sizes)
            total += 2 * sum(sizes)
    return total
