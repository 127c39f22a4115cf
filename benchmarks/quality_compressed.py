"""Does the same as quality_simulated.py with `outer=rounds`, with compressed pushes and replies: bf16, int8 or int4.

    python benchmarks/quality_compressed.py bf16 outer=rounds period=16 rate=0.2 outer_rate=0.7 outer_momentum=0.5 delay=4

exchange.md has the results.
"""

import functools
import sys

import ml_dtypes
import numpy as np
import quality_simulated
from rounds_in_numpy import Compressed

BLOCK = 256
"""Values that share a scale, as in strategies/hogwild/synchronization/compression.py."""


def bfloat16(values):
    return values.astype(ml_dtypes.bfloat16).astype(values.dtype)


def scaled(values, limit):
    rows = np.pad(values.ravel(), (0, -values.size % BLOCK)).reshape(-1, BLOCK)
    scales = np.abs(rows).max(axis=1, keepdims=True) / limit
    scales = np.where(scales > 0, scales, 1)
    return (np.round(rows / scales) * scales).ravel()[: values.size].reshape(values.shape).astype(values.dtype)


ROUNDED = {"bf16": bfloat16, "int8": functools.partial(scaled, limit=127), "int4": functools.partial(scaled, limit=7)}


if __name__ == "__main__":
    quality_simulated.Replica = functools.partial(Compressed, rounded=ROUNDED[sys.argv.pop(1)])
    quality_simulated.main()
