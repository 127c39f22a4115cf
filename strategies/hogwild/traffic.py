"""How much worker groups and ps exchange, for the launcher's live view."""

from typing import Any

from tfdist.strategies.hogwild.synchronization.compression import COMPRESSORS
from tfdist.strategies.hogwild.synchronization.local_variable import Kind


def bytes_per_period(strategy: Any) -> int:
    """Returns the bytes of all pushes and replies of a worker group in one sync period."""
    compressor = COMPRESSORS[strategy.synchronization.compression]
    total = 0
    for block in strategy.synchronized_blocks:
        sizes = (compressor.size(n) if block.compressed else n * block.dtype.size for n in block.sizes)
        total += 2 * sum(sizes)
    return total


def compression_used(strategy: Any) -> str | None:
    """Returns the compression of the options; "float32" if the ps lack the memory for it (`network.affords`)."""
    blocks, options = strategy.local_replicas.blocks, strategy.synchronization
    is_used = any(block.compressed for block in blocks if block.kind is Kind.SYNCHRONIZED)
    return "float32" if blocks and options.compresses and not is_used else options.compression
