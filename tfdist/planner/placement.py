"""How many bytes of the parameters each ps holds, as the strategies place them."""

from collections.abc import Sequence

from tfdist.planner.measurement import Variable

MIN_SHARD_BYTES = 256 * 1024
"""parameter_server splits a variable if every shard has at least this size (strategies/parameter_server/placement.py)."""


SHARDS_PER_SERVER, SHARD_BYTES = 8, 2**21
"""hogwild cuts the part of a ps into up to 8 shards of at least 2 MiB (global_parameters.py in strategies/hogwild/)."""


def whole_and_split(variables: Sequence[Variable], ps: int, table_part: float = 1.0) -> list[int]:
    """Returns the bytes of each ps under `parameter_server`: those that it holds, or those that a step reads of it, which is
    `table_part` of the tables of Embedding layers.

    Large variables are split by rows over all ps. Any other goes to the ps that holds the fewest bytes, so that the largest one
    that has too few rows bounds how many ps are useful.
    """
    held, counted = [0] * ps, [0] * ps
    for variable in variables:
        rows = variable.shape[0] if variable.shape else 0
        part = table_part if variable.is_table else 1.0
        before = list(held)
        if ps > 1 and rows >= ps and variable.size >= ps * MIN_SHARD_BYTES:
            row = variable.size // rows
            bounds = [rows * number // ps for number in range(ps + 1)]
            for number in range(ps):
                held[number] += (bounds[number + 1] - bounds[number]) * row
        else:
            held[held.index(min(held))] += variable.size
        counted = [known + round(part * (now - then)) for known, now, then in zip(counted, held, before, strict=True)]
    return counted


def evenly(size: int, ps: int) -> list[int]:
    """Returns the bytes on each ps under `hogwild`, which concatenates all variables and splits them equally."""
    return [size * (number + 1) // ps - size * number // ps for number in range(ps)]


def shards(size: int, ps: int) -> int:
    """Returns into how many shards `hogwild` cuts the part of a ps, of parameters of `size` bytes."""
    return min(max(size // (ps * SHARD_BYTES), 1), SHARDS_PER_SERVER)
