"""The compression that hogwild chooses if the user gives none: it follows from the speed of the network.

Groups on a fast network wait for their processors, and compression costs processor time. On a slow one they wait for the bytes.
Two nodes reach an accuracy as soon in bf16 as in float32 where the network has no limit, 1.0 to 1.2 times as soon at 1 Gbit/s,
1.7 to 2 times at 100 Mbit/s, and about 3 times in int8 there (benchmarks/time_to_accuracy.md). Neither costs accuracy that
could be measured with 20 seeds (benchmarks/exchange.md).
"""

from dataclasses import replace

from tfdist.outer_options import OUTER_OPTIMIZERS
from tfdist.synchronization import Synchronization

COMPRESSED_BELOW = ((300e6 / 8, "int8"), (1.2e9 / 8, "bf16"))
"""Bytes per second below which parameters travel so. TensorFlow carries 0.7 to 0.9 Gbit/s over a link of 1 Gbit/s. Between
no limit, 1 Gbit/s and 100 Mbit/s nothing was measured."""


def compression_for(bytes_per_second: float) -> str:
    """Returns the compression for a network, a name in `tfdist.synchronization.COMPRESSIONS`.

    Args:
        bytes_per_second: what one connection between two hosts carries in one direction.
    """
    return next((name for below, name in COMPRESSED_BELOW if bytes_per_second < below), "float32")


def is_open(options: Synchronization) -> bool:
    """Returns whether the compression is to be chosen: the user has given none, and groups send progress.

    Groups that send the parameters themselves do not compress them: rounding would swallow small updates.

    Args:
        options: those of the user. Without an outer optimizer, the default one is meant.
    """
    sends_progress = options.topology == "global" and not OUTER_OPTIMIZERS[str(options.resolved().outer)].pushes_parameters
    return options.compression is None and sends_progress


def with_default(options: Synchronization, bytes_per_second: float) -> Synchronization:
    """Returns the options with the compression for a network (`compression_for`), if it is open (`is_open`)."""
    return replace(options, compression=compression_for(bytes_per_second)) if is_open(options) else options
