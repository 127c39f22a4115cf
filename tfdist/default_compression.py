"""The compression that hogwild chooses if the user gives none: it follows from the speed of the network.

Groups on a fast network wait for their processors, and compression costs processor time. On a slow one they wait for the bytes.
With two nodes and `--compression bf16`, training reaches an accuracy as soon as in float32 where the network has no limit, 1.2
times as soon at 1 Gbit/s, and 1.7 to 2 times as soon at 100 Mbit/s (benchmarks/time_to_accuracy.md). It costs no accuracy that
could be measured with 20 seeds: 0.00 +- 0.08 points; int8 did (benchmarks/exchange.md).
"""

BF16_BELOW = 1.2e9 / 8
"""Bytes per second below which parameters travel as bf16. TensorFlow carries 0.7 to 0.9 Gbit/s over a link of 1 Gbit/s. What is
between that and no limit was not measured."""


def compression_for(bytes_per_second: float) -> str:
    """Returns the compression for a network, a name in `tfdist.synchronization.COMPRESSIONS`.

    Args:
        bytes_per_second: what one connection between two hosts carries in one direction.
    """
    return "bf16" if bytes_per_second < BF16_BELOW else "float32"
