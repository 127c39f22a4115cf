"""Who exchanges with whom where each server group has a centre of its own: neighbors in a ring, or random pairs.

After a group has pushed its change to its own server group, that one mixes with others: what one centre gains by it the other
loses, in operations of which none can be lost, so that the mean over all centres stays what the changes have made it.
"""

import random
from typing import Any

import tensorflow as tf

from tfdist.strategies.hogwild.global_parameters import ParameterBlock


def neighbors(servers: int, count: int) -> tuple[int, ...]:
    """The server groups before and after `servers` in a ring of `count`."""
    return tuple(dict.fromkeys(((servers - 1) % count, (servers + 1) % count)))


def mix(topology: str, block: ParameterBlock, servers: int, number: int) -> None:
    """In a function: mixes slice `number` of a server group's centre with those of others.

    `ring`: with both neighbors, C <- (C_before + C + C_after) / 3 (D-PSGD on a ring, 1705.09056). `pair`: with one other at
    random, both become their mean (AD-PSGD, 1710.06952).
    """
    count = len(block.slices)
    if topology == "ring":
        _even_out(block, servers, neighbors(servers, count), number)
    elif topology == "pair":
        others = [other for other in range(count) if other != servers]
        chosen = tf.random.uniform([], 0, len(others), tf.int32, seed=random.randrange(2**31))

        def with_other(other: int) -> Any:
            _even_out(block, servers, (other,), number)
            return tf.constant(0)

        tf.switch_case(chosen, [lambda other=other: with_other(other) for other in others])


def _even_out(block: ParameterBlock, servers: int, others: tuple[int, ...], number: int) -> None:
    here, there = block.slices[servers][number], [block.slices[other][number] for other in others]
    share = tf.cast(1 / (len(others) + 1), block.dtype)
    with tf.device(here.device):
        value = here.read()  # Before any of the changes, else the last of the others would weigh most.
        changes = [share * (tf.identity(other.read()) - value) for other in there]
        here.assign_add(tf.add_n(changes))
    for other, change in zip(there, changes, strict=True):
        other.assign_add(-change)
