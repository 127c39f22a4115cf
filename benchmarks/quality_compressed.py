"""Does the same as quality_simulated.py with `outer=rounds`, with pushes and replies in bf16.

    python benchmarks/quality_compressed.py outer=rounds period=16 rate=0.2 outer_rate=0.7 outer_momentum=0.5 delay=4 seeds=3

exchange.md has the results.
"""

import functools

import ml_dtypes
import quality_simulated
from rounds_in_numpy import Compressed


def bfloat16(values):
    return values.astype(ml_dtypes.bfloat16).astype(values.dtype)


if __name__ == "__main__":
    quality_simulated.Replica = functools.partial(Compressed, rounded=bfloat16)
    quality_simulated.main()
