"""How many bytes of the parameters each ps holds, as the strategies place them."""

from collections.abc import Sequence

from tfdist.planner.measurement import Variable

MIN_SHARD_BYTES = 256 * 1024
"""parameter_server splits a variable if every shard has at least this size (strategies/parameter_server/placement.py)."""


SHARDS_PER_SERVER, SHARD_BYTES = 8, 2**21
"""hogwild cuts the part of a ps into up to 8 shards of at least 2 MiB (strategies/hogwild/global_parameters.py)."""


def whole_and_split(variables: Sequence[Variable], ps: int) -> list[int]:
    """Returns the bytes on each ps under `parameter_server`.

    Large variables are split by rows over all ps. Any other goes to the ps that holds the fewest bytes, so that the largest one
    that has too few rows bounds how many ps are useful.
    """
    held = [0] * ps
    for variable in variables:
        rows = variable.shape[0] if variable.shape else 0
        if ps > 1 and rows >= ps and variable.size >= ps * MIN_SHARD_BYTES:
            row = variable.size // rows
            bounds = [rows * number // ps for number in range(ps + 1)]
            for number in range(ps):
                held[number] += (bounds[number + 1] - bounds[number]) * row
        else:
            held[held.index(min(held))] += variable.size
    return held


def evenly(size: int, ps: int) -> list[int]:
    """Returns the bytes on each ps under `hogwild`, which concatenates all variables and splits them equally."""
    return [size * (number + 1) // ps - size * number // ps for number in range(ps)]


def shards(size: int, ps: int) -> int:
    """Returns into how many shards `hogwild` cuts the part of a ps, of parameters of `size` bytes."""
    return min(max(size // (ps * SHARD_BYTES), 1), SHARDS_PER_SERVER)
